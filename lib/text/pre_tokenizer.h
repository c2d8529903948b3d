// Pre-tokenizers: a normalised text is cut into the pieces that a model then sees one by one.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "text/regex.h"

namespace headrace::text {

struct Piece {
  size_t begin = 0, end = 0;  // into Pieces::text; never empty
  bool at_origin = false;     // starts with the first character of the whole input
};

struct Pieces {
  std::string text;  // valid UTF-8
  std::vector<Piece> pieces;
};

// What becomes of the matches (the delimiters) of a split.
enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

// Immutable; any thread.
class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  virtual Status apply(Pieces& pieces) const = 0;
};

using PreTokenizerPtr = std::unique_ptr<const PreTokenizer>;

enum class PrependScheme { kNever, kFirst, kAlways };

PreTokenizerPtr make_sequence_pre_tokenizer(std::vector<PreTokenizerPtr> steps);
PreTokenizerPtr make_regex_split(Regex pattern, SplitBehavior behavior, bool invert);
PreTokenizerPtr make_literal_split(std::string literal, SplitBehavior behavior,
                                   bool invert);  // literal not empty
// Characters for which `is_delimiter` holds, each a match of its own.
PreTokenizerPtr make_char_split(bool (*is_delimiter)(char32_t), SplitBehavior behavior);
// Runs of word characters and runs of other non-space characters.
PreTokenizerPtr make_whitespace_pre_tokenizer();
PreTokenizerPtr make_fixed_length_pre_tokenizer(size_t chars);
// replacement: one character.
PreTokenizerPtr make_metaspace_pre_tokenizer(std::string replacement, PrependScheme scheme, bool split);
// Spells each byte by the byte-level alphabet, after cutting by `pattern` where there is one.
PreTokenizerPtr make_byte_level_pre_tokenizer(bool add_prefix_space, std::optional<Regex> pattern);

// GPT-2's pattern, which a ByteLevel pre-tokenizer with use_regex applies.
inline constexpr const char* kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

}  // namespace headrace::text
