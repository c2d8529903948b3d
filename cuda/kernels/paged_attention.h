// Attention of a batch's rows over the paged cache, for decode and prefill alike.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/attention.h"

namespace headrace::cuda {

// Positions after which a row's softmax is cut. Each part is computed by itself, and a row's parts are merged in order.
inline constexpr int32_t kAttentionSplit = 512;

// Neighbouring rows of one sequence that are computed together: at most rows_per_tile() of them.
struct AttentionTile {
  int32_t sequence = 0;
  int32_t first_token = 0;  // row of the batch
  int32_t num_tokens = 0;
};

// layout: float16 keys and values, head_dim 64 or 128; num_heads is at most 16 times layout.num_kv_heads. Queries are rounded
// to float16. The cache is written throughout, if only with zeros.
struct PagedAttentionArguments : AttentionArguments {
  const AttentionTile* tiles = nullptr;  // on the device, of every row once
  int32_t num_tiles = 0;
  int32_t max_position = 0;    // of any row
  float* workspace = nullptr;  // [attention_workspace()]

  int32_t group() const { return num_heads / layout.num_kv_heads; }
  int32_t rows_per_tile() const { return 16 / group(); }
  int32_t splits() const { return max_position / kAttentionSplit + 1; }
};
size_t attention_workspace(const PagedAttentionArguments& arguments);
// Only starts work in `stream`; cudaErrorInvalidValue for what it does not take.
cudaError_t paged_attention(const PagedAttentionArguments& arguments, cudaStream_t stream);

}  // namespace headrace::cuda
