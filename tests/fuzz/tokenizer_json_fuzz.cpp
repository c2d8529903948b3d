// Any bytes as a tokenizer.json: loading refuses with a place, or gives a tokenizer whose every answer is
// sound.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "text/detokenizer.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace headrace::text;
  // What follows the first NUL is a text to encode.
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t cut = input.find('\0');
  const std::string_view file = input.substr(0, cut);
  std::string text = "Hello  World <s>\n'S 12345 \xE4\xB8\xAD\xF0\x9F\xA6\x99 e\xCC\x81\xC4\xB0";
  if (cut != std::string_view::npos) utf8_append_sanitized(text, input.substr(cut + 1));

  const auto made = Tokenizer::from_json(file);
  if (!made.ok()) {
    if (made.status().message().empty() || made.status().place().empty()) std::abort();
    return 0;
  }
  const Tokenizer& tokenizer = **made;
  for (const bool parse_special : {true, false}) {
    const auto ids = tokenizer.encode(text, {.add_special = true, .parse_special = parse_special});
    if (!ids.ok()) continue;
    for (const bool skip : {true, false}) {
      const std::string decoded = tokenizer.decode(*ids, skip);
      if (utf8_invalid_offset(decoded) != std::string_view::npos) std::abort();
      StreamingDetokenizer stream(*made, skip);
      std::string streamed;
      for (const int32_t id : *ids) streamed += stream.push(id);
      streamed += stream.flush();
      if (streamed != decoded) std::abort();
    }
    for (const int32_t id : *ids) (void)tokenizer.token_bytes(id);
  }
  const Tokenizer::Span spans[] = {{std::string_view(text).substr(0, 5), true},
                                   {std::string_view(text).substr(5), false}};
  (void)tokenizer.encode_spans(spans, false).ok();
  return 0;
}
