// The pipeline of a tokenizer: what the readers of tokenizer.json and of GGUF metadata build.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "text/added_vocabulary.h"
#include "text/decoder.h"
#include "text/normalizer.h"
#include "text/piece_model.h"
#include "text/pre_tokenizer.h"
#include "text/vocabulary.h"

namespace headrace::text {

struct TokenizerParts {
  Vocabulary vocabulary;          // the model's tokens
  NormalizerPtr normalizer;       // may be null
  PreTokenizerPtr pre_tokenizer;  // may be null
  PieceModelPtr model;            // refers to `vocabulary`: parts are not moved once it exists
  AddedVocabulary added;
  std::vector<int32_t> prefix_ids, suffix_ids;  // what add_special puts around a text
  Decoder decoder;
  std::optional<int32_t> bos_id, eos_id, pad_id, unk_id;
  std::vector<int32_t> end_of_generation_ids;  // ascending

  std::optional<int32_t> find(std::string_view token) const {
    const auto id = added.index().find(token);
    return id ? id : vocabulary.find(token);
  }
};

// What the decoder sees for `id`; false when it sees nothing.
bool decode_spelling(const TokenizerParts& parts, int32_t id, bool skip_special, std::string_view& spelling);

}  // namespace headrace::text
