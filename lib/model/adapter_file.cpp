#include "model/adapter_file.h"

#include <cmath>

#include "base/byte_source.h"
#include "formats/gguf.h"
#include "formats/safetensors.h"
#include "model/adapter_config.h"

namespace headrace {

namespace {

constexpr uint64_t kMaxConfigBytes = uint64_t{1} << 20;

// What adapters' tensors are called: prefix, a module's name, and the one or the other end.
struct Names {
  std::string_view prefix, down, up;
};
constexpr Names kPeftNames = {"base_model.model.", ".lora_A.weight", ".lora_B.weight"};
constexpr Names kGgufNames = {"", ".weight.lora_a", ".weight.lora_b"};

Status find_pairs(const Names& names, AdapterFile& out) {
  for (const TensorEntry& tensor : out.file->tensors()) {
    const std::string_view name = tensor.name;
    const bool is_up = name.ends_with(names.up);
    if (!name.starts_with(names.prefix) || (!is_up && !name.ends_with(names.down))) {
      return unsupported(tensor.name, "is no tensor of a low-rank adapter");
    }
    const std::string stem(name.substr(0, name.size() - (is_up ? names.up : names.down).size()));
    const std::string other = stem + std::string(is_up ? names.down : names.up);
    const TensorEntry* const found = out.file->find(other);
    if (found == nullptr) return not_found(other, "the file has no such tensor");
    if (!is_up) out.pairs.push_back({stem.substr(names.prefix.size()), &tensor, found, 0, 0.0});
  }
  return out.pairs.empty() ? malformed("", "holds no tensors") : Status();
}

Result<AdapterFile> open_peft(const std::string& folder) {
  const std::string config_path = folder + "/adapter_config.json";
  HEADRACE_ASSIGN_OR_RETURN(const std::shared_ptr<ByteSource> config_file, open_path(config_path));
  HEADRACE_ASSIGN_OR_RETURN(const std::string config_text, read_all(*config_file, kMaxConfigBytes));
  HEADRACE_ASSIGN_OR_RETURN(const AdapterConfig config, AdapterConfig::parse(config_text, config_path));
  AdapterFile out;
  out.path = folder + "/adapter_model.safetensors";
  HEADRACE_ASSIGN_OR_RETURN(out.file, SafetensorsFile::open_path(out.path));
  if (const Status status = find_pairs(kPeftNames, out); !status.ok()) return status.within(out.path);
  for (AdapterFile::Pair& pair : out.pairs) {
    HEADRACE_ASSIGN_OR_RETURN(pair.rank, config.rank(pair.module));
    HEADRACE_ASSIGN_OR_RETURN(pair.scale, config.scale(pair.module));
  }
  return out;
}

Status check_gguf(const GgufFile& gguf, const Model& model) {
  for (const auto& [key, wanted] : {std::pair<std::string_view, std::string_view>("general.type", "adapter"),
                                    {"adapter.type", "lora"},
                                    {"general.architecture", model.gguf_architecture()}}) {
    HEADRACE_ASSIGN_OR_RETURN(const std::string value, gguf.get_string(key));
    if (value != wanted) return unsupported(std::string(key), "'{}' is not {}", value, wanted);
  }
  for (const auto& [key, value] : gguf.metadata()) {
    if (!key.starts_with("adapter.")) continue;
    // The last two say what the adapter was made for.
    constexpr std::string_view kKnown[] = {"adapter.type", "adapter.lora.alpha", "adapter.lora.task_name",
                                           "adapter.lora.prompt_prefix"};
    if (std::find(std::begin(kKnown), std::end(kKnown), key) != std::end(kKnown)) continue;
    return unsupported(key, "changes what the adapter computes in a way that is not built");
  }
  return {};
}

Result<AdapterFile> open_gguf(const Model& model, const std::string& path) {
  AdapterFile out;
  out.path = path;
  HEADRACE_ASSIGN_OR_RETURN(const std::shared_ptr<GgufFile> gguf, GgufFile::open_path(path));
  out.file = gguf;
  const auto read = [&]() -> Status {
    HEADRACE_RETURN_IF_ERROR(check_gguf(*gguf, model));
    HEADRACE_ASSIGN_OR_RETURN(const double alpha, gguf->get_f64_or("adapter.lora.alpha", 0.0));
    if (!std::isfinite(alpha)) return malformed("adapter.lora.alpha", "{} is not finite", alpha);
    HEADRACE_RETURN_IF_ERROR(find_pairs(kGgufNames, out));
    for (AdapterFile::Pair& pair : out.pairs) {
      const std::vector<uint64_t>& shape = pair.down->shape;
      if (shape.size() < 2) return malformed(pair.down->name, "is no matrix");
      const uint64_t rank = shape[shape.size() - 2];
      if (rank == 0 || rank > AdapterConfig::kMaxRank) return malformed(pair.down->name, "{} is no rank", rank);
      pair.rank = static_cast<int64_t>(rank);
      pair.scale = alpha == 0.0 ? 1.0 : alpha / static_cast<double>(rank);
    }
    return {};
  };
  if (const Status status = read(); !status.ok()) return status.within(path);
  return out;
}

}  // namespace

Result<AdapterFile> AdapterFile::open(const Model& model, const std::string& path) {
  const bool is_file = path.ends_with(".gguf");
  if (is_file != (model.format() == "gguf")) {
    return unsupported(path, "adapters of a model in {} are {}", is_file ? "Hugging Face's form" : "GGUF",
                       is_file ? "folders of PEFT, not GGUF files" : "GGUF files, not folders of PEFT");
  }
  return is_file ? open_gguf(model, path) : open_peft(path);
}

}  // namespace headrace
