#include "model/gguf_reader.h"

#include <algorithm>
#include <cmath>

namespace headrace {

Result<int64_t> GgufReader::integer(std::string_view suffix, int64_t low, int64_t high) const {
  const std::string full = key(suffix);
  if (file_.find_metadata(full) == nullptr) return malformed(full, "missing");
  HEADRACE_ASSIGN_OR_RETURN(const int64_t value, file_.get_i64(full));
  if (value < low || value > high) return malformed(full, "{} is outside [{}, {}]", value, low, high);
  return value;
}

Result<int64_t> GgufReader::integer_or(std::string_view suffix, int64_t low, int64_t high, int64_t fallback) const {
  if (!has(suffix)) return fallback;
  return integer(suffix, low, high);
}

Result<double> GgufReader::number_or(std::string_view suffix, double fallback) const {
  // What is written as an integer is no damaged float's value.
  const GgufValue* const found = file_.find_metadata(key(suffix));
  if (found != nullptr && found->type() != GgufType::kF32 && found->type() != GgufType::kF64) {
    return malformed(key(suffix), "not of a float's type");
  }
  HEADRACE_ASSIGN_OR_RETURN(const double value, file_.get_f64_or(key(suffix), fallback));
  if (!std::isfinite(static_cast<float>(value))) return malformed(key(suffix), "not a finite number");
  return value;
}

Result<double> GgufReader::positive_or(std::string_view suffix, double fallback) const {
  HEADRACE_ASSIGN_OR_RETURN(const double value, number_or(suffix, fallback));
  if (!(static_cast<float>(value) > 0)) return malformed(key(suffix), "{} is not a positive number", value);
  return value;
}

Status GgufReader::check_known(std::span<const std::string_view> suffixes) const {
  const std::string prefix = architecture_ + ".";
  for (auto it = file_.metadata().lower_bound(prefix); it != file_.metadata().end() && it->first.starts_with(prefix);
       ++it) {
    const std::string_view suffix = std::string_view(it->first).substr(prefix.size());
    if (std::find(suffixes.begin(), suffixes.end(), suffix) == suffixes.end()) {
      return unsupported(it->first, "this parameter of '{}' is not known", architecture_);
    }
  }
  return {};
}

Result<RopeScaling> GgufReader::rope_scaling(int64_t max_position_embeddings) const {
  RopeScaling scaling;
  HEADRACE_ASSIGN_OR_RETURN(const std::string type, file_.get_string_or(key("rope.scaling.type"), "none"));
  if (type == "none") return scaling;
  if (type != "linear" && type != "yarn") {
    return unsupported(key("rope.scaling.type"), "unknown rope type '{}' (known: none, linear, yarn)", type);
  }
  scaling.type = type;
  if (!has("rope.scaling.factor")) return malformed(key("rope.scaling.factor"), "missing");
  HEADRACE_ASSIGN_OR_RETURN(scaling.factor, positive_or("rope.scaling.factor", 1.0));
  if (type == "linear") return scaling;
  HEADRACE_ASSIGN_OR_RETURN(const int64_t original,
                            integer_or("rope.scaling.original_context_length", 1, INT32_MAX, max_position_embeddings));
  scaling.original_max_positions = static_cast<double>(original);
  HEADRACE_ASSIGN_OR_RETURN(scaling.beta_fast, positive_or("rope.scaling.yarn_beta_fast", 32.0));
  HEADRACE_ASSIGN_OR_RETURN(scaling.beta_slow, positive_or("rope.scaling.yarn_beta_slow", 1.0));
  // The file's factor multiplies the one that follows from the extension.
  HEADRACE_ASSIGN_OR_RETURN(const double extra, positive_or("rope.scaling.attn_factor", 1.0));
  if (extra != 1.0)
    scaling.attention_factor = extra * (scaling.factor <= 1 ? 1.0 : 0.1 * std::log(scaling.factor) + 1.0);
  return scaling;
}

}  // namespace headrace
