#include "text/utf8.h"

namespace headrace::text {

Utf8Step utf8_step(std::string_view bytes) {
  using Kind = Utf8Step::Kind;
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(bytes[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return {Kind::kChar, 1, lead};
  // Bounds of the second byte exclude overlong forms, surrogates and values over U+10FFFF (Unicode, table
  // 3-7).
  uint8_t low = 0x80, high = 0xBF;
  size_t size = 0;
  char32_t value = 0;
  if (lead >= 0xC2 && lead <= 0xDF) {
    size = 2, value = lead & 0x1Fu;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    size = 3, value = lead & 0x0Fu;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    size = 4, value = lead & 0x07u;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  } else {
    return {Kind::kInvalid, 1, 0};
  }
  for (size_t i = 1; i < size; ++i) {
    if (i == bytes.size()) return {Kind::kIncomplete, static_cast<uint8_t>(i), 0};
    const uint8_t next = byte(i);
    if (next < low || next > high) return {Kind::kInvalid, static_cast<uint8_t>(i), 0};
    value = value << 6 | (next & 0x3Fu);
    low = 0x80, high = 0xBF;
  }
  return {Kind::kChar, static_cast<uint8_t>(size), value};
}

void utf8_append(std::string& out, char32_t c) {
  const auto put = [&](char32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | c >> 6), put(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    put(0xE0 | c >> 12), put(0x80 | (c >> 6 & 0x3F)), put(0x80 | (c & 0x3F));
  } else {
    put(0xF0 | c >> 18), put(0x80 | (c >> 12 & 0x3F)), put(0x80 | (c >> 6 & 0x3F)), put(0x80 | (c & 0x3F));
  }
}

size_t utf8_invalid_offset(std::string_view bytes) {
  size_t at = 0;
  while (at < bytes.size()) {
    if (static_cast<uint8_t>(bytes[at]) < 0x80) {
      ++at;
      continue;
    }
    const Utf8Step step = utf8_step(bytes.substr(at));
    if (step.kind != Utf8Step::Kind::kChar) return at;
    at += step.size;
  }
  return std::string_view::npos;
}

void utf8_append_sanitized(std::string& out, std::string_view bytes) {
  while (!bytes.empty()) {
    const Utf8Step step = utf8_step(bytes);
    if (step.kind == Utf8Step::Kind::kChar) {
      out.append(bytes.substr(0, step.size));
    } else {
      out.append("\xEF\xBF\xBD");
    }
    bytes.remove_prefix(step.size);
  }
}

}  // namespace headrace::text
