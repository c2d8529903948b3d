#include "formats/model_folder.h"

#include <filesystem>

#include "base/byte_source.h"
#include "formats/safetensors.h"
#include "formats/text_quote.h"

namespace headrace {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxJsonBytes = 64 << 20;
constexpr uint64_t kMaxTokenizerBytes = 512 << 20;
constexpr uint64_t kMaxTemplateBytes = 16 << 20;

// The file's text; nothing when there is no such file.
Result<std::optional<std::string>> read_text(const fs::path& path, uint64_t max_bytes) {
  auto source = open_path(path.string());
  if (!source.ok()) {
    if (source.status().code() == StatusCode::kNotFound) return std::optional<std::string>();
    return source.status();
  }
  auto text = read_all(**source, max_bytes);
  if (!text.ok()) return text.status();
  return std::optional<std::string>(text.take());
}

// Null json when there is no such file.
Result<HeldJson<nlohmann::json>> read_json(const fs::path& path) {
  HEADRACE_ASSIGN_OR_RETURN(const auto text, read_text(path, kMaxJsonBytes));
  if (!text) return HeldJson<nlohmann::json>();
  JsonOptions options;
  options.python_floats = true;
  options.refuse_duplicate_keys = false;  // Python's json takes the last, and hand-edited configs have them
  HEADRACE_ASSIGN_OR_RETURN(auto json, parse_json(*text, path.string(), options));
  if (!json.is_object()) return malformed(path.string(), "is no JSON object");
  return json;
}

// chat_template of tokenizer_config.json or chat_template.json: a text, or a list of {"name", "template"}.
Status take_templates(const nlohmann::json& config, const std::string& file, ModelFolder* folder) {
  const auto it = config.is_object() ? config.find("chat_template") : config.end();
  if (!config.is_object() || it == config.end() || it->is_null()) return Status();
  const std::string place = file + ": chat_template";
  if (it->is_string()) {
    if (folder->chat_template.empty()) folder->chat_template = it->get<std::string>();
    return Status();
  }
  if (!it->is_array()) return malformed(place, "is neither a text nor a list of named templates");
  for (size_t i = 0; i < it->size(); ++i) {
    const nlohmann::json& item = (*it)[i];
    const auto text_of = [&item](const char* key) -> const std::string* {
      const auto member = item.is_object() ? item.find(key) : item.end();
      return item.is_object() && member != item.end() ? member->get_ptr<const std::string*>() : nullptr;
    };
    const std::string* name = text_of("name");
    const std::string* text = text_of("template");
    if (!name || !text) return malformed(fmt::format("{}[{}]", place, i), "has no name and template that are texts");
    if (*name == "default") {
      if (folder->chat_template.empty()) folder->chat_template = *text;
    } else if (!folder->named_chat_templates.emplace(*name, *text).second) {
      return malformed(fmt::format("{}[{}]", place, i), "'{}' is the name of two templates", quote_name(*name));
    }
  }
  return Status();
}

Status read_templates(const fs::path& root, ModelFolder* folder) {
  HEADRACE_ASSIGN_OR_RETURN(auto jinja, read_text(root / "chat_template.jinja", kMaxTemplateBytes));
  if (jinja) folder->chat_template = std::move(*jinja);
  std::error_code error;
  for (fs::directory_iterator it(root / "additional_chat_templates", error), end; !error && it != end;
       it.increment(error)) {
    if (it->path().extension() != ".jinja") continue;
    HEADRACE_ASSIGN_OR_RETURN(auto text, read_text(it->path(), kMaxTemplateBytes));
    if (text) folder->named_chat_templates.emplace(it->path().stem().string(), std::move(*text));
  }
  // A template file replaces those of the configuration, as in transformers.
  if (jinja || !folder->named_chat_templates.empty()) return Status();
  HEADRACE_RETURN_IF_ERROR(take_templates(folder->tokenizer_config, (root / "tokenizer_config.json").string(), folder));
  if (!folder->chat_template.empty()) return Status();
  HEADRACE_ASSIGN_OR_RETURN(const auto separate, read_json(root / "chat_template.json"));
  return take_templates(separate, (root / "chat_template.json").string(), folder);
}

}  // namespace

Result<ModelFolder> open_model_folder(const std::string& path, bool use_mmap) {
  const fs::path root(path);
  std::error_code error;
  if (!fs::is_directory(root, error)) return not_found(path, "is no folder");
  ModelFolder folder;
  HEADRACE_ASSIGN_OR_RETURN(folder.config, read_json(root / "config.json"));
  HEADRACE_ASSIGN_OR_RETURN(folder.generation_config, read_json(root / "generation_config.json"));
  HEADRACE_ASSIGN_OR_RETURN(folder.preprocessor_config, read_json(root / "preprocessor_config.json"));
  if (folder.preprocessor_config.is_null()) {
    HEADRACE_ASSIGN_OR_RETURN(auto processors, read_json(root / "processor_config.json"));
    const auto it = processors.is_object() ? processors.find("image_processor") : processors.end();
    if (it != processors.end()) static_cast<nlohmann::json&>(folder.preprocessor_config).swap(*it);
  }
  HEADRACE_ASSIGN_OR_RETURN(folder.tokenizer_config, read_json(root / "tokenizer_config.json"));
  HEADRACE_ASSIGN_OR_RETURN(auto tokenizer, read_text(root / "tokenizer.json", kMaxTokenizerBytes));
  if (tokenizer && tokenizer->empty()) return malformed((root / "tokenizer.json").string(), "is empty");
  if (tokenizer) folder.tokenizer_json = std::move(*tokenizer);
  HEADRACE_RETURN_IF_ERROR(read_templates(root, &folder));
  HEADRACE_ASSIGN_OR_RETURN(folder.embedding, read_embedding_modules(path));
  auto weights = SafetensorsFile::open_folder(path, use_mmap);
  if (weights.ok()) {
    folder.weights = weights.take();
  } else if (weights.status().code() != StatusCode::kNotFound || weights.status().place() != path) {
    return weights.status();  // a shard that is missing is kNotFound too, with the shard as place
  }
  if (!folder.weights && folder.config.is_null() && folder.tokenizer_config.is_null() &&
      folder.tokenizer_json.empty()) {
    return not_found(path, "holds no config.json, tokenizer or safetensors files");
  }
  return folder;
}

}  // namespace headrace
