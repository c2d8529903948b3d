// What a model that writes down speech may write: tokens that its makers suppress do not come, and times come in pairs.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "sampling/token_mask.h"

namespace headrace::engine {

// Tokens of times: `zero` is the window's beginning, those above it follow in even steps; the one below says that none come.
struct TimeTokens {
  int32_t zero = 0;
  int32_t end_of_text = 0;                                     // ids below it are words
  int32_t last_initial = std::numeric_limits<int32_t>::max();  // the latest that a window may begin with
};

// Sets of tokens as in token_mask.h. Immutable, for any number of walks.
struct SpeechTokens {
  std::vector<uint32_t> first, later;  // which may come first, and which behind that
  std::optional<TimeTokens> times;     // such come, by their rules
};

// `never` do not come at all, `not_first` not as a sample's first token. Ids in [0, vocab_size).
// Reference: transformers' SuppressTokensLogitsProcessor and SuppressTokensAtBeginLogitsProcessor.
SpeechTokens suppress_tokens(std::span<const int32_t> never, std::span<const int32_t> not_first, int32_t vocab_size);
// No others than these come.
SpeechTokens only_tokens(std::span<const int32_t> tokens, int32_t vocab_size);

// A sample's walk. Times, where there are any: one comes first; behind words and a time comes another, not earlier, or the end;
// behind two come words; later times are later; and where all times together are likelier than each single word, one of them
// comes. Of what `host`, if not null, allows. Reference: transformers' WhisperTimeStampLogitsProcessor.
std::unique_ptr<TokenMask> speech_mask(std::shared_ptr<const SpeechTokens> tokens, std::unique_ptr<TokenMask> host);

}  // namespace headrace::engine
