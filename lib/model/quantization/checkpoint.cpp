#include "model/quantization/checkpoint.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "base/format_full.h"
#include "formats/text_quote.h"
#include "model/quantization/methods.h"

namespace headrace {
namespace {

constexpr const char* kKey = "quantization_config";

struct Method {
  std::string_view name;
  Status (*read)(const ConfigReader& config, QuantizedModules& modules);
};
constexpr Method kMethods[] = {
    {"gptq", read_gptq},
    {"awq", read_awq},
    {"compressed-tensors", read_compressed_tensors},
    {"fp8", read_fp8},
    {"modelopt", read_modelopt},
    {"mxfp4", read_mxfp4},
    {"bitsandbytes", read_bitsandbytes},
};

Result<const Method*> find_method(const ConfigReader& config) {
  HEADRACE_ASSIGN_OR_RETURN(const std::string name, config.text_or("quant_method", ""));
  std::vector<std::string_view> known;
  for (const Method& method : kMethods) {
    if (method.name == name) return &method;
    known.push_back(method.name);
  }
  return unsupported(config.place_of("quant_method"), "'{}' is not read (known: {})", quote_name(name),
                     fmt::join(known, ", "));
}

}  // namespace

Result<std::shared_ptr<TensorFile>> open_quantized(std::shared_ptr<TensorFile> file, const nlohmann::json& config) {
  const auto found = config.is_object() ? config.find(kKey) : config.end();
  if (!config.is_object() || found == config.end() || found->is_null()) return file;
  const std::string place = fmt::format("/{}", kKey);
  if (!found->is_object()) return malformed("config.json: " + place, "is no object");
  const ConfigReader reader(*found, place);
  QuantizedModules modules(file);
  const auto method = find_method(reader);
  if (!method.ok()) return method.status().within("config.json");
  HEADRACE_RETURN_IF_ERROR((*method)->read(reader, modules));
  HEADRACE_ASSIGN_OR_RETURN(std::shared_ptr<TensorFile> derived,
                            DerivedFile::create(std::move(file), std::move(modules.derived), modules.hidden));
  return derived;
}

Status check_not_converted(const ConfigReader& config, std::string_view key, const QuantizedModules& modules) {
  HEADRACE_ASSIGN_OR_RETURN(const std::vector<std::string> names, config.texts(key));
  for (const DerivedTensor& tensor : modules.derived) {
    const std::string_view module = std::string_view(tensor.entry.name).substr(0, tensor.entry.name.rfind('.'));
    if (std::find(names.begin(), names.end(), module) == names.end()) continue;
    return malformed(quote_name(tensor.entry.name), "is quantized, though {} names its module", config.place_of(key));
  }
  return {};
}

}  // namespace headrace
