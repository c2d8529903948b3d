#include "model/speech_config.h"

#include <algorithm>
#include <string_view>

#include <nlohmann/json.hpp>

#include "formats/json.h"
#include "model/config_reader.h"

namespace headrace {

namespace {

Result<int32_t> read_token(const ConfigReader& config, const char* key, int32_t vocab_size) {
  HEADRACE_ASSIGN_OR_RETURN(const int64_t id, config.integer(key, 0, vocab_size - 1));
  return static_cast<int32_t>(id);
}

Status read_suppressed(const ConfigReader& config, const char* key, int32_t vocab_size, std::vector<int32_t>& out) {
  HEADRACE_ASSIGN_OR_RETURN(const std::vector<int64_t> ids, config.integers(key));
  for (const int64_t id : ids) {
    if (id >= 0 && id < vocab_size) out.push_back(static_cast<int32_t>(id));
  }
  return {};
}

// "<|en|>" is said as "en".
std::string_view bare(std::string_view name) {
  if (name.size() > 4 && name.starts_with("<|") && name.ends_with("|>")) return name.substr(2, name.size() - 4);
  return name;
}

Status read_named(const ConfigReader& config, const char* key, int32_t vocab_size, std::vector<NamedToken>& out) {
  if (!config.has(key)) return {};
  HEADRACE_ASSIGN_OR_RETURN(const ConfigReader names, config.object(key));
  for (const auto& item : names.json().items()) {
    HEADRACE_ASSIGN_OR_RETURN(const int32_t id, read_token(names, item.key().c_str(), vocab_size));
    out.emplace_back(bare(item.key()), id);
  }
  return {};
}

// Pairs of a place, from 1 on, and a token or null. The reference leaves lists that begin elsewhere alone.
Status read_forced(const ConfigReader& config, int32_t vocab_size, std::vector<std::optional<int32_t>>& out) {
  const nlohmann::json* list = config.find("forced_decoder_ids");
  if (list == nullptr || (list->is_array() && list->empty())) return {};
  const std::string place = config.place_of("forced_decoder_ids");
  if (!list->is_array()) return malformed(place, "is no list");
  for (const nlohmann::json& pair : *list) {
    const bool is_pair = pair.is_array() && pair.size() == 2;
    const std::optional<int64_t> at = is_pair ? json_integer(pair[0]) : std::nullopt;
    const std::optional<int64_t> id = is_pair ? json_integer(pair[1]) : std::nullopt;
    if (!at || !(id || pair[1].is_null())) return malformed(place, "{} is no pair of a place and a token", pair.dump());
    if (out.empty() && *at != 1) return {};
    if (*at != static_cast<int64_t>(out.size()) + 1)
      return malformed(place, "{} does not follow the last", pair.dump());
    if (!id) {
      out.emplace_back();
      continue;
    }
    if (*id < 0 || *id >= vocab_size) return malformed(place, "{} is outside the vocabulary of {}", *id, vocab_size);
    out.emplace_back(static_cast<int32_t>(*id));
  }
  return {};
}

}  // namespace

Result<SpeechConfig> read_speech_config(const nlohmann::json& json, int32_t start, int32_t end, int32_t vocab_size) {
  const ConfigReader config(json, "");
  SpeechConfig out;
  out.start = start;
  out.end = end;
  if (config.has("decoder_start_token_id")) {
    HEADRACE_ASSIGN_OR_RETURN(out.start, read_token(config, "decoder_start_token_id", vocab_size));
  }
  HEADRACE_ASSIGN_OR_RETURN(const std::vector<int64_t> ends, config.integers("eos_token_id"));
  if (!ends.empty() && ends[0] >= 0 && ends[0] < vocab_size) out.end = static_cast<int32_t>(ends[0]);
  if (config.has("no_timestamps_token_id")) {
    HEADRACE_ASSIGN_OR_RETURN(out.no_times, read_token(config, "no_timestamps_token_id", vocab_size));
  }
  if (config.has("max_initial_timestamp_index")) {
    HEADRACE_ASSIGN_OR_RETURN(const int64_t steps, config.integer("max_initial_timestamp_index", 0, INT32_MAX));
    out.last_initial = static_cast<int32_t>(steps);
  }
  HEADRACE_RETURN_IF_ERROR(read_named(config, "lang_to_id", vocab_size, out.languages));
  HEADRACE_RETURN_IF_ERROR(read_named(config, "task_to_id", vocab_size, out.tasks));
  HEADRACE_ASSIGN_OR_RETURN(const bool multilingual, config.boolean_or("is_multilingual", true));
  out.knows_one_language = !multilingual;
  HEADRACE_ASSIGN_OR_RETURN(out.language, config.text_or("language", ""));
  HEADRACE_ASSIGN_OR_RETURN(out.task, config.text_or("task", ""));
  HEADRACE_RETURN_IF_ERROR(read_forced(config, vocab_size, out.forced));
  HEADRACE_RETURN_IF_ERROR(read_suppressed(config, "suppress_tokens", vocab_size, out.suppress));
  HEADRACE_RETURN_IF_ERROR(read_suppressed(config, "begin_suppress_tokens", vocab_size, out.suppress_first));
  if (config.has("prev_sot_token_id")) {
    HEADRACE_ASSIGN_OR_RETURN(out.previous, read_token(config, "prev_sot_token_id", vocab_size));
  } else if (out.suppress.size() >= 2) {
    out.previous = out.suppress[out.suppress.size() - 2];  // where older files have it, and the reference looks
  }
  return out;
}

void complete_speech_config(SpeechConfig& config, const text::Tokenizer& tokenizer) {
  if (config.no_times) return;
  config.no_times = tokenizer.token_to_id("<|notimestamps|>");
  if (!config.no_times) return;
  if (config.previous < 0) config.previous = tokenizer.token_to_id("<|startofprev|>").value_or(-1);
  if (const auto start = tokenizer.token_to_id("<|startoftranscript|>")) config.start = *start;
  if (const auto end = tokenizer.token_to_id("<|endoftext|>")) config.end = *end;
  for (const char* task : {"transcribe", "translate"}) {
    if (const auto id = tokenizer.token_to_id("<|" + std::string(task) + "|>")) config.tasks.emplace_back(task, *id);
  }
  // Languages stand between the first token and the tasks.
  if (config.tasks.size() != 2) return;
  const int32_t first_task = std::min(config.tasks[0].second, config.tasks[1].second);
  for (int32_t id = config.start + 1; id < first_task; ++id)
    config.languages.emplace_back(bare(tokenizer.id_to_token(id)), id);
}

}  // namespace headrace
