// What the dense decoder families have in common: sizes, rotary positions, biases and names.
#pragma once

#include "model/families/family.h"

namespace headrace {

// Keys of config.json that some families name in their own way.
struct DenseKeys {
  const char* hidden_size = "hidden_size";
  const char* intermediate_size = "intermediate_size";
  const char* num_layers = "num_hidden_layers";
  const char* num_heads = "num_attention_heads";
  const char* max_position_embeddings = "max_position_embeddings";
  const char* norm_eps = "rms_norm_eps";
};

// Values of keys a config leaves out, as the family's class in transformers has them; 0: the key is required.
struct DenseDefaults {
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_layers = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;  // -1: as many as num_heads
  int64_t head_dim = -1;     // -1: hidden_size / num_heads
  int64_t max_position_embeddings = 0;
  double norm_eps = 1e-6;
  bool tied = false;
  DenseKeys keys = {};
  std::vector<std::string_view> own_keys = {};  // that the family reads itself, though they change the computation
  bool experts = false;                         // the family reads the keys of experts itself
  bool by_layer = false;                        // lengths of feed-forwards may be a list
};

// Fills everything that does not differ between layers or families; layers are equal copies with full
// attention, scale 1 / sqrt(head_dim) and no rotation yet. Refuses keys of config.json that would change the
// computation.
Result<ModelSpec> read_dense_config(const ConfigReader& config, const DenseDefaults& defaults);
// The same from GGUF metadata and the tensor table (tied head, biases), rotation included.
struct DenseGguf {
  bool experts = false;                              // the family reads the keys of experts itself
  std::span<const std::string_view> more_keys = {};  // that it knows beyond the usual ones
  bool any_value_dim = false;
  bool both_ways = false;  // of attention
  bool by_layer = false;   // lengths of feed-forwards and numbers of key/value heads may be lists
};
Result<ModelSpec> read_dense_gguf(const GgufReader& gguf, const DenseGguf& family = {});

// An integer for all layers, or a list with one per layer.
Result<std::vector<int64_t>> read_per_layer(const GgufReader& gguf, std::string_view suffix, size_t num_layers);

// Per layer, whether its attention is windowed, from layer_types; empty when the config has none.
Result<std::vector<bool>> read_layer_types(const ConfigReader& config, size_t num_layers);

// read_rope and make_rope for the heads of the model; partial: the share of dims that rotate where a config names none.
Result<RopeSpec> read_rotation(const ConfigReader& config, ModelSpec& spec, double default_theta,
                               std::optional<double> partial = {});
// rope_parameters with full_attention and sliding_attention (newer configs), or one set that scales the rotation of full
// layers alone.
struct RopePair {
  RopeSpec full, sliding;
};
Result<RopePair> read_rope_pair(const ConfigReader& config, ModelSpec& spec, double full_theta, double sliding_theta);
// Windows of sliding_window on the layers that layer_types names, or else on those that are no multiple (from 1) of the
// pattern's key or default_pattern (0: on none). A null sliding_window is no window.
Status read_windows(const ConfigReader& config, ModelSpec& spec, int64_t default_window, int64_t default_pattern);
// The same for the keys of GGUF: attention.sliding_window and attention.sliding_window_pattern.
Status read_gguf_windows(const GgufReader& gguf, ModelSpec& spec, int64_t default_pattern);

// One value for every layer, from keys of the config: the activation, a window-free rotation, biases.
struct LayerChoices {
  const char* activation_key = "hidden_act";
  const char* activation = "silu";
  const char* attention_bias_key = "attention_bias";  // of q, k, v and the output; null: no such key
  bool attention_bias = false;
  const char* feed_forward_bias_key = nullptr;
  bool feed_forward_bias = false;
};
Status read_layer_choices(const ConfigReader& config, ModelSpec& spec, const LayerChoices& choices);

// kUnsupported when the metadata has one of the keys that change attention and that `read` does not name.
Status refuse_gguf_attention_keys(const GgufReader& gguf, std::span<const std::string_view> read = {});

GqaAttention& gqa(LayerSpec& layer);
DenseFeedForward& dense(LayerSpec& layer);

// Names of llama-like models (qwen2 and qwen3 among them) in safetensors, and of all dense families in GGUF.
WeightNaming llama_hf_names(const TensorFile& weights);
WeightNaming dense_gguf_names();
// Both with norms around the blocks instead of before them (OLMo 2, EXAONE 4).
WeightNaming post_norm_hf_names(const TensorFile& weights);
// Gemma 2 and 3: norms before and after each block.
WeightNaming gemma_hf_names(const TensorFile& weights);

}  // namespace headrace
