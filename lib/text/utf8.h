// UTF-8: decoding, encoding, validation and repair.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace headrace::text {

// What stands at the start of some bytes.
struct Utf8Step {
  enum class Kind : uint8_t {
    kChar,        // a whole character, `size` bytes long
    kIncomplete,  // the bytes end inside a character that more bytes could complete; `size` = all of them
    kInvalid,     // `size` bytes (a maximal subpart, at least one) that no bytes to follow can make a character
  };
  Kind kind = Kind::kInvalid;
  uint8_t size = 0;
  char32_t code_point = 0;  // of kChar
};

// `bytes` must not be empty.
Utf8Step utf8_step(std::string_view bytes);

// The character at `offset` of a text known to be valid UTF-8, and its length in `size`.
inline char32_t utf8_at(std::string_view valid, size_t offset, size_t& size) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(valid[offset + i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return size = 1, lead;
  if (lead < 0xE0) return size = 2, char32_t((lead & 0x1Fu) << 6 | (byte(1) & 0x3Fu));
  if (lead < 0xF0) return size = 3, char32_t((lead & 0x0Fu) << 12 | (byte(1) & 0x3Fu) << 6 | (byte(2) & 0x3Fu));
  size = 4;
  return char32_t((lead & 0x07u) << 18 | (byte(1) & 0x3Fu) << 12 | (byte(2) & 0x3Fu) << 6 | (byte(3) & 0x3Fu));
}

// Length in bytes of the character whose first byte is `lead`, in valid UTF-8.
inline size_t utf8_length(char lead) {
  const auto byte = static_cast<uint8_t>(lead);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

// Appends a code point (a scalar value).
void utf8_append(std::string& out, char32_t code_point);

// Offset of the first byte that is not part of a valid character, or npos.
size_t utf8_invalid_offset(std::string_view bytes);

// Appends `bytes` with U+FFFD in place of each maximal invalid subpart; an incomplete end counts as invalid.
void utf8_append_sanitized(std::string& out, std::string_view bytes);

}  // namespace headrace::text
