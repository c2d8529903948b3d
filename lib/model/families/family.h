// Model families: how each reads its parameters from a config.json or GGUF metadata, and names its weights.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "formats/tensor_file.h"
#include "model/config_reader.h"
#include "model/gguf_reader.h"
#include "model/model_spec.h"
#include "model/weight_names.h"

namespace headrace {

struct Family {
  std::string_view name;
  // Of config.json; an empty string where the family has no such form.
  std::string_view hf_architecture;  // LlamaForCausalLM
  std::string_view hf_model_type;    // llama
  std::string_view gguf_architecture;
  // The tensor table tells what parameters leave open (is there an output matrix, are there biases).
  Result<ModelSpec> (*from_config)(const ConfigReader& config, const TensorFile& weights);
  Result<ModelSpec> (*from_gguf)(const GgufReader& gguf);
  WeightNaming (*hf_names)(const TensorFile& weights);
  WeightNaming (*gguf_names)();
};

extern const Family kLlamaFamily;
extern const Family kMistralFamily;
extern const Family kQwen2Family;
extern const Family kQwen3Family;
extern const Family kGemma3TextFamily;
extern const Family kGemma3Family;  // the image-text wrapper's text part

struct ImportedModel {
  ModelSpec spec;
  std::vector<WeightEntry> weights;
};

// Chooses the family, reads the spec, validates it and checks every tensor. kUnsupported for an unknown
// architecture.
Result<ImportedModel> import_config(const nlohmann::json& config, const TensorFile& weights);
Result<ImportedModel> import_gguf(const GgufFile& file);

}  // namespace headrace
