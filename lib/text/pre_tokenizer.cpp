#include "text/pre_tokenizer.h"

#include <algorithm>
#include <utility>

#include "text/byte_level.h"
#include "text/unicode.h"
#include "text/utf8.h"

namespace headrace::text {
namespace {

// Turns matches and gaps (in order, no gaps between them) into the pieces that `behavior` makes of them.
void apply_behavior(std::vector<Stretch>& stretches, SplitBehavior behavior) {
  std::vector<Stretch> merged;
  merged.reserve(stretches.size());
  bool previous_match = false;
  switch (behavior) {
    case SplitBehavior::kIsolated: return;
    case SplitBehavior::kRemoved: std::erase_if(stretches, [](const Stretch& s) { return s.is_match; }); return;
    case SplitBehavior::kContiguous:
      for (const Stretch& s : stretches) {
        if (s.is_match == previous_match && !merged.empty()) {
          merged.back().end = s.end;
        } else {
          merged.push_back(s);
        }
        previous_match = s.is_match;
      }
      break;
    case SplitBehavior::kMergedWithPrevious:
      for (const Stretch& s : stretches) {
        if (s.is_match && !previous_match && !merged.empty()) {
          merged.back().end = s.end;
        } else {
          merged.push_back(s);
        }
        previous_match = s.is_match;
      }
      break;
    case SplitBehavior::kMergedWithNext:
      for (size_t i = stretches.size(); i-- > 0;) {
        const Stretch& s = stretches[i];
        if (s.is_match && !previous_match && !merged.empty()) {
          merged.back().begin = s.begin;
        } else {
          merged.push_back(s);
        }
        previous_match = s.is_match;
      }
      std::reverse(merged.begin(), merged.end());
      break;
  }
  stretches = std::move(merged);
}

// Cuts every piece by find(text of the piece, its offset, stretches).
template <class Find>
Status split_pieces(Pieces& pieces, SplitBehavior behavior, bool invert, Find find) {
  std::vector<Piece> out;
  out.reserve(pieces.pieces.size());
  std::vector<Stretch> stretches;
  for (const Piece& piece : pieces.pieces) {
    stretches.clear();
    const std::string_view text(pieces.text.data() + piece.begin, piece.end - piece.begin);
    HEADRACE_RETURN_IF_ERROR(find(text, piece.begin, stretches));
    if (invert) {
      for (Stretch& s : stretches) s.is_match = !s.is_match;
    }
    apply_behavior(stretches, behavior);
    for (const Stretch& s : stretches) {
      if (s.begin < s.end) out.push_back({s.begin, s.end, piece.at_origin && s.begin == piece.begin});
    }
  }
  pieces.pieces = std::move(out);
  return {};
}

// Each character for which the predicate holds is a match.
template <class Predicate>
void find_chars(std::string_view text, size_t base, std::vector<Stretch>& out, Predicate is_match) {
  size_t gap = 0;
  for (size_t at = 0, size = 0; at < text.size(); at += size) {
    if (!is_match(utf8_at(text, at, size))) continue;
    if (gap < at) out.push_back({base + gap, base + at, false});
    out.push_back({base + at, base + at + size, true});
    gap = at + size;
  }
  if (gap < text.size()) out.push_back({base + gap, base + text.size(), false});
}

void find_literal(std::string_view text, size_t base, std::vector<Stretch>& out, std::string_view literal) {
  size_t gap = 0;
  while (true) {
    const size_t at = text.find(literal, gap);
    if (at == std::string_view::npos) break;
    if (gap < at) out.push_back({base + gap, base + at, false});
    gap = at + literal.size();
    out.push_back({base + at, base + gap, true});
  }
  if (gap < text.size()) out.push_back({base + gap, base + text.size(), false});
}

template <class Apply>
class FunctionPreTokenizer final : public PreTokenizer {
 public:
  explicit FunctionPreTokenizer(Apply apply) : apply_(std::move(apply)) {}
  Status apply(Pieces& pieces) const override { return apply_(pieces); }

 private:
  Apply apply_;
};

template <class Apply>
PreTokenizerPtr from_function(Apply apply) {
  return std::make_unique<FunctionPreTokenizer<Apply>>(std::move(apply));
}

// Rewrites the text of every piece by append(out, text, piece).
template <class Append>
void rewrite_pieces(Pieces& pieces, Append append) {
  std::string text;
  text.reserve(pieces.text.size() + pieces.text.size() / 2 + 8);
  for (Piece& piece : pieces.pieces) {
    const size_t begin = text.size();
    append(text, std::string_view(pieces.text.data() + piece.begin, piece.end - piece.begin), piece);
    piece.begin = begin;
    piece.end = text.size();
  }
  pieces.text = std::move(text);
}

}  // namespace

PreTokenizerPtr make_sequence_pre_tokenizer(std::vector<PreTokenizerPtr> steps) {
  return from_function([steps = std::move(steps)](Pieces& pieces) -> Status {
    for (const PreTokenizerPtr& step : steps) HEADRACE_RETURN_IF_ERROR(step->apply(pieces));
    return {};
  });
}

PreTokenizerPtr make_regex_split(Regex pattern, SplitBehavior behavior, bool invert) {
  return from_function([=, pattern = std::move(pattern)](Pieces& pieces) {
    RegexScratch scratch;
    return split_pieces(pieces, behavior, invert, [&](std::string_view text, size_t base, std::vector<Stretch>& out) {
      return pattern.split(text, base, out, scratch);
    });
  });
}

PreTokenizerPtr make_literal_split(std::string literal, SplitBehavior behavior, bool invert) {
  return from_function([=, literal = std::move(literal)](Pieces& pieces) {
    return split_pieces(pieces, behavior, invert,
                        [&](std::string_view text, size_t base, std::vector<Stretch>& out) -> Status {
                          find_literal(text, base, out, literal);
                          return {};
                        });
  });
}

PreTokenizerPtr make_char_split(bool (*is_delimiter)(char32_t), SplitBehavior behavior) {
  return from_function([=](Pieces& pieces) {
    return split_pieces(pieces, behavior, false,
                        [&](std::string_view text, size_t base, std::vector<Stretch>& out) -> Status {
                          find_chars(text, base, out, is_delimiter);
                          return {};
                        });
  });
}

PreTokenizerPtr make_whitespace_pre_tokenizer() {
  return from_function([](Pieces& pieces) {
    const auto find = [](std::string_view text, size_t base, std::vector<Stretch>& out) -> Status {
      enum class Kind { kSpace, kWord, kOther };
      const auto kind_of = [](char32_t c) {
        return is_word(c) ? Kind::kWord : is_whitespace(c) ? Kind::kSpace : Kind::kOther;
      };
      for (size_t at = 0, size = 0; at < text.size();) {
        const Kind kind = kind_of(utf8_at(text, at, size));
        size_t end = at + size;
        while (end < text.size() && kind_of(utf8_at(text, end, size)) == kind) end += size;
        out.push_back({base + at, base + end, kind == Kind::kSpace});
        at = end;
      }
      return {};
    };
    return split_pieces(pieces, SplitBehavior::kRemoved, false, find);
  });
}

PreTokenizerPtr make_fixed_length_pre_tokenizer(size_t chars) {
  return from_function([chars](Pieces& pieces) {
    const auto find = [chars](std::string_view text, size_t base, std::vector<Stretch>& out) -> Status {
      for (size_t at = 0; at < text.size();) {
        size_t end = at;
        for (size_t n = 0; n < chars && end < text.size(); ++n) end += utf8_length(text[end]);
        out.push_back({base + at, base + end, false});
        at = end;
      }
      return {};
    };
    return split_pieces(pieces, SplitBehavior::kIsolated, false, find);
  });
}

PreTokenizerPtr make_metaspace_pre_tokenizer(std::string replacement, PrependScheme scheme, bool split) {
  return from_function([=, replacement = std::move(replacement)](Pieces& pieces) -> Status {
    rewrite_pieces(pieces, [&](std::string& out, std::string_view text, const Piece& piece) {
      const bool wanted = scheme == PrependScheme::kAlways || (scheme == PrependScheme::kFirst && piece.at_origin);
      if (wanted && !text.starts_with(' ') && !text.starts_with(replacement)) out.append(replacement);
      for (const char c : text) {
        if (c == ' ') {
          out.append(replacement);
        } else {
          out.push_back(c);
        }
      }
    });
    if (!split) return {};
    return split_pieces(pieces, SplitBehavior::kMergedWithNext, false,
                        [&](std::string_view text, size_t base, std::vector<Stretch>& out) -> Status {
                          find_literal(text, base, out, replacement);
                          return {};
                        });
  });
}

PreTokenizerPtr make_byte_level_pre_tokenizer(bool add_prefix_space, std::optional<Regex> pattern) {
  return from_function([=, pattern = std::move(pattern)](Pieces& pieces) -> Status {
    if (add_prefix_space) {
      rewrite_pieces(pieces, [](std::string& out, std::string_view text, const Piece&) {
        if (!text.starts_with(' ')) out.push_back(' ');
        out.append(text);
      });
    }
    if (pattern) {
      RegexScratch scratch;
      HEADRACE_RETURN_IF_ERROR(split_pieces(pieces, SplitBehavior::kIsolated, false,
                                            [&](std::string_view text, size_t base, std::vector<Stretch>& out) {
                                              return pattern->split(text, base, out, scratch);
                                            }));
    }
    rewrite_pieces(pieces, [](std::string& out, std::string_view text, const Piece&) { append_byte_level(out, text); });
    return {};
  });
}

}  // namespace headrace::text
