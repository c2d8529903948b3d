// A loaded model: spec, packed weights, tokenizer, chat template and generation defaults.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/hash.h"
#include "base/log.h"
#include "base/status.h"
#include "formats/gguf.h"
#include "media/image_processor.h"
#include "media/log_mel.h"
#include "model/encoder_weights.h"
#include "model/memory_plan.h"
#include "model/model_spec.h"
#include "model/speech_config.h"
#include "model/vision_weights.h"
#include "model/weights.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace headrace {

struct ModelHeader;  // model/model_header.h
struct ModelSource;

// Sampling values that the model's makers recommend; absent where the files say nothing.
struct GenerationDefaults {
  std::optional<bool> do_sample;
  std::optional<double> temperature, top_p, min_p, repetition_penalty;
  std::optional<int64_t> top_k;
};

// A matrix of a layer, and where it lay in the file.
struct MatrixSource {
  WeightEntry entry;
  std::vector<uint64_t> tensor_shape;
};

struct ModelLoadOptions {
  PackOptions pack;
  LoadProgress progress;       // may be empty
  bool load_tokenizer = true;  // false: tokenizer() is null and no chat template is parsed
  // Where packed weights are kept (model/packed_cache.h): "off", a path, or "auto" for the first file's path and
  // ".packed" (of a graft, its JSON file's).
  std::string packed_cache = "off";
  LogSink log;
};

// Immutable after load; every const member may be called from any thread.
class Model {
 public:
  static Result<std::shared_ptr<const Model>> load(const ModelSource& source, const ModelLoadOptions& options,
                                                   Backend& backend);
  static Result<std::shared_ptr<const Model>> load(ModelHeader header, const ModelLoadOptions& options,
                                                   Backend& backend);

  const ModelSpec& spec() const { return spec_; }
  const ModelWeights& weights() const { return weights_; }
  // Of the encoder for images; null where the model has none.
  const VisionSpec* vision() const { return vision_ ? &*vision_ : nullptr; }
  const VisionWeights& vision_weights() const { return vision_weights_; }
  // Of the encoder in front of the decoder, likewise.
  const EncoderSpec* encoder() const { return encoder_ ? &*encoder_ : nullptr; }
  const EncoderWeights& encoder_weights() const { return encoder_weights_; }
  // How a waveform becomes its features. kNotFound as below.
  const Result<LogMelSpec>& audio_processor() const { return audio_processor_; }
  // How images become pixel values. kNotFound where the files do not say; the reader's error where they say what cannot be
  // followed.
  const Result<ImageProcessorSpec>& image_processor() const { return image_processor_; }
  // Null when the file has none or it was not asked for.
  const std::shared_ptr<const text::Tokenizer>& tokenizer() const { return tokenizer_; }
  // kNotFound when the model has no template; the parser's error when it has one that cannot be used.
  Result<std::shared_ptr<const text::ChatTemplate>> chat_template() const { return chat_template_; }
  const std::string& chat_template_source() const { return chat_template_source_; }
  // The files hold templates; chat_template() says why, where none of them can be used.
  bool holds_chat_templates() const { return holds_chat_templates_; }
  const std::map<std::string, std::string>& special_tokens() const { return special_tokens_; }
  const GenerationDefaults& generation_defaults() const { return generation_defaults_; }
  // Of models that write down speech; else null.
  const SpeechConfig* speech() const { return speech_ ? &*speech_ : nullptr; }
  // Ids that end a generation, ascending.
  const std::vector<int32_t>& end_of_generation_ids() const { return end_of_generation_ids_; }
  // Why spec().pooling is unknown, where the files hold a recommendation that cannot be followed.
  const Status& why_no_pooling() const { return why_no_pooling_; }
  // Of the content and the arithmetic: what cached keys and values depend on beside tokens.
  const Hash128& identity() const { return identity_; }
  // As ModelHeader::describe().
  const std::string& description() const { return description_; }
  int64_t num_parameters() const { return num_parameters_; }
  const std::string& format() const { return format_; }
  // That it was read from; empty: the host opened its files.
  const std::string& path() const { return path_; }
  // general.architecture of a GGUF file; empty for other forms.
  const std::string& gguf_architecture() const { return gguf_architecture_; }
  const std::vector<MatrixSource>& layer_matrices() const { return layer_matrices_; }
  // Of a graft: folders of adapters that belong to all it computes. Who runs it applies them (engine/model_executor.h).
  const std::vector<std::string>& adapter_folders() const { return adapter_folders_; }
  // Of all parts as they are held.
  uint64_t weight_bytes() const { return weights_.bytes + vision_weights_.bytes + encoder_weights_.bytes; }
  MemoryPlan plan(uint64_t memory_bytes) const { return plan_memory(spec_, weight_bytes(), memory_bytes); }

 private:
  Model()
      : image_processor_(not_found("preprocessor_config.json", "the model's files hold none")),
        audio_processor_(not_found("preprocessor_config.json", "the model's files hold none")),
        chat_template_(not_found("", "the model has no chat template")) {}

  ModelSpec spec_;
  ModelWeights weights_;
  std::optional<VisionSpec> vision_;
  VisionWeights vision_weights_;
  Result<ImageProcessorSpec> image_processor_;
  std::optional<EncoderSpec> encoder_;
  EncoderWeights encoder_weights_;
  Result<LogMelSpec> audio_processor_;
  std::shared_ptr<const text::Tokenizer> tokenizer_;
  Result<std::shared_ptr<const text::ChatTemplate>> chat_template_;
  std::string chat_template_source_;
  bool holds_chat_templates_ = false;
  std::map<std::string, std::string> special_tokens_;
  GenerationDefaults generation_defaults_;
  std::optional<SpeechConfig> speech_;
  std::vector<int32_t> end_of_generation_ids_;
  Status why_no_pooling_;
  Hash128 identity_;
  std::string description_;
  int64_t num_parameters_ = 0;
  std::string format_, path_, gguf_architecture_;
  std::vector<MatrixSource> layer_matrices_;
  std::vector<std::string> adapter_folders_;
};

}  // namespace headrace
