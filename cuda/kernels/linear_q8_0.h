// y = x W^T for Q8_0 weights and float16 inputs, with sums in float32: the same bits for one row as for many.
//
// A packed weight holds the file's codes and scales in another order. Rows are taken by 16, padded with zeros, columns by 32:
//   codes  uint8 [rows / 16][cols / 32][512]: each code plus 128; lane l = 4 g + t of a warp finds its 16 bytes at 16 l,
//          for two steps of 16 columns the values at (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1), then the same at
//          columns + 8: what mma.m16n8k16 wants of its first operand
//   scales float16 [rows / 16][cols / 32][16]
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/linear_output.h"

namespace headrace::cuda {

struct Q8Weight {
  const uint8_t* codes = nullptr;
  const uint16_t* scales = nullptr;
  int64_t rows = 0;  // out_features
  int64_t cols = 0;  // in_features, a multiple of 64
};

// Rows padded to what the packed arrays hold.
constexpr int64_t q8_padded_rows(int64_t rows) { return (rows + 15) / 16 * 16; }

// The place of a weight's code among all.
#if defined(__CUDACC__)
__host__ __device__
#endif
    constexpr size_t
    q8_code_at(int64_t cols, int64_t row, int64_t column) {
  const int64_t record = row / 16 * (cols / 32) + column / 32, lane = row % 8 * 4 + column % 8 / 2;
  const int64_t byte = column % 32 / 16 * 8 + column % 16 / 8 * 4 + row % 16 / 8 * 2 + column % 2;
  return static_cast<size_t>(record * 512 + lane * 16 + byte);
}

// blocks: BlockQ8_0 [rows][cols / 32] as in the file. codes [padded rows * cols], scales [padded rows * cols / 32].
void pack_q8_0(const std::byte* blocks, int64_t rows, int64_t cols, uint8_t* codes, uint16_t* scales);

struct LinearQ8Arguments {
  Q8Weight weight;
  const uint16_t* x = nullptr;  // float16 [num_tokens, cols]
  int64_t num_tokens = 0;
  float* workspace = nullptr;  // [linear_workspace()]
  LinearDestination to;
};
cudaError_t linear_q8_0(const LinearQ8Arguments& arguments, cudaStream_t stream);

// out[t, :] = scale * row token_ids[t] of the weight
struct EmbedQ8Arguments {
  Q8Weight table;
  const int32_t* token_ids = nullptr;  // [num_tokens] on the device
  int64_t num_tokens = 0;
  float scale = 1.0f;
  float* out = nullptr;  // [num_tokens, cols]
};
cudaError_t embed_q8_0(const EmbedQ8Arguments& arguments, cudaStream_t stream);

}  // namespace headrace::cuda
