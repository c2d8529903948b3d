// Attention of a batch's rows over the paged cache in float32, for every shape that the faster kernel does not take.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "tensor/kv_layout.h"

namespace headrace::cuda {

inline constexpr int32_t kMaxAttentionHeadDim = 512;

// As in PagedAttentionParams. What comes out for a row depends on its own query and keys alone, bit for bit.
struct AttentionFloatArguments {
  const float* q = nullptr;  // [num_tokens, num_heads, head_dim]
  float* out = nullptr;      // likewise
  int64_t num_tokens = 0;
  int32_t num_heads = 0;                  // a multiple of layout.num_kv_heads
  const int32_t* sequences = nullptr;     // [num_tokens] the sequence of each row
  const int32_t* positions = nullptr;     // [num_tokens]
  const int32_t* block_tables = nullptr;  // [num_seqs, max_blocks]
  int32_t max_blocks = 0;
  KvLayout layout;  // f32, f16 or bf16 keys and values, head_dim at most kMaxAttentionHeadDim
  const std::byte* cache = nullptr;
  float scale = 1.0f;
  int32_t window = 0;            // 0: unlimited
  int32_t chunk = 0;             // 0: not
  float logit_softcap = 0.0f;    // 0: none
  const float* sinks = nullptr;  // [num_heads] or null
};
cudaError_t attention_float(const AttentionFloatArguments& arguments, cudaStream_t stream);

}  // namespace headrace::cuda
