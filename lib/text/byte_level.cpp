#include "text/byte_level.h"

#include <array>

#include "text/utf8.h"

namespace headrace::text {
namespace {

constexpr bool is_printable(unsigned byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

// Printable bytes stand for themselves; the others get U+0100, U+0101 ... in their order.
constexpr std::array<uint16_t, 256> kCharOfByte = [] {
  std::array<uint16_t, 256> table{};
  uint16_t next = 0x100;
  for (unsigned byte = 0; byte < 256; ++byte) table[byte] = is_printable(byte) ? static_cast<uint16_t>(byte) : next++;
  return table;
}();

constexpr std::array<int16_t, 0x144> kByteOfChar = [] {
  std::array<int16_t, 0x144> table{};
  for (auto& entry : table) entry = -1;
  for (unsigned byte = 0; byte < 256; ++byte) table[kCharOfByte[byte]] = static_cast<int16_t>(byte);
  return table;
}();

}  // namespace

void append_byte_level(std::string& out, std::string_view bytes) {
  for (const char byte : bytes) {
    const uint16_t c = kCharOfByte[static_cast<uint8_t>(byte)];
    if (c < 0x80) {
      out.push_back(static_cast<char>(c));
    } else {
      out.push_back(static_cast<char>(0xC0 | c >> 6));
      out.push_back(static_cast<char>(0x80 | (c & 0x3F)));
    }
  }
}

void append_byte_level_decoded(std::string& out, std::string_view token) {
  const size_t start = out.size();
  for (size_t at = 0, size = 0; at < token.size(); at += size) {
    const char32_t c = utf8_at(token, at, size);
    if (c >= kByteOfChar.size() || kByteOfChar[c] < 0) {
      out.resize(start);
      out.append(token);
      return;
    }
    out.push_back(static_cast<char>(kByteOfChar[c]));
  }
}

}  // namespace headrace::text
