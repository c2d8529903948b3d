// Kernels over rows and elements: what stands between the products of a layer. Values are float32 but where a type is
// named. Calls only start work in `stream`, and return cudaErrorInvalidValue for shapes they do not take.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/float_type.h"
#include "tensor/op_params.h"

namespace headrace::cuda {

inline constexpr int64_t kMaxRmsNormSize = 16384;

// x += delta where there is one; then out = x / sqrt(mean(x^2) + eps) * (weight + weight_offset), row by row. out may be x.
// Row t of the outputs is a function of row t of the inputs, bit for bit.
struct RmsNormArguments {
  float* x = nullptr;             // [num_tokens, size], written with a delta alone
  const float* delta = nullptr;   // [num_tokens, size] or null
  const float* weight = nullptr;  // [size]
  int64_t num_tokens = 0;
  int64_t size = 0;  // a multiple of 4, at most kMaxRmsNormSize
  float eps = 0.0f;
  float weight_offset = 0.0f;
  float* out = nullptr;  // [num_tokens, size]
};
cudaError_t rms_norm(const RmsNormArguments& arguments, cudaStream_t stream);

// out[t, :] = scale * table[token_ids[t], :]
struct EmbedArguments {
  const void* table = nullptr;  // [vocab_size, size]
  FloatType type = FloatType::kF16;
  const int32_t* token_ids = nullptr;  // [num_tokens] on the device, each in [0, vocab_size)
  int64_t num_tokens = 0;
  int64_t size = 0;
  float scale = 1.0f;
  float* out = nullptr;  // [num_tokens, size]
};
cudaError_t embed(const EmbedArguments& arguments, cudaStream_t stream);

// out = activation(gate) * up, or activation(gate) where up is null, elementwise. out may be gate or up.
struct GatedActivationArguments {
  const float* gate = nullptr;  // [num_elements]
  const float* up = nullptr;
  int64_t num_elements = 0;
  Activation activation = Activation::kSilu;
  float limit = 0.0f;  // kClampedSwish, kClampedSilu
  float* out = nullptr;
};
cudaError_t gated_activation(const GatedActivationArguments& arguments, cudaStream_t stream);

// out += x, elementwise.
cudaError_t add(const float* x, float* out, int64_t num_elements, cudaStream_t stream);
// x *= factor, and by columns[i % num_columns] where there are any.
cudaError_t scale(float* x, int64_t num_elements, float factor, const float* columns, int64_t num_columns,
                  cudaStream_t stream);
// x = cap * tanh(x / cap)
cudaError_t softcap(float* x, int64_t num_elements, float cap, cudaStream_t stream);

// Rows as the matrix instructions take them. A float16 holds no more than 65504: a row whose greatest magnitude is above 2^15
// is multiplied by a power of two first, whose inverse stands in row_scales; a bfloat16 holds all.
struct NarrowRowsArguments {
  const float* x = nullptr;  // [num_rows, size]
  int64_t num_rows = 0;
  int64_t size = 0;  // a multiple of 4
  FloatType type = FloatType::kF16;
  uint16_t* out = nullptr;      // [num_rows, size]
  float* row_scales = nullptr;  // [num_rows]
};
cudaError_t narrow_rows(const NarrowRowsArguments& arguments, cudaStream_t stream);

}  // namespace headrace::cuda
