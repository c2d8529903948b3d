#include "model/model.h"

#include <sys/stat.h>

#include <algorithm>
#include <new>

#include "model/config_reader.h"
#include "model/identity.h"
#include "model/model_header.h"
#include "model/op_uses.h"
#include "model/packed_cache.h"
#include "model/tokenizer_loader.h"

namespace headrace {

namespace {

Status read_number(const ConfigReader& config, const char* key, std::optional<double>& out) {
  if (!config.has(key)) return {};
  HEADRACE_ASSIGN_OR_RETURN(out, config.number_or(key, 0));
  return {};
}

// generation_config.json: recommended sampling values and the ids that end a generation.
Status read_generation_config(const nlohmann::json& json, int32_t vocab_size, GenerationDefaults& out,
                              std::vector<int32_t>& end_ids) {
  if (!json.is_object()) return {};
  const ConfigReader config(json, "");
  if (config.has("do_sample")) {
    HEADRACE_ASSIGN_OR_RETURN(out.do_sample, config.boolean_or("do_sample", false));
  }
  HEADRACE_RETURN_IF_ERROR(read_number(config, "temperature", out.temperature));
  HEADRACE_RETURN_IF_ERROR(read_number(config, "top_p", out.top_p));
  HEADRACE_RETURN_IF_ERROR(read_number(config, "min_p", out.min_p));
  HEADRACE_RETURN_IF_ERROR(read_number(config, "repetition_penalty", out.repetition_penalty));
  if (config.has("top_k")) {
    HEADRACE_ASSIGN_OR_RETURN(out.top_k, config.integer("top_k", 0, INT32_MAX));
  }
  HEADRACE_ASSIGN_OR_RETURN(const std::vector<int64_t> eos, config.integers("eos_token_id"));
  for (const int64_t id : eos) {
    if (id < 0 || id >= vocab_size)
      return malformed("/eos_token_id", "{} is outside the vocabulary of {}", id, vocab_size);
    end_ids.push_back(static_cast<int32_t>(id));
  }
  return {};
}

Result<SpeechConfig> read_speech(const ModelHeader& header) {
  const ModelFolder& folder = header.folder;
  const bool separate = folder.generation_config.is_object();
  const nlohmann::json& json = separate ? folder.generation_config : folder.config;
  const int32_t end = header.spec.eos_token_ids.empty() ? 0 : header.spec.eos_token_ids.front();
  auto speech = read_speech_config(json, header.encoder->start_token_id, end, header.spec.vocab_size);
  if (!speech.ok()) return speech.status().within(separate ? "generation_config.json" : "config.json");
  return speech;
}

// general.sampling.*, which newer converters copy from generation_config.json.
Status read_gguf_sampling(const GgufFile& file, GenerationDefaults& out) {
  const std::pair<const char*, std::optional<double>*> kNumbers[] = {
      {"general.sampling.temp", &out.temperature},
      {"general.sampling.top_p", &out.top_p},
      {"general.sampling.min_p", &out.min_p},
      {"general.sampling.penalty_repeat", &out.repetition_penalty}};
  for (const auto& [key, target] : kNumbers) {
    if (file.find_metadata(key) == nullptr) continue;
    HEADRACE_ASSIGN_OR_RETURN(*target, file.get_f64(key));
  }
  if (file.find_metadata("general.sampling.top_k") != nullptr) {
    HEADRACE_ASSIGN_OR_RETURN(out.top_k, file.get_i64("general.sampling.top_k"));
  }
  return {};
}

// Where the options and the backend have packed weights kept, or null.
std::unique_ptr<PackedCache> open_packed_cache(const ModelHeader& header, std::string_view content,
                                               const ModelLoadOptions& options, const Backend& backend) {
  if (options.packed_cache == "off" || backend.packed_layout().empty()) return nullptr;
  const bool is_auto = options.packed_cache == "auto";
  if (is_auto && !header.by_path) {
    log_line(options.log, LogLevel::kWarning, "model",
             "packed weights are not kept: a model without a path has no place beside it");
    return nullptr;
  }
  // Who may read the model may read its weights in another order.
  uint32_t mode = 0600;
  struct stat info;
  if (header.by_path && ::stat(header.file->source_name(0).c_str(), &info) == 0) mode = info.st_mode & 0666;
  const std::string& beside = header.grafts.empty() ? header.file->source_name(0) : header.name;
  return std::make_unique<PackedCache>(is_auto ? beside + ".packed" : options.packed_cache,
                                       packed_identity(content, *header.file, options.pack), backend.packed_layout(),
                                       mode, options.log);
}

std::vector<MatrixSource> matrices_of_layers(const ModelHeader& header) {
  std::vector<MatrixSource> out;
  for (const WeightEntry& entry : header.weights) {
    if (entry.shape.size() != 2 || !entry.name.starts_with("layers.")) continue;
    out.push_back({entry, header.file->find(entry.file_name)->shape});
  }
  return out;
}

}  // namespace

Result<std::shared_ptr<const Model>> Model::load(const ModelSource& source, const ModelLoadOptions& options,
                                                 Backend& backend) {
  HEADRACE_ASSIGN_OR_RETURN(ModelHeader header, ModelHeader::read(source));
  return load(std::move(header), options, backend);
}

Result<std::shared_ptr<const Model>> Model::load(ModelHeader header, const ModelLoadOptions& options,
                                                 Backend& backend) {
  std::shared_ptr<Model> model(new Model());
  const auto fill = [&]() -> Status {
    HEADRACE_RETURN_IF_ERROR(check_op_uses(header.spec, backend));
    if (header.vision) HEADRACE_RETURN_IF_ERROR(backend.check_use({"paged_attention", "images"}));
    if (header.encoder) HEADRACE_RETURN_IF_ERROR(backend.check_use({"paged_attention", "rows of an encoder"}));
    model->spec_ = header.spec;
    model->format_ = header.format;
    if (header.by_path) model->path_ = header.name;
    model->num_parameters_ = header.num_parameters();
    model->why_no_pooling_ = header.folder.embedding.problem;
    std::vector<int32_t>& end_ids = model->end_of_generation_ids_;
    end_ids = header.spec.eos_token_ids;
    if (header.gguf != nullptr) {
      HEADRACE_ASSIGN_OR_RETURN(model->gguf_architecture_, header.gguf->get_string("general.architecture"));
      HEADRACE_RETURN_IF_ERROR(read_gguf_sampling(*header.gguf, model->generation_defaults_));
    } else {
      const Status status = read_generation_config(header.folder.generation_config, header.spec.vocab_size,
                                                   model->generation_defaults_, end_ids);
      if (!status.ok()) return status.within("generation_config.json");
      if (header.encoder && header.encoder->audio) {
        HEADRACE_ASSIGN_OR_RETURN(model->speech_, read_speech(header));
      }
    }
    if (options.load_tokenizer) {
      HEADRACE_ASSIGN_OR_RETURN(auto loaded,
                                header.gguf != nullptr ? load_tokenizer(*header.gguf) : load_tokenizer(header.folder));
      if (loaded.tokenizer != nullptr) {
        // A vocabulary may name more tokens than the embedding has rows (Gemma's image token): the forward
        // pass refuses such an id by name when it is used.
        const auto& ids = loaded.tokenizer->end_of_generation_ids();
        end_ids.insert(end_ids.end(), ids.begin(), ids.end());
        if (model->speech_) complete_speech_config(*model->speech_, *loaded.tokenizer);
      }
      model->tokenizer_ = std::move(loaded.tokenizer);
      model->special_tokens_ = std::move(loaded.special_tokens);
      model->chat_template_source_ = std::move(loaded.chat_template);
      model->holds_chat_templates_ = !model->chat_template_source_.empty() || !loaded.no_default_template.ok();
      if (!loaded.no_default_template.ok()) model->chat_template_ = loaded.no_default_template;
      if (!model->chat_template_source_.empty()) {
        model->chat_template_ = text::ChatTemplate::parse(model->chat_template_source_, model->special_tokens_);
      }
    }
    std::sort(end_ids.begin(), end_ids.end());
    end_ids.erase(std::unique(end_ids.begin(), end_ids.end()), end_ids.end());
    HEADRACE_ASSIGN_OR_RETURN(const std::string content, content_text(header));
    model->identity_ = model_identity(content, options.pack, backend);
    const auto cache = open_packed_cache(header, content, options, backend);
    HEADRACE_ASSIGN_OR_RETURN(
        model->weights_, ModelWeights::load(header.spec, header.weights, *header.file, options.pack, options.progress,
                                            backend, cache.get()));
    if (cache != nullptr) cache->finish();
    if (header.vision) {
      model->vision_ = header.vision;
      const nlohmann::json& processor = header.folder.preprocessor_config;
      if (!processor.is_null()) model->image_processor_ = read_image_processor(processor);
      HEADRACE_ASSIGN_OR_RETURN(model->vision_weights_, VisionWeights::load(*header.vision, header.vision_weights,
                                                                            *header.file, options.pack, backend));
    }
    model->adapter_folders_ = header.adapters;
    if (header.encoder) {
      model->encoder_ = header.encoder;
      const nlohmann::json& processor = header.folder.preprocessor_config;
      if (header.encoder->audio && !processor.is_null()) {
        model->audio_processor_ = read_audio_processor(*header.encoder->audio, processor);
      }
      HEADRACE_ASSIGN_OR_RETURN(model->encoder_weights_, EncoderWeights::load(*header.encoder, header.encoder_weights,
                                                                              *header.file, options.pack, backend));
    }
    model->layer_matrices_ = matrices_of_layers(header);
    model->description_ = header.describe(model->weight_bytes());
    return {};
  };
  try {
    const Status status = fill();
    if (!status.ok()) {
      return status.place().find(header.name) == std::string::npos ? status.within(header.name) : status;
    }
  } catch (const std::bad_alloc&) {
    return out_of_memory(header.name, "not enough memory to load the model");
  }
  return std::shared_ptr<const Model>(std::move(model));
}

}  // namespace headrace
