#include "text/jinja/styled_text.h"

#include <algorithm>

#include "text/utf8.h"

namespace headrace::text::jinja {
namespace {

size_t count_code_points(std::string_view bytes) {
  size_t count = 0;
  for (const char byte : bytes) count += (static_cast<uint8_t>(byte) & 0xC0u) != 0x80u;
  return count;
}

}  // namespace

size_t StyledText::offset_of(size_t index) const {
  if (ascii() || index == 0) return index;
  size_t offset = 0;
  while (index > 0 && offset < bytes.size()) {
    offset += utf8_length(bytes[offset]);
    --index;
  }
  return offset;
}

size_t StyledText::index_of(size_t offset) const {
  return ascii() ? offset : count_code_points(std::string_view(bytes).substr(0, offset));
}

uint8_t StyledText::origin_at(size_t offset) const {
  const auto run = std::upper_bound(runs.begin(), runs.end(), offset,
                                    [](size_t value, const Run& candidate) { return value < candidate.end; });
  return run == runs.end() ? kContent : run->origin;
}

uint8_t StyledText::origins() const {
  uint8_t all = 0;
  for (const Run& run : runs) all |= run.origin;
  return all;
}

void TextBuilder::append(std::string_view bytes, uint8_t origin) {
  if (bytes.empty()) return;
  heap_.check_string(text_.bytes.size() + bytes.size());
  heap_.step(bytes.size() / 64);
  text_.bytes.append(bytes);
  if (!text_.runs.empty() && text_.runs.back().origin == origin) {
    text_.runs.back().end = text_.bytes.size();
  } else {
    text_.runs.push_back({text_.bytes.size(), origin});
  }
}

void TextBuilder::append(const StyledText& text, size_t begin, size_t end, uint8_t more_origin) {
  size_t at = begin;
  auto run = std::upper_bound(text.runs.begin(), text.runs.end(), begin,
                              [](size_t value, const Run& candidate) { return value < candidate.end; });
  for (; at < end && run != text.runs.end(); ++run) {
    const size_t stop = std::min(end, run->end);
    append(std::string_view(text.bytes).substr(at, stop - at), run->origin | more_origin);
    at = stop;
  }
}

void TextBuilder::append(char32_t code_point, uint8_t origin) {
  std::string bytes;
  utf8_append(bytes, code_point);
  append(bytes, origin);
}

void TextBuilder::append_repeated(std::string_view bytes, size_t count, uint8_t origin) {
  if (bytes.empty() || count == 0) return;
  if (count > heap_.limits().max_string_bytes / bytes.size()) heap_.check_string(SIZE_MAX);
  for (size_t i = 0; i < count; ++i) append(bytes, origin);
}

StyledText TextBuilder::finish() {
  text_.length = count_code_points(text_.bytes);
  return std::move(text_);
}

StyledText plain_text(std::string bytes, uint8_t origin) {
  StyledText text;
  text.length = count_code_points(bytes);
  if (!bytes.empty()) text.runs.push_back({bytes.size(), origin});
  text.bytes = std::move(bytes);
  return text;
}

StyledText slice_text(Heap& heap, const StyledText& text, size_t begin, size_t end) {
  TextBuilder builder(heap);
  if (begin < end) builder.append(text, begin, end);
  StyledText out = builder.finish();
  out.markup = text.markup;
  return out;
}

}  // namespace headrace::text::jinja
