// What a model that writes down speech is told and may write: its tokens of languages, tasks and times, and those that its makers
// suppress, as generation_config.json has them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "base/status.h"
#include "text/tokenizer.h"

namespace headrace {

using NamedToken = std::pair<std::string, int32_t>;

struct SpeechConfig {
  int32_t start = -1;                          // the decoder's first token
  int32_t end = -1;                            // of a text; lower ids are words
  std::optional<int32_t> no_times;             // the token that says that none come; those above it are times
  std::optional<int32_t> last_initial;         // time, in steps, that a window may begin with
  std::vector<NamedToken> languages;           // "en"; empty: the model knows one, or does not say which
  std::vector<NamedToken> tasks;               // "transcribe"
  bool knows_one_language = false;             // and has no tasks
  int32_t previous = -1;                       // stands before text of earlier windows; -1: it is not said which does
  std::string language, task;                  // where a request names none; empty: as `forced` has them
  std::vector<std::optional<int32_t>> forced;  // behind `start` where nothing is said; absent: a language to be found
  std::vector<int32_t> suppress, suppress_first;  // tokens that are never drawn, and those that are not drawn first
};

// Of generation_config.json, or where there is none of config.json, which older files have it in. start, end: of the model.
// Ids outside the vocabulary are kMalformed with the key, but suppressed ones: such a token cannot be drawn anyhow.
Result<SpeechConfig> read_speech_config(const nlohmann::json& config, int32_t start, int32_t end, int32_t vocab_size);

// Adds what the config does not say and names of the tokenizer's tokens do ("<|notimestamps|>"): older files leave it out.
void complete_speech_config(SpeechConfig& config, const text::Tokenizer& tokenizer);

}  // namespace headrace
