// Ids to text while they are being generated: whole characters as early as they are whole, and nothing twice.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "text/tokenizer.h"

namespace headrace::text {

// One per generated text; not thread-safe. The concatenation of all pieces, flush included, is what
// Tokenizer::decode gives for the whole sequence of ids.
class StreamingDetokenizer {
 public:
  StreamingDetokenizer(std::shared_ptr<const Tokenizer> tokenizer, bool skip_special);
  ~StreamingDetokenizer();
  StreamingDetokenizer(StreamingDetokenizer&&) noexcept;
  StreamingDetokenizer& operator=(StreamingDetokenizer&&) noexcept;

  // Text that became certain by this id: valid UTF-8, possibly empty. An incomplete character is held back; a
  // byte that can be part of no character gives one U+FFFD.
  std::string push(int32_t id);

  // The end: what is held back, with one U+FFFD for an incomplete character. The object then starts afresh.
  std::string flush();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace headrace::text
