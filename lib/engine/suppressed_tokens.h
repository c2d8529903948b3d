// Tokens that a model's makers keep out of what it says, as a mask of requests.
#pragma once

#include <cstdint>
#include <span>

#include "sampling/token_mask.h"

namespace headrace::engine {

// `never` are not drawn at all, `not_first` not as a sample's first token. Ids in [0, vocab_size). Null where both are empty.
// Reference: transformers' SuppressTokensLogitsProcessor and SuppressTokensAtBeginLogitsProcessor.
TokenMaskSource suppress_tokens(std::span<const int32_t> never, std::span<const int32_t> not_first, int32_t vocab_size);

}  // namespace headrace::engine
