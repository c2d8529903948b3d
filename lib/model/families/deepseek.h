// The latent attention of DeepSeek's families and their followers.
#pragma once

#include "model/families/family.h"

namespace headrace {

struct LatentDefaults {
  int64_t q_rank = 1536, rank = 512, nope_dim = 128, rope_dim = 64, v_dim = 128;
};

// num_attention_heads, q_lora_rank (null: queries have no latent), kv_lora_rank, qk_*_head_dim, v_head_dim and the
// rotation.
Result<LatentAttention> read_latent(const ConfigReader& config, const LatentDefaults& defaults, int64_t max_positions);

}  // namespace headrace
