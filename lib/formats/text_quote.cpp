#include "formats/text_quote.h"

#include "base/format.h"

namespace headrace {

std::string quote_name(std::string_view name, size_t max_bytes) {
  std::string out;
  for (const char c : name.substr(0, max_bytes)) {
    const unsigned char byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte >= 0x7f) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  if (name.size() > max_bytes) out += "...";
  return out;
}

}  // namespace headrace
