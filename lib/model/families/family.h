// Model families: how each reads its parameters from a config.json or GGUF metadata, and names its weights.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "formats/tensor_file.h"
#include "model/config_reader.h"
#include "model/encoder_spec.h"
#include "model/gguf_reader.h"
#include "model/model_spec.h"
#include "model/vision_spec.h"
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
  // Of the encoder for images beside the decoder, which from_config reads; null: the family has none.
  Result<VisionSpec> (*vision_from_config)(const ConfigReader& config, const ModelSpec& decoder) = nullptr;
  WeightNaming (*vision_names)(const TensorFile& weights) = nullptr;
  // Of the encoder in front of the decoder, likewise.
  Result<EncoderSpec> (*encoder_from_config)(const ConfigReader& config, const ModelSpec& decoder) = nullptr;
  WeightNaming (*encoder_names)(const TensorFile& weights) = nullptr;
  Result<EncoderSpec> (*encoder_from_gguf)(const GgufReader& gguf, const ModelSpec& decoder) = nullptr;
  WeightNaming (*gguf_encoder_names)() = nullptr;
};

// The family of a model type in config.json, or null.
const Family* find_family(std::string_view hf_model_type);

extern const Family kLlamaFamily;
extern const Family kMistralFamily;
extern const Family kQwen2Family;
extern const Family kQwen3Family;
extern const Family kMixtralFamily;
extern const Family kQwen2MoeFamily;
extern const Family kQwen3MoeFamily;
extern const Family kGptOssFamily;
extern const Family kErnie45MoeFamily;
extern const Family kHyV3Family;
extern const Family kDeepseekV2Family;
extern const Family kDeepseekV3Family;
extern const Family kGlm4MoeLiteFamily;
extern const Family kGemma3nTextFamily;
extern const Family kGemma3nFamily;
extern const Family kGemma4TextFamily;
extern const Family kGemma4Family;
extern const Family kDeepseekV32Family;
extern const Family kDeepseekV4Family;
extern const Family kGlmMoeDsaFamily;
extern const Family kGlm4MoeFamily;
extern const Family kMiniMaxM2Family;
extern const Family kLlama4Family;
extern const Family kMimoV2FlashFamily;
extern const Family kLfm2Family;
extern const Family kMambaFamily;
extern const Family kMamba2Family;
extern const Family kFalconH1Family;
extern const Family kQwen35Family;
extern const Family kQwen35MoeFamily;
extern const Family kQwen3NextFamily;
extern const Family kLfm2MoeFamily;
extern const Family kOlmoHybridFamily;
extern const Family kGraniteHybridFamily;
extern const Family kNemotronHFamily;
extern const Family kNemotronHMoeFamily;
extern const Family kKimiLinearFamily;
extern const Family kMiniMaxFamily;
extern const Family kPhi3Family;
extern const Family kGemma2Family;
extern const Family kOlmo2Family;
extern const Family kOlmo3Family;
extern const Family kGraniteFamily;
extern const Family kGlm4Family;
extern const Family kSmolLm3Family;
extern const Family kCohereFamily;
extern const Family kCohere2Family;
extern const Family kExaone4Family;
extern const Family kStarcoder2Family;
extern const Family kStableLmFamily;
extern const Family kSeedOssFamily;
extern const Family kArceeFamily;
extern const Family kHunyuanFamily;
extern const Family kMinistral3Family;
extern const Family kPhiFamily;
extern const Family kGptNeoxFamily;
extern const Family kGpt2Family;
extern const Family kNemotronFamily;
extern const Family kGemma3TextFamily;
extern const Family kGemma3Family;  // with the encoder for images
extern const Family kLlavaFamily;
extern const Family kQwen25VlFamily;
extern const Family kQwen3VlFamily;
extern const Family kQwen35VlFamily;
extern const Family kBertFamily;
extern const Family kBertMlmFamily;
extern const Family kBertScoreFamily;
extern const Family kRobertaFamily;
extern const Family kRobertaMlmFamily;
extern const Family kRobertaScoreFamily;
extern const Family kXlmRobertaFamily;
extern const Family kXlmRobertaMlmFamily;
extern const Family kXlmRobertaScoreFamily;
extern const Family kNomicBertFamily;
extern const Family kModernBertFamily;
extern const Family kModernBertMlmFamily;
extern const Family kModernBertScoreFamily;
extern const Family kT5Family;
extern const Family kT5EncoderFamily;
extern const Family kWhisperFamily;

// What a family makes of parameters, whether the file holds the weights or not.
struct FamilyReading {
  ModelSpec spec;  // valid
  WeightNaming naming;
  std::optional<VisionSpec> vision;  // likewise
  WeightNaming vision_naming;
  std::optional<EncoderSpec> encoder;
  WeightNaming encoder_naming;
};
// kUnsupported for an unknown architecture.
Result<FamilyReading> read_config(const nlohmann::json& config, const TensorFile& weights);
Result<FamilyReading> read_metadata(const GgufFile& file);

// A model's encoder for images as it would be in front of another decoder.
struct VisionReading {
  VisionSpec spec;  // valid
  WeightNaming naming;
};
// kUnsupported ("config.json") where the config is of a model that reads no images.
Result<VisionReading> read_vision(const nlohmann::json& config, const TensorFile& weights, const ModelSpec& decoder);

struct ImportedModel {
  ModelSpec spec;
  std::vector<WeightEntry> weights;
  std::optional<VisionSpec> vision;
  std::vector<WeightEntry> vision_weights;
  std::optional<EncoderSpec> encoder;
  std::vector<WeightEntry> encoder_weights;
};

// The same with every tensor checked. weights: of a quantized checkpoint what open_quantized makes of them
// (quantization/checkpoint.h).
Result<ImportedModel> import_config(const nlohmann::json& config, const TensorFile& weights);
Result<ImportedModel> import_gguf(const GgufFile& file);

}  // namespace headrace
