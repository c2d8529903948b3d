// Models: one pre-tokenized piece becomes token ids.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/vocabulary.h"

namespace headrace::text {

// Ids that a model may not produce from a spelling; indexed by id, may be shorter than the vocabulary.
using ForbiddenIds = std::vector<bool>;

inline bool is_forbidden(const ForbiddenIds* forbidden, int32_t id) {
  return forbidden != nullptr && static_cast<size_t>(id) < forbidden->size() && (*forbidden)[static_cast<size_t>(id)];
}

// Immutable; any thread.
class PieceModel {
 public:
  virtual ~PieceModel() = default;
  // Appends the ids of `piece` (valid UTF-8, not empty). forbidden: null, or ids that no spelling may give;
  // the unknown token for characters outside the vocabulary is not affected.
  virtual Status tokenize(std::string_view piece, const ForbiddenIds* forbidden, std::vector<int32_t>& out) const = 0;
};

using PieceModelPtr = std::unique_ptr<const PieceModel>;

// Models keep a pointer to the vocabulary, which must outlive them.

struct BpeOptions {
  std::optional<int32_t> unk_id;
  bool unk_missing = false;  // an unknown token is named but not in the vocabulary: needing it is an error
  std::string continuing_subword_prefix;
  std::string end_of_word_suffix;
  bool fuse_unk = false;
  bool byte_fallback = false;
  bool ignore_merges = false;  // a piece that is in the vocabulary as it stands is one token
};

struct BpeMerge {
  int32_t left, right, merged;
};

// Byte-pair encoding: of all adjacent pairs, the one first in `merges` is merged first, leftmost first.
PieceModelPtr make_bpe_model(const Vocabulary& vocabulary, const std::vector<BpeMerge>& merges, BpeOptions options);

// SentencePiece's byte-pair encoding: the pair whose concatenation has the best score is merged first.
// scores: by id, NaN for ids that take no part in merging. Characters that are left without a token become
// byte tokens <0xXX>, or `unk_id` once for each.
PieceModelPtr make_score_bpe_model(const Vocabulary& vocabulary, std::vector<float> scores,
                                   std::optional<int32_t> unk_id);

struct UnigramOptions {
  std::optional<int32_t> unk_id;
  bool byte_fallback = false;
};

// The segmentation with the best sum of scores (by id; NaN takes no part); unknown characters cost 10 more
// than the worst token and neighbouring ones are one unknown token.
PieceModelPtr make_unigram_model(const Vocabulary& vocabulary, std::vector<double> scores, UnigramOptions options);

struct WordPieceOptions {
  std::optional<int32_t> unk_id;
  std::string continuing_subword_prefix;
  size_t max_input_chars_per_word = 100;
};

// Greedy longest match from the left; a piece that cannot be covered, or is too long, is one unknown token.
PieceModelPtr make_wordpiece_model(const Vocabulary& vocabulary, WordPieceOptions options);

PieceModelPtr make_word_level_model(const Vocabulary& vocabulary, std::optional<int32_t> unk_id);

// Ids of <0x00> ... <0xFF>; -1 for those that are not in the vocabulary.
std::vector<int32_t> byte_token_ids(const Vocabulary& vocabulary);
// The byte of a token spelled <0xXX> with two hexadecimal digits.
std::optional<uint8_t> parse_byte_token(std::string_view token);

}  // namespace headrace::text
