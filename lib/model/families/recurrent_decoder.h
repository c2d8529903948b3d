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
// Whether each layer attends or is recurrent, where it is one or the other, from the key; kUnsupported for a third.
Result<std::vector<bool>> read_attending(const ConfigReader& config, size_t num_layers,
                                         const char* key = "layer_types");
// KV heads of each layer, 0 where it does not attend. Where the metadata has zeros for layers that do, as some files of
// hybrids have, they are counted in the tensors.
Result<std::vector<int64_t>> read_gguf_kv_heads(const GgufReader& gguf, const ModelSpec& spec);
// Attention with num_kv_heads heads and its rotation.
Result<GqaAttention> read_gguf_attention(const GgufReader& gguf, const ModelSpec& spec, int64_t num_kv_heads);

// Rows of the layer's first matrix of a dense feed-forward, 0 where it has none: what metadata says is of experts in some
// files.
int32_t gguf_feed_forward_size(const GgufReader& gguf, size_t layer);
// How a config names the parameters of Mamba-2 layers; null: it has no such key.
struct Mamba2Keys {
  const char* num_heads;
  const char* head_dim;
  const char* num_groups;
  const char* state_size;
  const char* kernel;
  const char* conv_bias;
  const char* bias;
};
// What the config says takes the place of what `mamba` says; the output's norm is that of the groups.
Status read_mamba2(const ConfigReader& config, const Mamba2Keys& keys, Mamba2& mamba);
// The ssm.* keys of a Mamba-2 layer.
Result<Mamba2> read_gguf_mamba2(const GgufReader& gguf);
inline constexpr std::string_view kSsmKeys[] = {"ssm.conv_kernel", "ssm.inner_size", "ssm.state_size",
                                                "ssm.time_step_rank", "ssm.group_count"};

// The linear_* keys of a gated delta layer; those left out keep the default's sizes.
Result<GatedDelta> read_delta(const ConfigReader& config, const GatedDelta& defaults);

// Reads time_step_limit into the bounds of the step; without it they are 0 and infinity.
Status read_step_limits(const ConfigReader& config, Mamba2& mamba);

// GGUF's names for hybrids of Mamba-2 layers, attention, feed-forwards and experts: of the metadata, with more_keys, and
// of the tensors.
std::vector<std::string_view> hybrid_gguf_keys(std::span<const std::string_view> more_keys);
WeightNaming hybrid_gguf_names();

}  // namespace headrace
