// What the dense decoder families have in common: sizes, rotary positions, biases and names.
#pragma once

#include "model/families/family.h"

namespace headrace {

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
};

// Fills everything that does not differ between layers or families; layers are equal copies with full
// attention, scale 1 / sqrt(head_dim) and no rotation yet. Refuses keys of config.json that would change the
// computation.
Result<ModelSpec> read_dense_config(const ConfigReader& config, const DenseDefaults& defaults);
// The same from GGUF metadata and the tensor table (tied head, biases), rotation included.
Result<ModelSpec> read_dense_gguf(const GgufReader& gguf);

// Per layer, whether its attention is windowed, from layer_types; empty when the config has none.
Result<std::vector<bool>> read_layer_types(const ConfigReader& config, size_t num_layers);

GqaAttention& gqa(LayerSpec& layer);
DenseFeedForward& dense(LayerSpec& layer);

// Names of llama-like models (qwen2 and qwen3 among them) in safetensors, and of all dense families in GGUF.
WeightNaming llama_hf_names(const TensorFile& weights);
WeightNaming dense_gguf_names();

}  // namespace headrace
