// What the layers of Gemma 3n and 4 have in common: inputs of their own, and layers that see the keys and values of
// others.
#pragma once

#include "model/families/dense_decoder.h"

namespace headrace {

inline constexpr std::string_view kGemmaLayerKeys[] = {
    "attention_bias", "final_logit_softcapping", "hidden_activation", "hidden_size_per_layer_input",
    "layer_types",    "num_kv_shared_layers",    "sliding_window",    "vocab_size_per_layer_input",
};

// Which layers are windowed, of layer_types or of all but each `pattern`-th, and by how much. The attention of each layer
// gets its window; norms around blocks and on heads, values' too; scale 1; the embeddings' scale, activations and caps.
Result<std::vector<bool>> read_gemma_layers(const ConfigReader& config, ModelSpec& spec, int64_t pattern);

// The same from GGUF, with rotations, shared keys and values, and the layers' own inputs.
Result<std::vector<bool>> read_gemma_gguf_layers(const GgufReader& gguf, ModelSpec& spec, int64_t pattern);

// The last num_kv_shared_layers see the keys and values of the last layer before them of their own kind.
Status read_kv_sharing(const ConfigReader& config, ModelSpec& spec, const std::vector<bool>& windowed,
                       int64_t fallback);
Status set_kv_sharing(ModelSpec& spec, const std::vector<bool>& windowed, int64_t num_shared, const std::string& place);

// hidden_size_per_layer_input (0: none) and vocab_size_per_layer_input.
Status read_per_layer_inputs(const ConfigReader& config, ModelSpec& spec);
PerLayerInputs make_per_layer_inputs(const ModelSpec& spec, int64_t size, int64_t vocab_size);

// The rotation of full and of windowed layers, of rope_parameters with a set for each kind.
struct GemmaRotations {
  RopeConfig full, sliding;
};
// kMalformed where a layer's dims cannot rotate so.
Status set_rotations(ModelSpec& spec, const std::vector<bool>& windowed, const GemmaRotations& rotations,
                     const std::string& place);

// The text model of a wrapper for images and sound: text_config read by `read_text`, beside keys of the wrapper.
Result<ModelSpec> read_wrapped_text(const ConfigReader& config, std::span<const std::string_view> wrapper_keys,
                                    const TensorFile& weights,
                                    Result<ModelSpec> (*read_text)(const ConfigReader&, const TensorFile&));

// Names of the text model, alone and in a wrapper.
WeightNaming gemma_layer_names(const TensorFile& weights);
WeightNaming wrapped_gemma_layer_names(const TensorFile& weights);
WeightNaming gemma_layer_gguf_names();

}  // namespace headrace
