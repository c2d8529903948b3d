// What tokenizer.ggml.pre stands for: the metadata carries the name of a pre-tokenizer, not the
// pre-tokenizer.
#pragma once

#include <string_view>

#include "base/status.h"
#include "text/normalizer.h"
#include "text/pre_tokenizer.h"

namespace headrace::text {

struct GgufPreTokenizer {
  NormalizerPtr normalizer;  // may be null
  PreTokenizerPtr pre_tokenizer;
  bool ignore_merges = false;
  bool add_bos = false;  // when the metadata does not say
};

// As in the tokenizer.json of the models that the name stands for. kUnsupported with the name when it is not
// known.
Result<GgufPreTokenizer> make_gguf_pre_tokenizer(std::string_view name);

}  // namespace headrace::text
