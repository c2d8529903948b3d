// What the kernels of attention have in common.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/kv_layout.h"

namespace headrace::cuda {

// The widest heads that attention_float and rope_and_store_kv take.
inline constexpr int32_t kMaxHeadDim = 512;

// Row t at position p of its sequence sees the cached positions (p - window, p], its own stored already. What comes out for a
// row depends on its own query and keys alone, bit for bit.
struct AttentionArguments {
  const float* q = nullptr;  // [num_tokens, num_heads, head_dim]
  float* out = nullptr;      // [num_tokens, num_heads, head_dim]
  int64_t num_tokens = 0;
  int32_t num_heads = 0;                  // a multiple of layout.num_kv_heads
  const int32_t* positions = nullptr;     // [num_tokens]
  const int32_t* block_tables = nullptr;  // [num_seqs, max_blocks] block ids in logical order
  int32_t max_blocks = 0;
  KvLayout layout;
  const std::byte* cache = nullptr;
  float scale = 1.0f;
  int32_t window = 0;            // 0: unlimited
  float logit_softcap = 0.0f;    // 0: none
  const float* sinks = nullptr;  // [num_heads] or null
};

}  // namespace headrace::cuda
