#include "model/families/registry.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "model/families/family.h"

namespace headrace {

namespace {

constexpr const Family* kFamilies[] = {&kLlamaFamily,
                                       &kMistralFamily,
                                       &kQwen2Family,
                                       &kQwen3Family,
                                       &kPhi3Family,
                                       &kGemma2Family,
                                       &kOlmo2Family,
                                       &kOlmo3Family,
                                       &kGraniteFamily,
                                       &kGlm4Family,
                                       &kSmolLm3Family,
                                       &kCohereFamily,
                                       &kCohere2Family,
                                       &kExaone4Family,
                                       &kStarcoder2Family,
                                       &kStableLmFamily,
                                       &kSeedOssFamily,
                                       &kArceeFamily,
                                       &kHunyuanFamily,
                                       &kMinistral3Family,
                                       &kPhiFamily,
                                       &kGptNeoxFamily,
                                       &kGpt2Family,
                                       &kNemotronFamily,
                                       &kGemma3nTextFamily,
                                       &kGemma3nFamily,
                                       &kGemma4TextFamily,
                                       &kGemma4Family,
                                       &kGemma3TextFamily,
                                       &kGemma3Family,
                                       &kMixtralFamily,
                                       &kQwen2MoeFamily,
                                       &kQwen3MoeFamily,
                                       &kGptOssFamily,
                                       &kErnie45MoeFamily,
                                       &kHyV3Family,
                                       &kDeepseekV2Family,
                                       &kDeepseekV3Family,
                                       &kGlm4MoeLiteFamily,
                                       &kDeepseekV32Family,
                                       &kDeepseekV4Family,
                                       &kGlmMoeDsaFamily,
                                       &kGlm4MoeFamily,
                                       &kMiniMaxM2Family,
                                       &kLlama4Family,
                                       &kMimoV2FlashFamily,
                                       &kLfm2Family,
                                       &kMambaFamily,
                                       &kMamba2Family,
                                       &kFalconH1Family,
                                       &kQwen35Family,
                                       &kQwen3NextFamily,
                                       &kQwen35MoeFamily,
                                       &kLfm2MoeFamily,
                                       &kOlmoHybridFamily,
                                       &kGraniteHybridFamily,
                                       &kNemotronHFamily,
                                       &kNemotronHMoeFamily,
                                       &kKimiLinearFamily,
                                       &kMiniMaxFamily,
                                       &kLlavaFamily,
                                       &kQwen25VlFamily,
                                       &kQwen3VlFamily,
                                       &kQwen35VlFamily,
                                       &kBertFamily,
                                       &kBertMlmFamily,
                                       &kBertScoreFamily,
                                       &kRobertaFamily,
                                       &kRobertaMlmFamily,
                                       &kRobertaScoreFamily,
                                       &kXlmRobertaFamily,
                                       &kXlmRobertaMlmFamily,
                                       &kXlmRobertaScoreFamily,
                                       &kNomicBertFamily,
                                       &kModernBertFamily,
                                       &kModernBertMlmFamily,
                                       &kModernBertScoreFamily,
                                       &kT5Family,
                                       &kT5EncoderFamily,
                                       &kWhisperFamily};

std::string known_names(std::string_view Family::*field) {
  std::string out;
  for (const Family* family : kFamilies) {
    if ((family->*field).empty() || out.find(family->*field) != std::string::npos) continue;
    if (!out.empty()) out += ", ";
    out += family->*field;
  }
  return out;
}

Result<const Family*> find_by_config(const ConfigReader& config) {
  HEADRACE_ASSIGN_OR_RETURN(const auto architectures, config.texts("architectures"));
  HEADRACE_ASSIGN_OR_RETURN(std::string model_type, config.text_or("model_type", ""));
  if (model_type == "kimi_k2") model_type = "deepseek_v3";  // with other numbers
  if (architectures.size() > 1) return unsupported("/architectures", "names {} architectures", architectures.size());
  if (architectures.empty() && model_type.empty()) return malformed("/architectures", "missing");
  for (const Family* family : kFamilies) {
    if (family->from_config == nullptr) continue;
    if (!architectures.empty() && family->hf_architecture != architectures[0]) continue;
    if (architectures.empty() && family->hf_model_type != model_type) continue;
    if (!model_type.empty() && family->hf_model_type != model_type) {
      return malformed("/model_type", "'{}' does not go with architecture '{}'", model_type, family->hf_architecture);
    }
    return family;
  }
  if (architectures.empty()) {
    return unsupported("/model_type", "unknown model type '{}' (known: {})", model_type,
                       known_names(&Family::hf_model_type));
  }
  return unsupported("/architectures", "unknown architecture '{}' (known: {})", architectures[0],
                     known_names(&Family::hf_architecture));
}

Result<const Family*> find_by_gguf(const GgufFile& file) {
  HEADRACE_ASSIGN_OR_RETURN(const std::string name, file.get_string("general.architecture"));
  for (const Family* family : kFamilies) {
    if (!name.empty() && family->gguf_architecture == name) return family;
  }
  return unsupported("general.architecture", "unknown architecture '{}' (known: {})", name,
                     known_names(&Family::gguf_architecture));
}

Result<bool> same_bytes(const TensorEntry& a, const TensorEntry& b, const TensorFile& file) {
  if (a.dtype != b.dtype || a.bytes != b.bytes) return false;
  constexpr uint64_t kRun = uint64_t{1} << 20;
  std::vector<std::byte> bytes_a(std::min(a.bytes, kRun)), bytes_b(bytes_a.size());
  for (uint64_t begin = 0; begin < a.bytes; begin += kRun) {
    const auto count = static_cast<size_t>(std::min(kRun, a.bytes - begin));
    HEADRACE_RETURN_IF_ERROR(file.read(a, begin, std::span(bytes_a).first(count)));
    HEADRACE_RETURN_IF_ERROR(file.read(b, begin, std::span(bytes_b).first(count)));
    if (!std::equal(bytes_a.begin(), bytes_a.begin() + static_cast<std::ptrdiff_t>(count), bytes_b.begin()))
      return false;
  }
  return true;
}

// A file may hold a head that is no copy of the embeddings though its config calls the two tied. It is the head then, as it is
// in transformers.
Status untie_own_head(const WeightNaming& naming, const TensorFile& weights, ModelSpec& spec) {
  if (!spec.head.tied || spec.head.kind != HeadKind::kVocabulary) return {};
  const std::vector<uint64_t> shape = {static_cast<uint64_t>(spec.vocab_size), static_cast<uint64_t>(spec.hidden_size)};
  HEADRACE_ASSIGN_OR_RETURN(
      const std::vector<WeightEntry> both,
      resolve_listed({{"embed.weight", "", shape}, {"lm_head.weight", "", shape}}, naming, weights));
  const TensorEntry* const embed = weights.find(both[0].file_name);
  const TensorEntry* const head = weights.find(both[1].file_name);
  if (embed == nullptr || head == nullptr || embed == head) return {};
  HEADRACE_ASSIGN_OR_RETURN(spec.head.tied, same_bytes(*embed, *head, weights));
  return {};
}

}  // namespace

std::span<const Family* const> all_families() { return kFamilies; }

const Family* find_family(std::string_view hf_model_type) {
  const auto found = std::ranges::find(kFamilies, hf_model_type, &Family::hf_model_type);
  return found == std::end(kFamilies) ? nullptr : *found;
}

Result<FamilyReading> read_config(const nlohmann::json& config, const TensorFile& weights) {
  if (!config.is_object()) return malformed("config.json", "missing, or not an object");
  const ConfigReader reader(config, "");
  FamilyReading out;
  const auto read = [&]() -> Status {
    HEADRACE_ASSIGN_OR_RETURN(const Family* family, find_by_config(reader));
    HEADRACE_ASSIGN_OR_RETURN(out.spec, family->from_config(reader, weights));
    out.naming = family->hf_names(weights);
    HEADRACE_RETURN_IF_ERROR(validate_spec(out.spec));
    if (family->encoder_from_config != nullptr) {
      HEADRACE_ASSIGN_OR_RETURN(out.encoder, family->encoder_from_config(reader, out.spec));
      out.encoder_naming = family->encoder_names(weights);
      HEADRACE_RETURN_IF_ERROR(validate_encoder(*out.encoder, out.spec));
    }
    if (family->vision_from_config == nullptr) return {};
    HEADRACE_ASSIGN_OR_RETURN(out.vision, family->vision_from_config(reader, out.spec));
    out.vision_naming = family->vision_names(weights);
    return validate_vision(*out.vision);
  };
  if (const Status status = read(); !status.ok()) return status.within("config.json");
  HEADRACE_RETURN_IF_ERROR(untie_own_head(out.naming, weights, out.spec));
  return out;
}

Result<VisionReading> read_vision(const nlohmann::json& config, const TensorFile& weights, const ModelSpec& decoder) {
  // All of the config is read first, so that what is not known is refused wherever it stands.
  HEADRACE_ASSIGN_OR_RETURN(const FamilyReading whole, read_config(config, weights));
  if (!whole.vision) return unsupported("config.json", "a {} reads no images", whole.spec.architecture);
  const ConfigReader reader(config, "");
  VisionReading out;
  const auto read = [&]() -> Status {
    HEADRACE_ASSIGN_OR_RETURN(const Family* family, find_by_config(reader));
    // Its token for images is one of its own vocabulary.
    ModelSpec sized = decoder;
    sized.vocab_size = std::max(decoder.vocab_size, whole.spec.vocab_size);
    HEADRACE_ASSIGN_OR_RETURN(out.spec, family->vision_from_config(reader, sized));
    return validate_vision(out.spec);
  };
  if (const Status status = read(); !status.ok()) return status.within("config.json");
  out.naming = whole.vision_naming;
  return out;
}

Result<FamilyReading> read_metadata(const GgufFile& file) {
  HEADRACE_ASSIGN_OR_RETURN(const Family* family, find_by_gguf(file));
  FamilyReading out;
  const GgufReader reader(file, std::string(family->gguf_architecture));
  HEADRACE_ASSIGN_OR_RETURN(out.spec, family->from_gguf(reader));
  HEADRACE_RETURN_IF_ERROR(validate_spec(out.spec));
  out.naming = family->gguf_names();
  if (family->encoder_from_gguf == nullptr) return out;
  HEADRACE_ASSIGN_OR_RETURN(out.encoder, family->encoder_from_gguf(reader, out.spec));
  out.encoder_naming = family->gguf_encoder_names();
  HEADRACE_RETURN_IF_ERROR(validate_encoder(*out.encoder, out.spec));
  return out;
}

namespace {

Result<ImportedModel> with_weights(FamilyReading reading, const TensorFile& file) {
  ImportedModel out;
  HEADRACE_ASSIGN_OR_RETURN(out.weights, resolve_weights(reading.spec, reading.naming, file));
  if (reading.vision) {
    const ModelSpec& encoder = reading.vision->encoder;
    HEADRACE_ASSIGN_OR_RETURN(out.vision_weights,
                              resolve_weights(list_vision_weights(*reading.vision), encoder.layers.size(),
                                              encoder.architecture, reading.vision_naming, file));
  }
  if (reading.encoder) {
    const ModelSpec& encoder = reading.encoder->encoder;
    HEADRACE_ASSIGN_OR_RETURN(out.encoder_weights,
                              resolve_weights(list_encoder_weights(*reading.encoder), encoder.layers.size(),
                                              encoder.architecture, reading.encoder_naming, file));
  }
  out.encoder = std::move(reading.encoder);
  out.spec = std::move(reading.spec);
  out.vision = std::move(reading.vision);
  return out;
}

}  // namespace

Result<ImportedModel> import_config(const nlohmann::json& config, const TensorFile& weights) {
  HEADRACE_ASSIGN_OR_RETURN(FamilyReading reading, read_config(config, weights));
  return with_weights(std::move(reading), weights);
}

Result<ImportedModel> import_gguf(const GgufFile& file) {
  HEADRACE_ASSIGN_OR_RETURN(FamilyReading reading, read_metadata(file));
  return with_weights(std::move(reading), file);
}

}  // namespace headrace
