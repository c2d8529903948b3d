// Tokens that are looked for in the text itself, before any model: control tokens and what users added.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/normalizer.h"
#include "text/piece_model.h"
#include "text/trie.h"
#include "text/vocabulary.h"

namespace headrace::text {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool single_word = false;  // only where no word character stands beside it
  bool lstrip = false;       // takes the white space before it
  bool rstrip = false;       // and after it
  bool normalized = false;   // looked for in the normalised text, in its own normalised spelling
  bool special = false;      // left out by skip_special

  // A run of white space that files keep as a token for shortness ("\n\n"): no marker, so a user's text may
  // give it, as in the reference.
  bool is_blank() const;
};

// A stretch of a text: an added token, or text between them.
struct AddedMatch {
  size_t begin = 0, end = 0;
  int32_t id = -1;  // -1: text
};

// Where matches may lie: [begin, end) in order, not touching each other.
struct AllowedRange {
  size_t begin = 0, end = 0;
};

class AddedVocabulary {
 public:
  // Takes the tokens in the file's order. A content that `vocabulary` has keeps its id there; the others get
  // the ids behind it, as in the reference. `vocabulary`: the model's.
  static Result<AddedVocabulary> create(std::vector<AddedToken> tokens, const Vocabulary& vocabulary,
                                        const Normalizer* normalizer);

  // Cuts `text` at the tokens that are looked for before (normalized = false) or after normalisation.
  // Leftmost, then longest; stretches in order; none for an empty text. `allowed` binds all but blank tokens.
  std::vector<AddedMatch> find(std::string_view text, bool normalized, std::span<const AllowedRange> allowed) const;

  bool has_normalized() const { return !tries_[1].empty(); }
  const Vocabulary& index() const { return index_; }  // contents and ids
  bool contains(int32_t id) const { return is_forbidden(&ids_, id); }
  bool is_special(int32_t id) const { return is_forbidden(&special_ids_, id); }
  // Those that no text outside the allowed ranges may give: all but the blank ones.
  const ForbiddenIds& marker_ids() const { return marker_ids_; }
  // What a decoder sees for an added id: its spelling, normalised when that differs; empty otherwise.
  std::string_view decode_spelling(int32_t id) const;
  // Whether skip_special leaves out what is spelled so.
  bool skips(std::string_view spelling) const { return special_spellings_.find(spelling).has_value(); }

 private:
  std::vector<AddedToken> tokens_;
  Vocabulary index_;                     // content to id
  std::vector<int32_t> by_id_;           // index in tokens_ or -1
  std::vector<std::string> normalized_;  // beside tokens_; empty where equal to the content
  Vocabulary special_spellings_;
  ForbiddenIds ids_, special_ids_, marker_ids_;
  Trie tries_[2];        // [normalized]
  Trie blank_tries_[2];  // of the blank tokens among them
};

}  // namespace headrace::text
