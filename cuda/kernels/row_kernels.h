// Kernels over rows and elements: what stands between the products of a layer. The residual stream and sums are float32;
// what a product reads next is float16, as bits. All calls only start work in `stream`, and return cudaErrorInvalidValue for
// shapes they do not take.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "tensor/op_params.h"

namespace headrace::cuda {

// x += delta where there is one; then out = x / sqrt(mean(x^2) + eps) * (weight + weight_offset), row by row. Row t of
// the outputs is a function of row t of the inputs, bit for bit.
struct RmsNormArguments {
  float* x = nullptr;             // [num_tokens, size]
  const float* delta = nullptr;   // [num_tokens, size] or null
  const float* weight = nullptr;  // [size]
  int64_t num_tokens = 0;
  int64_t size = 0;  // a multiple of 4, at most 16384
  float eps = 0.0f;
  float weight_offset = 0.0f;
  uint16_t* out = nullptr;  // [num_tokens, size]
};
cudaError_t rms_norm(const RmsNormArguments& arguments, cudaStream_t stream);

// out[t, :] = scale * table[token_ids[t], :]
struct EmbedArguments {
  const uint16_t* table = nullptr;     // float16 [vocab_size, size]
  const int32_t* token_ids = nullptr;  // [num_tokens] on the device, each in [0, vocab_size)
  int64_t num_tokens = 0;
  int64_t size = 0;  // a multiple of 4
  float scale = 1.0f;
  float* out = nullptr;  // [num_tokens, size]
};
cudaError_t embed(const EmbedArguments& arguments, cudaStream_t stream);

// out = activation(gate) * up, or activation(gate) where up is null, elementwise.
struct GatedActivationArguments {
  const float* gate = nullptr;  // [num_elements]
  const float* up = nullptr;
  int64_t num_elements = 0;  // a multiple of 4
  Activation activation = Activation::kSilu;
  float limit = 0.0f;  // kClampedSwish, kClampedSilu
  uint16_t* out = nullptr;
};
cudaError_t gated_activation(const GatedActivationArguments& arguments, cudaStream_t stream);

}  // namespace headrace::cuda
