#include "model/config_reader.h"

#include <algorithm>
#include <cmath>

#include "base/format_full.h"
#include "formats/json.h"

namespace headrace {

namespace {

// What computes with it has float32.
bool is_float(const std::optional<double>& number) { return number && std::isfinite(static_cast<float>(*number)); }

const nlohmann::json& empty_object() {
  static const nlohmann::json kEmpty = nlohmann::json::object();
  return kEmpty;
}
}  // namespace

const nlohmann::json* ConfigReader::find(std::string_view key) const {
  const auto it = object_.find(key);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

bool ConfigReader::contains_null(std::string_view key) const {
  const auto it = object_.find(key);
  return it != object_.end() && it->is_null();
}

Result<int64_t> ConfigReader::integer(std::string_view key, int64_t low, int64_t high) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) return malformed(place_of(key), "missing");
  const std::optional<int64_t> number = json_integer(*value);
  if (!number) return malformed(place_of(key), "not a whole number");
  if (*number < low || *number > high) return malformed(place_of(key), "{} is outside [{}, {}]", *number, low, high);
  return *number;
}

Result<int64_t> ConfigReader::integer_or(std::string_view key, int64_t low, int64_t high, int64_t fallback) const {
  if (has(key)) return integer(key, low, high);
  if (fallback > high) return malformed(place_of(key), "missing, and its default {} is above {}", fallback, high);
  return fallback;
}

Result<double> ConfigReader::number_or(std::string_view key, double fallback) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) return fallback;
  const std::optional<double> number = json_number(*value);
  if (!is_float(number)) return malformed(place_of(key), "not a finite number");
  return *number;
}

Result<double> ConfigReader::positive_or(std::string_view key, double fallback) const {
  HEADRACE_ASSIGN_OR_RETURN(const double number, number_or(key, fallback));
  if (!(static_cast<float>(number) > 0)) return malformed(place_of(key), "{} is not a positive number", number);
  return number;
}

Result<bool> ConfigReader::boolean_or(std::string_view key, bool fallback) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) return malformed(place_of(key), "not true or false");
  return value->get<bool>();
}

Result<std::string> ConfigReader::text_or(std::string_view key, std::string fallback) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_string()) return malformed(place_of(key), "not a string");
  return value->get<std::string>();
}

Result<std::vector<std::string>> ConfigReader::texts(std::string_view key) const {
  std::vector<std::string> out;
  const nlohmann::json* value = find(key);
  if (value == nullptr) return out;
  if (!value->is_array()) return malformed(place_of(key), "not a list");
  for (const auto& item : *value) {
    if (!item.is_string()) return malformed(place_of(key), "not a list of strings");
    out.push_back(item.get<std::string>());
  }
  return out;
}

Result<std::vector<int64_t>> ConfigReader::integers(std::string_view key) const {
  std::vector<int64_t> out;
  const nlohmann::json* value = find(key);
  if (value == nullptr) return out;
  const size_t count = value->is_array() ? value->size() : 1;
  for (size_t i = 0; i < count; ++i) {
    const std::optional<int64_t> number = json_integer(value->is_array() ? (*value)[i] : *value);
    if (!number) return malformed(place_of(key), "not a whole number or a list of them");
    out.push_back(*number);
  }
  return out;
}

Result<std::vector<double>> ConfigReader::numbers(std::string_view key) const {
  std::vector<double> out;
  const nlohmann::json* value = find(key);
  if (value == nullptr) return out;
  if (!value->is_array()) return malformed(place_of(key), "not a list");
  for (const auto& item : *value) {
    const std::optional<double> number = json_number(item);
    if (!is_float(number)) return malformed(place_of(key), "not a list of finite numbers");
    out.push_back(*number);
  }
  return out;
}

Result<ConfigReader> ConfigReader::object(std::string_view key) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr) return ConfigReader(empty_object(), place_of(key));
  if (!value->is_object()) return malformed(place_of(key), "not an object");
  return ConfigReader(*value, place_of(key));
}

Status ConfigReader::only(std::string_view key, const nlohmann::json& allowed) const {
  const nlohmann::json* value = find(key);
  if (value == nullptr || *value == allowed) return {};
  std::string shown = value->dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  if (shown.size() > 60) shown = shown.substr(0, 60) + "...";
  return unsupported(place_of(key), "{} is not supported here (only {} or absent)", shown, allowed.dump());
}

Status ConfigReader::only(std::string_view key, std::nullptr_t) const { return only(key, nlohmann::json()); }
Status ConfigReader::only(std::string_view key, const char* allowed) const {
  return only(key, nlohmann::json(allowed));
}
Status ConfigReader::only_boolean(std::string_view key, bool allowed) const {
  return only(key, nlohmann::json(allowed));
}
Status ConfigReader::only_integer(std::string_view key, int64_t allowed) const {
  return only(key, nlohmann::json(allowed));
}
Status ConfigReader::only_number(std::string_view key, double allowed) const {
  return only(key, nlohmann::json(allowed));
}

Status ConfigReader::check_known(std::span<const std::string_view> keys, std::span<const std::string_view> more) const {
  for (const auto& item : object_.items()) {
    const std::string_view key = item.key();
    const auto listed = [&](std::span<const std::string_view> list) {
      return std::find(list.begin(), list.end(), key) != list.end();
    };
    if (item.value().is_null() || listed(keys) || listed(more)) continue;
    return unsupported(place_of(key), "this key of the config is not known here and may change the computation");
  }
  return {};
}

namespace {
constexpr std::string_view kRopeKeys[] = {"rope_theta", "rope_type", "type", "partial_rotary_factor", "mrope_section",
                                          "factor", "original_max_position_embeddings", "attention_factor",
                                          "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow", "truncate",
                                          "mscale", "mscale_all_dim", "short_factor", "long_factor", "alpha",
                                          // Of a family, which reads it.
                                          "llama_4_scaling_beta",
                                          // That a model was trained with its scaling.
                                          "finetuned"};
}  // namespace

Result<RopeConfig> read_rope_parameters(const ConfigReader& rope, double default_theta, int64_t max_position_embeddings,
                                        std::optional<double> partial_default) {
  RopeConfig out;
  HEADRACE_RETURN_IF_ERROR(rope.check_known(kRopeKeys));
  HEADRACE_ASSIGN_OR_RETURN(out.theta, rope.number_or("rope_theta", default_theta));
  HEADRACE_ASSIGN_OR_RETURN(const std::string old_key, rope.text_or("type", "default"));
  HEADRACE_ASSIGN_OR_RETURN(out.scaling.type, rope.text_or("rope_type", old_key));
  if (out.scaling.type == "su") out.scaling.type = "longrope";  // its first name
  if (out.scaling.type == "proportional") {                     // which fills whole heads
    HEADRACE_ASSIGN_OR_RETURN(out.scaling.rotating_share, rope.number_or("partial_rotary_factor", 1.0));
    HEADRACE_ASSIGN_OR_RETURN(out.scaling.factor, rope.number_or("factor", 1.0));
    HEADRACE_RETURN_IF_ERROR(rope.only("mrope_section", nullptr));
    return out;
  }
  if (partial_default) {
    HEADRACE_ASSIGN_OR_RETURN(out.partial, rope.number_or("partial_rotary_factor", *partial_default));
    if (!(out.partial > 0) || out.partial > 1) {
      return malformed(rope.place_of("partial_rotary_factor"), "{} is no share of a head's dims", out.partial);
    }
  } else {
    HEADRACE_RETURN_IF_ERROR(rope.only("partial_rotary_factor", 1.0));
  }
  HEADRACE_RETURN_IF_ERROR(rope.only("mrope_section", nullptr));
  if (out.scaling.type == "default") return out;
  constexpr std::string_view kTypes[] = {"linear", "llama3", "yarn", "longrope", "dynamic"};
  if (std::find(std::begin(kTypes), std::end(kTypes), out.scaling.type) == std::end(kTypes)) {
    return unsupported(rope.place_of("rope_type"), "unknown rope type '{}' (known: default, {})", out.scaling.type,
                       fmt::join(kTypes, ", "));
  }
  RopeScaling& scaling = out.scaling;
  if (!rope.has("factor") && scaling.type != "yarn" && scaling.type != "longrope")
    return malformed(rope.place_of("factor"), "missing");
  HEADRACE_ASSIGN_OR_RETURN(scaling.factor, rope.number_or("factor", 0));
  HEADRACE_ASSIGN_OR_RETURN(
      scaling.original_max_positions,
      rope.number_or("original_max_position_embeddings", static_cast<double>(max_position_embeddings)));
  if (scaling.type == "llama3") {
    for (const char* key : {"low_freq_factor", "high_freq_factor"}) {
      if (!rope.has(key)) return malformed(rope.place_of(key), "missing");
    }
    HEADRACE_ASSIGN_OR_RETURN(scaling.low_freq_factor, rope.number_or("low_freq_factor", 0));
    HEADRACE_ASSIGN_OR_RETURN(scaling.high_freq_factor, rope.number_or("high_freq_factor", 0));
  }
  if (scaling.type == "dynamic") {
    HEADRACE_ASSIGN_OR_RETURN(scaling.alpha, rope.number_or("alpha", 0));
    scaling.original_max_positions = static_cast<double>(max_position_embeddings);  // whatever it says of its own
  }
  if (scaling.type == "longrope") {
    HEADRACE_ASSIGN_OR_RETURN(scaling.short_factors, rope.numbers("short_factor"));
    HEADRACE_ASSIGN_OR_RETURN(scaling.long_factors, rope.numbers("long_factor"));
    if (!rope.has("factor") && scaling.original_max_positions > 0) {
      scaling.factor = static_cast<double>(max_position_embeddings) / scaling.original_max_positions;
    }
    if (rope.has("attention_factor")) {
      HEADRACE_ASSIGN_OR_RETURN(scaling.attention_factor, rope.number_or("attention_factor", 0));
    }
  }
  if (scaling.type == "yarn") {
    if (!rope.has("factor") && scaling.original_max_positions > 0) {
      scaling.factor = static_cast<double>(max_position_embeddings) / scaling.original_max_positions;
    }
    HEADRACE_ASSIGN_OR_RETURN(scaling.beta_fast, rope.number_or("beta_fast", 32));
    HEADRACE_ASSIGN_OR_RETURN(scaling.beta_slow, rope.number_or("beta_slow", 1));
    HEADRACE_ASSIGN_OR_RETURN(scaling.truncate, rope.boolean_or("truncate", true));
    if (rope.has("attention_factor")) {
      HEADRACE_ASSIGN_OR_RETURN(scaling.attention_factor, rope.number_or("attention_factor", 0));
    }
    if (rope.has("mscale")) {
      HEADRACE_ASSIGN_OR_RETURN(scaling.mscale, rope.number_or("mscale", 0));
    }
    if (rope.has("mscale_all_dim")) {
      HEADRACE_ASSIGN_OR_RETURN(scaling.mscale_all_dim, rope.number_or("mscale_all_dim", 0));
    }
  }
  return out;
}

Result<RopeConfig> read_rope(const ConfigReader& config, double default_theta, int64_t max_position_embeddings,
                             std::optional<double> partial_default) {
  if (partial_default) {
    HEADRACE_ASSIGN_OR_RETURN(partial_default, config.number_or("partial_rotary_factor", *partial_default));
  } else {
    HEADRACE_RETURN_IF_ERROR(config.only("partial_rotary_factor", 1.0));
  }
  HEADRACE_RETURN_IF_ERROR(config.only("rope_interleaved", false));
  HEADRACE_ASSIGN_OR_RETURN(const double theta, config.number_or("rope_theta", default_theta));
  const bool newer = config.has("rope_parameters");
  if (newer && config.has("rope_scaling")) {
    return malformed(config.place_of("rope_scaling"), "given beside rope_parameters");
  }
  HEADRACE_ASSIGN_OR_RETURN(const ConfigReader rope, config.object(newer ? "rope_parameters" : "rope_scaling"));
  // Some configs keep the pretrained length outside; it then wins, as in transformers.
  HEADRACE_ASSIGN_OR_RETURN(const int64_t outer_length,
                            config.integer_or("original_max_position_embeddings", 1, INT32_MAX, 0));
  HEADRACE_ASSIGN_OR_RETURN(RopeConfig out,
                            read_rope_parameters(rope, theta, max_position_embeddings, partial_default));
  if (outer_length == 0 || out.scaling.type == "dynamic") return out;
  out.scaling.original_max_positions = static_cast<double>(outer_length);
  if (out.scaling.type == "longrope" && !rope.has("factor")) {
    out.scaling.factor = static_cast<double>(max_position_embeddings) / out.scaling.original_max_positions;
  }
  return out;
}

Result<Activation> read_activation(const ConfigReader& config, std::string_view key, std::string fallback) {
  HEADRACE_ASSIGN_OR_RETURN(const std::string name, config.text_or(key, std::move(fallback)));
  if (name == "silu" || name == "swish") return Activation::kSilu;
  if (name == "gelu_pytorch_tanh" || name == "gelu_new") return Activation::kGeluTanh;
  if (name == "gelu") return Activation::kGeluErf;
  if (name == "quick_gelu") return Activation::kGeluSigmoid;
  if (name == "relu") return Activation::kRelu;
  if (name == "relu2") return Activation::kRelu2;
  return unsupported(config.place_of(key), "unknown activation '{}'", name);
}

}  // namespace headrace
