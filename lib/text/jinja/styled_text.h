// Text that knows the origin of each of its bytes: the template's author, or a caller. The origin follows the
// bytes through every operation of the template language, so that what a user typed never turns into
// scaffold.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/heap.h"

namespace headrace::text::jinja {

// Bits of an origin.
inline constexpr uint8_t kTrusted = 0;    // the template's literals and the special tokens
inline constexpr uint8_t kContent = 1;    // a caller's words, or not known to be anything else
inline constexpr uint8_t kGenerated = 2;  // written inside {% generation %}

// Bytes from the end of the run before up to `end`.
struct Run {
  size_t end = 0;
  uint8_t origin = kTrusted;
};

// Immutable once built. `bytes` is valid UTF-8, `runs` cover it and neighbours differ.
struct StyledText {
  std::string bytes;
  std::vector<Run> runs;
  bool markup = false;  // jinja2's Markup, as the filters `safe` and `escape` make it

  bool ascii() const { return length == bytes.size(); }
  size_t length = 0;  // in code points

  // Byte offset of a code point; `index` may be `length`.
  size_t offset_of(size_t index) const;
  // Number of code points before a byte offset.
  size_t index_of(size_t offset) const;
  uint8_t origin_at(size_t offset) const;
  // Bits that some byte has.
  uint8_t origins() const;
};

// Builds a StyledText; fails when it grows over the heap's longest string.
class TextBuilder {
 public:
  explicit TextBuilder(Heap& heap) : heap_(heap) {}

  void append(std::string_view bytes, uint8_t origin);
  void append(const StyledText& text, uint8_t more_origin = 0) { append(text, 0, text.bytes.size(), more_origin); }
  // Bytes [begin, end) of `text`.
  void append(const StyledText& text, size_t begin, size_t end, uint8_t more_origin = 0);
  void append(char32_t code_point, uint8_t origin);
  void append_repeated(std::string_view bytes, size_t count, uint8_t origin);

  size_t size() const { return text_.bytes.size(); }
  Heap& heap() { return heap_; }
  StyledText finish();

 private:
  Heap& heap_;
  StyledText text_;
};

// A text of one origin.
StyledText plain_text(std::string bytes, uint8_t origin);
StyledText slice_text(Heap& heap, const StyledText& text, size_t begin, size_t end);

}  // namespace headrace::text::jinja
