// Attention of a batch's rows over the paged cache, for decode and prefill alike.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "tensor/kv_layout.h"

namespace headrace::cuda {

// Positions after which a row's softmax is cut. Each part is computed by itself, and a row's parts are merged in order: what
// comes out depends on the row's own query and keys alone, bit for bit.
inline constexpr int32_t kAttentionSplit = 512;

// Neighbouring rows of one sequence that are computed together: at most rows_per_tile() of them.
struct AttentionTile {
  int32_t sequence = 0;
  int32_t first_token = 0;  // row of the batch
  int32_t num_tokens = 0;
};

// Row t at position p of its sequence sees the cached positions (p - window, p], its own stored already.
struct PagedAttentionArguments {
  const float* q = nullptr;  // [num_tokens, num_heads, head_dim], rounded to float16
  float* out = nullptr;      // likewise
  int64_t num_tokens = 0;
  int32_t num_heads = 0;                 // a multiple of layout.num_kv_heads, at most 16 times as many
  const AttentionTile* tiles = nullptr;  // on the device, of every row once
  int32_t num_tiles = 0;
  const int32_t* positions = nullptr;     // [num_tokens]
  const int32_t* block_tables = nullptr;  // [num_seqs, max_blocks] block ids in logical order
  int32_t max_blocks = 0;
  int32_t max_position = 0;          // of any row
  KvLayout layout;                   // float16 keys and values, head_dim 64 or 128
  const std::byte* cache = nullptr;  // written throughout, if only with zeros
  float scale = 1.0f;
  int32_t window = 0;            // 0: unlimited
  float logit_softcap = 0.0f;    // 0: none
  const float* sinks = nullptr;  // [num_heads] or null
  float* workspace = nullptr;    // [attention_workspace()]

  int32_t group() const { return num_heads / layout.num_kv_heads; }
  int32_t rows_per_tile() const { return 16 / group(); }
  int32_t splits() const { return max_position / kAttentionSplit + 1; }
};
size_t attention_workspace(const PagedAttentionArguments& arguments);
// Only starts work in `stream`; cudaErrorInvalidValue for what it does not take.
cudaError_t paged_attention(const PagedAttentionArguments& arguments, cudaStream_t stream);

}  // namespace headrace::cuda
