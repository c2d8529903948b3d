#include "formats/json_writer.h"

#include <cmath>

#include "base/format_full.h"

namespace headrace {

void append_json_string(std::string& out, std::string_view text) {
  out += '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) < 0x20) {
      fmt::format_to(std::back_inserter(out), "\\u{:04x}", static_cast<unsigned>(c));
    } else {
      out += c;
    }
  }
  out += '"';
}

void JsonWriter::separate() {
  if (text_.empty()) return;
  const char last = text_.back();
  if (last != '{' && last != '[' && last != ':') text_ += ',';
}

void JsonWriter::key(std::string_view name) {
  separate();
  append_json_string(text_, name);
  text_ += ':';
}

void JsonWriter::value(std::string_view text) {
  separate();
  append_json_string(text_, text);
}

void JsonWriter::value(double number) {
  separate();
  if (!std::isfinite(number)) {
    text_ += "null";
    return;
  }
  const size_t begin = text_.size();
  fmt::format_to(std::back_inserter(text_), "{}", number);
  if (text_.find_first_not_of("-0123456789", begin) == std::string::npos) text_ += ".0";
}

void JsonWriter::members_of(std::string_view object) {
  if (object.size() <= 2) return;
  separate();
  text_ += object.substr(1, object.size() - 2);
}

}  // namespace headrace
