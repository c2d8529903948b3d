#include "formats/embedding_modules.h"

#include <filesystem>
#include <optional>

#include "base/byte_source.h"
#include "formats/json.h"
#include "formats/text_quote.h"

namespace headrace {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxJsonBytes = 1 << 20;

// Null json when there is no such file.
Result<HeldJson<nlohmann::json>> read_json(const fs::path& path) {
  auto source = open_path(path.string());
  if (!source.ok()) {
    if (source.status().code() == StatusCode::kNotFound) return HeldJson<nlohmann::json>();
    return source.status();
  }
  HEADRACE_ASSIGN_OR_RETURN(const std::string text, read_all(**source, kMaxJsonBytes));
  JsonOptions options;
  options.python_floats = true;
  options.refuse_duplicate_keys = false;
  return parse_json(text, path.string(), options);
}

std::string text_of(const nlohmann::json& object, const char* key) {
  const auto it = object.is_object() ? object.find(key) : object.end();
  return object.is_object() && it != object.end() && it->is_string() ? it->get<std::string>() : std::string();
}

// The one mode of 1_Pooling/config.json that is on: a key for each, or one with its name.
Result<std::string> read_mode(const fs::path& path) {
  HEADRACE_ASSIGN_OR_RETURN(const auto json, read_json(path));
  if (!json.is_object()) return malformed(path.string(), "missing, or not an object");
  std::string mode = text_of(json, "pooling_mode");
  constexpr std::string_view kPrefix = "pooling_mode_";
  for (const auto& [key, value] : json.items()) {
    if (!key.starts_with(kPrefix) || value != true) continue;
    std::string name = key.substr(kPrefix.size());
    if (name == "cls_token") name = "cls";
    if (name.ends_with("_tokens")) name.resize(name.size() - std::string_view("_tokens").size());
    if (!mode.empty() && mode != name) {
      return unsupported(path.string(), "more than one pooling: {} and {}", quote_name(mode), quote_name(name));
    }
    mode = name;
  }
  if (mode == "mean" || mode == "cls" || mode == "lasttoken") return mode;
  return unsupported(path.string(), "the pooling '{}' is not supported", quote_name(mode));
}

Result<std::string> read_pooling(const fs::path& root, const nlohmann::json& modules, const std::string& file) {
  std::string pooling;
  for (const auto& module : modules) {
    const std::string type = text_of(module, "type"), kind = type.substr(type.rfind('.') + 1);
    if (kind == "Transformer" || kind == "Normalize") continue;
    if (kind != "Pooling") return unsupported(file, "a module of the type '{}'", quote_name(type));
    const fs::path path(text_of(module, "path"));
    if (path.has_parent_path() || path == "..")
      return malformed(file, "'{}' is no folder in this one", quote_name(path.string()));
    HEADRACE_ASSIGN_OR_RETURN(pooling, read_mode(root / path / "config.json"));
  }
  return pooling;
}

}  // namespace

Result<EmbeddingModules> read_embedding_modules(const std::string& folder) {
  const fs::path path = fs::path(folder) / "modules.json";
  HEADRACE_ASSIGN_OR_RETURN(const auto modules, read_json(path));
  EmbeddingModules out;
  if (modules.is_null()) return out;
  if (!modules.is_array()) return malformed(path.string(), "is no list of modules");
  auto pooling = read_pooling(folder, modules, path.string());
  if (pooling.ok()) {
    out.pooling = pooling.take();
  } else if (pooling.status().code() == StatusCode::kUnsupported) {
    out.problem = pooling.status();
  } else {
    return pooling.status();
  }
  return out;
}

}  // namespace headrace
