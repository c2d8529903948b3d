#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <unordered_set>

#include "formats/json_writer.h"
#include "formats/safetensors.h"
#include "model/families/family.h"
#include "model/graft.h"
#include "model/model.h"
#include "model/model_header.h"
#include "model/quantization/checkpoint.h"

namespace headrace {

namespace {

namespace fs = std::filesystem;

constexpr uint64_t kFewestBytes = 8;  // of a safetensors file: the size of its header

bool starts_with_gguf(ByteSource& source) {
  std::byte magic[4];
  return source.size() >= sizeof magic && source.read(0, magic).ok() && std::memcmp(magic, "GGUF", 4) == 0;
}

Result<HeldJson<nlohmann::json>> parse_config(const std::string& text, const char* name) {
  if (text.empty()) return HeldJson<nlohmann::json>();
  JsonOptions options;
  options.python_floats = true;
  options.refuse_duplicate_keys = false;
  return parse_json(text, name, options);
}

Status open_gguf(std::shared_ptr<GgufFile> gguf, ModelHeader& header) {
  header.gguf = std::move(gguf);
  header.file = header.gguf;
  header.format = "gguf";
  HEADRACE_ASSIGN_OR_RETURN(auto imported, import_gguf(*header.gguf));
  header.spec = std::move(imported.spec);
  header.weights = std::move(imported.weights);
  header.encoder = std::move(imported.encoder);
  header.encoder_weights = std::move(imported.encoder_weights);
  return {};
}

Status open_folder(ModelFolder folder, ModelHeader& header) {
  header.folder = std::move(folder);
  header.file = header.folder.weights;
  header.format = "safetensors";
  if (header.file == nullptr) return not_found("model.safetensors", "the folder has no weights");
  if (header.folder.config.is_null()) return not_found("config.json", "needed beside safetensors files");
  HEADRACE_ASSIGN_OR_RETURN(header.file, open_quantized(header.file, header.folder.config));
  HEADRACE_ASSIGN_OR_RETURN(auto imported, import_config(header.folder.config, *header.file));
  header.spec = std::move(imported.spec);
  header.weights = std::move(imported.weights);
  header.vision = std::move(imported.vision);
  header.vision_weights = std::move(imported.vision_weights);
  header.encoder = std::move(imported.encoder);
  header.encoder_weights = std::move(imported.encoder_weights);
  const std::string& pooling = header.folder.embedding.pooling;
  if (pooling == "mean") header.spec.pooling = Pooling::kMean;
  if (pooling == "cls") header.spec.pooling = Pooling::kFirst;
  if (pooling == "lasttoken") header.spec.pooling = Pooling::kLast;
  return {};
}

Status open_by_path(const ModelSource& source, ModelHeader& header) {
  std::error_code error;
  const fs::path path(source.path);
  if (fs::is_directory(path, error)) {
    HEADRACE_ASSIGN_OR_RETURN(auto folder, open_model_folder(source.path, source.use_mmap));
    return open_folder(std::move(folder), header);
  }
  HEADRACE_ASSIGN_OR_RETURN(auto bytes, open_path(source.path));
  if (starts_with_gguf(*bytes)) {
    HEADRACE_ASSIGN_OR_RETURN(auto gguf, GgufFile::open_path(source.path, source.use_mmap));
    return open_gguf(std::move(gguf), header);
  }
  if (path.extension() != ".safetensors") {
    return unsupported("", "neither a GGUF file, a .safetensors file, a model folder nor the .json file of a graft");
  }
  HEADRACE_ASSIGN_OR_RETURN(auto weights, SafetensorsFile::open_path(source.path, source.use_mmap));
  const fs::path parent = path.parent_path();
  HEADRACE_ASSIGN_OR_RETURN(auto folder, open_model_folder(parent.empty() ? "." : parent.string()));
  folder.weights = std::move(weights);
  return open_folder(std::move(folder), header);
}

Status open_by_sources(const ModelSource& source, ModelHeader& header) {
  if (starts_with_gguf(*source.sources[0])) {
    HEADRACE_ASSIGN_OR_RETURN(auto gguf, GgufFile::open(source.sources));
    return open_gguf(std::move(gguf), header);
  }
  if (const uint64_t size = source.sources[0]->size(); size < kFewestBytes) {
    return malformed(source.sources[0]->name(), "{} bytes are neither a GGUF nor a safetensors file", size);
  }
  ModelFolder folder;
  HEADRACE_ASSIGN_OR_RETURN(folder.weights, SafetensorsFile::open(source.sources));
  HEADRACE_ASSIGN_OR_RETURN(folder.config, parse_config(source.config_json, "config.json"));
  HEADRACE_ASSIGN_OR_RETURN(folder.generation_config,
                            parse_config(source.generation_config_json, "generation_config.json"));
  HEADRACE_ASSIGN_OR_RETURN(folder.tokenizer_config,
                            parse_config(source.tokenizer_config_json, "tokenizer_config.json"));
  folder.tokenizer_json = source.tokenizer_json;
  folder.chat_template = source.chat_template;
  return open_folder(std::move(folder), header);
}

const TensorEntry* entry_of(const ModelHeader& header, const WeightEntry& weight) {
  return header.file->find(weight.file_name);
}

uint64_t elements(const std::vector<uint64_t>& shape) {
  uint64_t count = 1;
  for (const uint64_t size : shape) count *= size;  // checked when the file was opened
  return count;
}

}  // namespace

Result<ModelHeader> ModelHeader::read(const ModelSource& source) {
  ModelHeader header;
  if (source.path.empty() && source.sources.empty()) return invalid_argument("model", "neither a path nor sources");
  for (const auto& bytes : source.sources) {
    if (bytes == nullptr) return invalid_argument("model", "a source is null");
  }
  header.name = source.path.empty() ? source.sources[0]->name() : source.path;
  header.by_path = !source.path.empty();
  if (fs::path(source.path).extension() == ".json") return read_graft(source.path, source.use_mmap);
  const Status status = source.path.empty() ? open_by_sources(source, header) : open_by_path(source, header);
  if (!status.ok()) {
    return status.place().find(header.name) == std::string::npos ? status.within(header.name) : status;
  }
  return header;
}

uint64_t ModelHeader::weight_bytes(const PackOptions& options) const {
  uint64_t bytes = 0;
  for (const auto* part : {&weights, &vision_weights, &encoder_weights}) {
    for (const WeightEntry& weight : *part) {
      const TensorEntry* entry = entry_of(*this, weight);
      const bool as_float = options.decode_to_float || weight.shape.size() == 1;
      bytes += as_float ? elements(weight.shape) * sizeof(float) : bytes_in_file(weight, *entry);
    }
  }
  return bytes;
}

MemoryPlan ModelHeader::plan(uint64_t memory_bytes, const PackOptions& options) const {
  return plan_memory(spec, weight_bytes(options), memory_bytes);
}

int64_t ModelHeader::num_parameters() const {
  uint64_t count = 0;
  for (const auto* part : {&weights, &vision_weights, &encoder_weights}) {
    for (const WeightEntry& weight : *part) count += elements(weight.shape);
  }
  return static_cast<int64_t>(count);
}

std::string ModelHeader::describe(std::optional<uint64_t> held_bytes) const {
  uint64_t bytes = 0;
  struct TypeCount {
    uint64_t tensors = 0, parameters = 0, bytes = 0;
  };
  std::map<std::string_view, TypeCount> types;
  std::unordered_set<const TensorEntry*> seen;  // one tensor may hold several weights
  std::vector<WeightEntry> all = weights;
  all.insert(all.end(), vision_weights.begin(), vision_weights.end());
  all.insert(all.end(), encoder_weights.begin(), encoder_weights.end());
  for (const WeightEntry& weight : all) {
    const TensorEntry* entry = entry_of(*this, weight);
    TypeCount& type = types[dtype_name(entry->dtype)];
    const uint64_t own_bytes = bytes_in_file(weight, *entry);
    type.tensors += seen.insert(entry).second ? 1 : 0;
    type.parameters += elements(weight.shape);
    type.bytes += own_bytes;
    bytes += own_bytes;
  }
  const int64_t parameters = num_parameters();
  JsonWriter out;
  out.begin_object();
  write_spec(out, spec, /*with_frequencies=*/false);
  if (vision) {
    out.key("vision");
    out.begin_object();
    write_vision(out, *vision, /*with_frequencies=*/false);
    out.end_object();
  }
  if (encoder) {
    out.key("encoder");
    out.begin_object();
    write_encoder(out, *encoder, /*with_frequencies=*/false);
    if (encoder->audio && !folder.preprocessor_config.is_null()) {
      const auto processor = read_audio_processor(*encoder->audio, folder.preprocessor_config);
      if (processor.ok()) {
        out.member("sample_rate", processor->sample_rate);
        out.member("num_samples", processor->num_samples);
      }
    }
    out.end_object();
  }
  if (spec.pooling != Pooling::kUnknown) out.member("pooling", pooling_name(spec.pooling));
  out.list("eos_token_ids", spec.eos_token_ids);
  out.member("format", format);
  out.member("parameters", parameters);
  out.member("weight_bytes", held_bytes.value_or(bytes));
  out.member("bits_per_weight",
             parameters == 0 ? 0.0 : 8.0 * static_cast<double>(bytes) / static_cast<double>(parameters));
  out.key("types");
  out.begin_object();
  for (const auto& [type_name, count] : types) {
    out.key(type_name);
    out.begin_object();
    out.member("tensors", count.tensors);
    out.member("parameters", count.parameters);
    out.member("bytes", count.bytes);
    out.end_object();
  }
  out.end_object();
  out.key("kv_bytes_per_token");
  out.begin_object();
  for (const KvDType dtype : {KvDType::kF32, KvDType::kF16, KvDType::kBF16, KvDType::kQ8}) {
    out.member(kv_dtype_name(dtype), kv_bytes_per_token(spec, dtype));
  }
  out.end_object();
  out.member("state_bytes_per_sequence", state_floats(spec) * sizeof(float));
  if (!grafts.empty()) {
    out.key("grafts");
    out.begin_array();
    for (const GraftedPart& graft : grafts) {
      out.begin_object();
      if (!graft.layers.empty()) out.list("layers", graft.layers);
      out.member("part", graft.part);
      out.member("from", graft.from);
      if (!graft.layers.empty()) out.list("from_layers", graft.from_layers);
      out.end_object();
    }
    out.end_array();
  }
  out.end_object();
  return out.take();
}

}  // namespace headrace
