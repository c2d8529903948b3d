// SentencePiece's precompiled character map, applied the way Hugging Face's tokenizers do: to a whole
// grapheme of fewer than six bytes first (any rule that is a prefix of it replaces all of it), else character
// by character.
#include <utf8proc.h>

#include <cstring>

#include "text/normalizer.h"
#include "text/utf8.h"

namespace headrace::text {
namespace {

class PrecompiledNormalizer final : public Normalizer {
 public:
  PrecompiledNormalizer(std::vector<uint32_t> units, std::string replacements)
      : units_(std::move(units)), replacements_(std::move(replacements)) {}

  Status apply(NormalizedText& value) const override {
    const std::string& text = value.text;
    std::string out;
    out.reserve(text.size());
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = grapheme_end(text, begin);
      const std::string_view grapheme(text.data() + begin, end - begin);
      begin = end;
      std::string_view replacement;
      if (grapheme.size() < 6 && find(grapheme, replacement)) {
        out.append(replacement);
        continue;
      }
      for (size_t at = 0; at < grapheme.size();) {
        const std::string_view part = grapheme.substr(at, utf8_length(grapheme[at]));
        out.append(find(part, replacement) ? replacement : part);
        at += part.size();
      }
    }
    value.text = std::move(out);
    return {};
  }

 private:
  static size_t grapheme_end(std::string_view text, size_t begin) {
    size_t size = 0;
    auto previous = static_cast<utf8proc_int32_t>(utf8_at(text, begin, size));
    size_t at = begin + size;
    utf8proc_int32_t state = 0;
    while (at < text.size()) {
      const auto next = static_cast<utf8proc_int32_t>(utf8_at(text, at, size));
      if (utf8proc_grapheme_break_stateful(previous, next, &state)) break;
      previous = next;
      at += size;
    }
    return at;
  }

  // The rule for the shortest prefix of `key` that has one.
  bool find(std::string_view key, std::string_view& replacement) const {
    const auto offset = [](uint32_t unit) { return (unit >> 10) << ((unit & (1u << 9)) >> 6); };
    uint32_t node = offset(units_[0]);
    for (const char c : key) {
      const auto byte = static_cast<uint8_t>(c);
      if (byte == 0) return false;
      node ^= byte;
      if (node >= units_.size()) return false;
      const uint32_t unit = units_[node];
      if ((unit & ((1u << 31) | 0xFF)) != byte) return false;
      node ^= offset(unit);
      if (node >= units_.size()) return false;
      if ((unit >> 8 & 1) == 1) {
        const uint32_t at = units_[node] & ((1u << 31) - 1);
        if (at >= replacements_.size()) return false;
        replacement = replacements_.c_str() + at;  // up to its NUL
        // An offset into the middle of a character would put broken UTF-8 into the text.
        return utf8_invalid_offset(replacement) == std::string_view::npos;
      }
    }
    return false;
  }

  std::vector<uint32_t> units_;
  std::string replacements_;
};

}  // namespace

Result<NormalizerPtr> make_precompiled_normalizer(std::string_view charsmap, std::string_view place) {
  uint32_t size = 0;
  if (charsmap.size() < sizeof size) return malformed(std::string(place), "the character map ends within its header");
  std::memcpy(&size, charsmap.data(), sizeof size);
  charsmap.remove_prefix(sizeof size);
  size -= size % 4;
  if (size == 0 || size > charsmap.size()) {
    return malformed(std::string(place), "a trie of {} bytes in {} bytes of character map", size, charsmap.size());
  }
  std::vector<uint32_t> units(size / 4);
  std::memcpy(units.data(), charsmap.data(), size);
  std::string replacements(charsmap.substr(size));
  if (utf8_invalid_offset(replacements) != std::string_view::npos) {
    return malformed(std::string(place), "the replacements are not UTF-8");
  }
  return NormalizerPtr(std::make_unique<PrecompiledNormalizer>(std::move(units), std::move(replacements)));
}

}  // namespace headrace::text
