#include "model/adapter_config.h"

#include <cmath>

#include "formats/json.h"
#include "model/config_reader.h"

namespace headrace {

namespace {

// Where the adapter comes from, what it was trained for and with, and what its tensors say again.
constexpr std::string_view kHarmlessKeys[] = {"auto_mapping",
                                              "base_model_name_or_path",
                                              "revision",
                                              "inference_mode",
                                              "lora_dropout",
                                              "task_type",
                                              "target_modules",
                                              "exclude_modules",
                                              "layers_to_transform",
                                              "layers_pattern",
                                              "peft_version",
                                              "megatron_core",
                                              "qalora_group_size",
                                              "eva_config",
                                              "runtime_config",
                                              "loftq_config",
                                              "corda_config",
                                              "lora_ga_config",
                                              "monteclora_config",
                                              "ensure_weight_tying"};
constexpr std::string_view kReadKeys[] = {
    "peft_type", "r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern", "init_lora_weights", "bias"};

bool is_nothing(const nlohmann::json& value) {
  return value.is_null() || value == false || ((value.is_object() || value.is_array()) && value.empty());
}

}  // namespace

Result<AdapterConfig> AdapterConfig::parse(std::string_view text, const std::string& name) {
  HEADRACE_ASSIGN_OR_RETURN(const auto json, parse_ordered_json(text, name));
  HEADRACE_ASSIGN_OR_RETURN(const auto sorted, parse_json(text, name));
  if (!sorted.is_object()) return malformed(name, "is no JSON object");
  const auto read = [&]() -> Result<AdapterConfig> {
    const ConfigReader config(sorted, "");
    HEADRACE_ASSIGN_OR_RETURN(const std::string type, config.text_or("peft_type", ""));
    if (type != "LORA") return unsupported("/peft_type", "'{}' is not LORA", type);
    HEADRACE_RETURN_IF_ERROR(config.only("bias", "none"));
    for (const auto& [key, value] : sorted.items()) {
      const auto listed = [&key = key](const auto& keys) {
        return std::find(std::begin(keys), std::end(keys), key) != std::end(keys);
      };
      if (listed(kHarmlessKeys) || listed(kReadKeys) || is_nothing(value)) continue;
      return unsupported("/" + key, "changes what the adapter computes in a way that is not built");
    }
    // Other ways to begin than these put what the adapter starts from into the base's weights.
    if (const nlohmann::json* start = config.find("init_lora_weights"); start != nullptr && !start->is_boolean()) {
      const std::string way = start->is_string() ? start->get<std::string>() : start->dump();
      if (way != "gaussian" && way != "eva" && way != "orthogonal") {
        return unsupported("/init_lora_weights", "'{}' changes the weights of the base", way);
      }
    }
    AdapterConfig out;
    HEADRACE_ASSIGN_OR_RETURN(out.rank_, config.integer_or("r", 1, AdapterConfig::kMaxRank, 8));
    HEADRACE_ASSIGN_OR_RETURN(out.alpha_, config.number_or("lora_alpha", 8));
    HEADRACE_ASSIGN_OR_RETURN(out.rank_stabilised_, config.boolean_or("use_rslora", false));
    for (const auto& [key, patterns] :
         {std::pair("rank_pattern", &out.rank_patterns_), std::pair("alpha_pattern", &out.alpha_patterns_)}) {
      const auto found = json.find(key);
      if (found == json.end() || found->is_null()) continue;
      const std::string place = std::string("/") + key;
      if (!found->is_object()) return malformed(place, "is no object");
      for (const auto& [pattern, value] : found->items()) {
        if (!value.is_number()) return malformed(place + "/" + pattern, "is no number");
        HEADRACE_ASSIGN_OR_RETURN(text::Regex regex,
                                  text::Regex::compile("\\A(?:.*\\.)?(?:" + pattern + ")\\z", place + "/" + pattern));
        patterns->push_back({std::move(regex), value.get<double>()});
      }
    }
    return out;
  };
  auto out = read();
  return out.ok() ? std::move(out) : Result<AdapterConfig>(out.status().within(name));
}

Result<double> AdapterConfig::find(const std::vector<Pattern>& patterns, std::string_view module, double otherwise) {
  text::RegexScratch scratch;
  for (const Pattern& pattern : patterns) {
    std::vector<text::Stretch> stretches;
    HEADRACE_RETURN_IF_ERROR(pattern.regex.split(module, 0, stretches, scratch));
    if (!stretches.empty() && stretches[0].is_match && stretches[0].end == module.size()) return pattern.value;
  }
  return otherwise;
}

Result<int64_t> AdapterConfig::rank(std::string_view module) const {
  HEADRACE_ASSIGN_OR_RETURN(const double rank, find(rank_patterns_, module, static_cast<double>(rank_)));
  if (!(rank >= 1 && rank <= static_cast<double>(kMaxRank)) || rank != std::floor(rank)) {
    return malformed("/rank_pattern", "{} is no rank, which {} needs", rank, module);
  }
  return static_cast<int64_t>(rank);
}

Result<double> AdapterConfig::scale(std::string_view module) const {
  HEADRACE_ASSIGN_OR_RETURN(const int64_t rank, this->rank(module));
  HEADRACE_ASSIGN_OR_RETURN(const double alpha, find(alpha_patterns_, module, alpha_));
  if (!std::isfinite(alpha)) return malformed("/lora_alpha", "{} is not finite", alpha);
  return alpha / (rank_stabilised_ ? std::sqrt(static_cast<double>(rank)) : static_cast<double>(rank));
}

}  // namespace headrace
