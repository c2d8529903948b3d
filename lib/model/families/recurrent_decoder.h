// What families with recurrent layers have in common: sizes without attention, layers that differ, Mamba-2 and delta
// layers.
#pragma once

#include "model/families/dense_decoder.h"

namespace headrace {

// Values of keys that a config leaves out; 0: the key is required.
struct BaseDefaults {
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t num_layers = 0;
  int64_t max_position_embeddings = 0;
  const char* eps_key = "rms_norm_eps";
  double norm_eps = 1e-5;
  bool tied = false;
};
// Context of models whose files state none.
inline constexpr int64_t kUnboundedContext = 1 << 20;

// Sizes, norm, head and token ids; every layer is without attention and feed-forward yet.
Result<ModelSpec> read_base_config(const ConfigReader& config, const BaseDefaults& defaults);
// The same from GGUF metadata, of which known_keys are those besides these sizes that the family reads.
Result<ModelSpec> read_base_gguf(const GgufReader& gguf, std::span<const std::string_view> known_keys);

// layer_types with one entry per layer; kMalformed otherwise.
Result<std::vector<std::string>> read_mixed_layer_types(const ConfigReader& config, size_t num_layers);
// An integer for all layers, or a list with one per layer.
Result<std::vector<int64_t>> read_per_layer(const GgufReader& gguf, std::string_view suffix, size_t num_layers);
// Attention with num_kv_heads heads and its rotation.
Result<GqaAttention> read_gguf_attention(const GgufReader& gguf, const ModelSpec& spec, int64_t num_kv_heads);

// The ssm.* keys of a Mamba-2 layer.
Result<Mamba2> read_gguf_mamba2(const GgufReader& gguf);
inline constexpr std::string_view kSsmKeys[] = {"ssm.conv_kernel", "ssm.inner_size", "ssm.state_size",
                                                "ssm.time_step_rank", "ssm.group_count"};

// The linear_* keys of a gated delta layer; those left out keep the default's sizes.
Result<GatedDelta> read_delta(const ConfigReader& config, const GatedDelta& defaults);

// Reads time_step_limit into the bounds of the step; without it they are 0 and infinity.
Status read_step_limits(const ConfigReader& config, Mamba2& mamba);

}  // namespace headrace
