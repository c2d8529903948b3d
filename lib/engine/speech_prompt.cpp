#include "engine/speech_prompt.h"

#include <algorithm>
#include <optional>

namespace headrace::engine {

namespace {

Result<int32_t> named_token(const std::vector<NamedToken>& names, const std::string& name, const char* place) {
  const auto it = std::ranges::find(names, name, &NamedToken::first);
  if (it == names.end()) return invalid_argument(place, "the model has no {}", name);
  return it->second;
}

// What the model's files force where neither language nor task is said.
void add_forced(const SpeechConfig& config, SpeechPrompt& out) {
  for (const std::optional<int32_t>& token : config.forced) {
    if (token) out.tokens.push_back(*token);
  }
  if (config.forced.empty() || !config.forced[0]) {
    out.lacks_language = !config.languages.empty();
    return;
  }
  const auto name = std::ranges::find(config.languages, *config.forced[0], &NamedToken::second);
  if (name != config.languages.end()) out.language = name->first;
}

}  // namespace

Result<SpeechPrompt> make_speech_prompt(const SpeechConfig& config, const std::string& language,
                                        const std::string& task, bool times) {
  if (config.knows_one_language && !language.empty()) {
    return invalid_argument("language", "the model knows one language");
  }
  if (config.knows_one_language && !task.empty()) return invalid_argument("task", "the model knows one task");
  SpeechPrompt out;
  out.tokens = {config.start};
  out.language = language.empty() ? config.language : language;
  std::string said_task = task.empty() ? config.task : task;
  if (!out.language.empty()) {
    HEADRACE_ASSIGN_OR_RETURN(const int32_t id, named_token(config.languages, out.language, "language"));
    out.tokens.push_back(id);
    if (said_task.empty() && !config.tasks.empty()) said_task = "transcribe";
  } else if (said_task.empty()) {
    add_forced(config, out);
  } else {
    out.lacks_language = !config.languages.empty();
  }
  if (!said_task.empty()) {
    HEADRACE_ASSIGN_OR_RETURN(const int32_t id, named_token(config.tasks, said_task, "task"));
    out.tokens.push_back(id);
  }
  const bool says_none = out.tokens.back() == config.no_times;
  if (times && says_none) out.tokens.pop_back();
  if (!times && !says_none && config.no_times) out.tokens.push_back(*config.no_times);
  return out;
}

}  // namespace headrace::engine
