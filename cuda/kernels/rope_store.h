// What attention needs of a token: its rotated queries, and its keys and values in the paged cache.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "tensor/kv_layout.h"

namespace headrace::cuda {

// Per token: RMS-normalises each head of q and k where weights are given, rotates q and k by position, q in place, and stores
// k and v in the cache's layout (tensor/kv_layout.h). Only starts work in `stream`; cudaErrorInvalidValue for what it does not
// take.
struct RopeStoreArguments {
  float* q = nullptr;             // [num_tokens, num_heads, head_dim]
  const float* k = nullptr;       // [num_tokens, num_kv_heads, head_dim]
  const float* v = nullptr;       // likewise
  const float* q_norm = nullptr;  // [head_dim] or null
  const float* k_norm = nullptr;
  float norm_eps = 0.0f;
  float norm_weight_offset = 0.0f;
  int64_t num_tokens = 0;
  int32_t num_heads = 0;
  const int32_t* positions = nullptr;  // [num_tokens]
  const float* inv_freq = nullptr;     // [rotary_dim / 2], radians per position
  int32_t rotary_dim = 0;              // the first dims of a head rotate
  bool norm_after_rotation = false;
  const float* q_scale = nullptr;  // [num_tokens] multiplies a row's q in the end, or null
  bool interleaved = false;        // pairs (2i, 2i+1) instead of (i, i + rotary_dim/2)
  float attention_factor = 1.0f;   // multiplies cos and sin
  KvLayout layout;                 // f32, f16 or bf16 keys and values; head_dim even, at most kMaxHeadDim
  std::byte* cache = nullptr;      // blocks of layout.block_bytes()
  const int64_t* slots = nullptr;  // [num_tokens] block_id * block_size + offset
};
cudaError_t rope_and_store_kv(const RopeStoreArguments& arguments, cudaStream_t stream);

}  // namespace headrace::cuda
