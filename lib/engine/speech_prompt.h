// The decoder's first tokens of a model that writes down speech.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/speech_config.h"

namespace headrace::engine {

struct SpeechPrompt {
  std::vector<int32_t> tokens;
  bool lacks_language = false;  // it is to be found out, and its token put behind the first one
  std::string language;         // "en"; empty where it is not known
};

// language, task: "" where nothing is said of it. kInvalidArgument ("language", "task") for one that the model has not.
// Reference: transformers' WhisperGenerationMixin._retrieve_init_tokens.
Result<SpeechPrompt> make_speech_prompt(const SpeechConfig& config, const std::string& language,
                                        const std::string& task, bool times);

}  // namespace headrace::engine
