// What DeepSeek's families and their followers have in common: latent attention, and names.
#pragma once

#include "model/families/family.h"

namespace headrace {

struct LatentDefaults {
  int64_t q_rank = 1536, rank = 512, nope_dim = 128, rope_dim = 64, v_dim = 128;
  int64_t max_position_embeddings = 4096;
  double norm_eps = 1e-6;
};

// num_attention_heads, q_lora_rank (null: queries have no latent), kv_lora_rank, qk_*_head_dim, v_head_dim and the
// rotation.
Result<LatentAttention> read_latent(const ConfigReader& config, const LatentDefaults& defaults, int64_t max_positions);

// Everything but the experts of layers, which are dense; more_keys: that the family reads itself.
Result<ModelSpec> read_deepseek(const ConfigReader& config, const LatentDefaults& latent, const char* architecture,
                                std::span<const std::string_view> more_keys = {});
// The same from GGUF metadata, with the experts.
Result<ModelSpec> read_deepseek_gguf(const GgufReader& gguf, std::span<const std::string_view> more_keys);

// Names of indexers among them.
WeightNaming deepseek_hf_names(const TensorFile& weights);
WeightNaming deepseek_gguf_names();

}  // namespace headrace
