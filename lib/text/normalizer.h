// Normalizers: what is done to a text before it is cut into pieces.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/regex.h"
#include "text/unicode.h"

namespace headrace::text {

struct NormalizedText {
  std::string text;        // valid UTF-8
  bool at_origin = false;  // its first character stems from the first character of the whole input
};

// Immutable; any thread.
class Normalizer {
 public:
  virtual ~Normalizer() = default;
  virtual Status apply(NormalizedText& text) const = 0;
};

using NormalizerPtr = std::unique_ptr<const Normalizer>;

struct BertNormalizerOptions {
  bool clean_text = true;
  bool handle_chinese_chars = true;
  bool strip_accents = true;
  bool lowercase = true;
};

NormalizerPtr make_sequence_normalizer(std::vector<NormalizerPtr> steps);
NormalizerPtr make_unicode_normalizer(NormalForm form);
NormalizerPtr make_lowercase_normalizer();
NormalizerPtr make_strip_normalizer(bool left, bool right);
NormalizerPtr make_strip_accents_normalizer();
NormalizerPtr make_replace_normalizer(std::string literal, std::string content);  // literal not empty
NormalizerPtr make_regex_replace_normalizer(Regex pattern, std::string content);
NormalizerPtr make_prepend_normalizer(std::string prefix);
NormalizerPtr make_bert_normalizer(BertNormalizerOptions options);
NormalizerPtr make_nmt_normalizer();
NormalizerPtr make_byte_level_normalizer();
// `charsmap`: SentencePiece's precompiled map: u32 size of the trie in bytes, a Darts double array,
// NUL-terminated replacements. kMalformed at `place`.
Result<NormalizerPtr> make_precompiled_normalizer(std::string_view charsmap, std::string_view place);

// Replaces each occurrence of `from` (not empty) in `text`, left to right.
std::string replace_all(std::string_view text, std::string_view from, std::string_view to);

}  // namespace headrace::text
