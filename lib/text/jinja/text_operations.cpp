#include "text/jinja/text_operations.h"

#include <algorithm>

#include "text/jinja/unicode.h"
#include "text/utf8.h"

namespace headrace::text::jinja {
namespace {

size_t previous_start(std::string_view bytes, size_t end) {
  size_t start = end - 1;
  while (start > 0 && (static_cast<uint8_t>(bytes[start]) & 0xC0u) == 0x80u) --start;
  return start;
}

char32_t character(std::string_view bytes, size_t at) {
  size_t size = 0;
  return utf8_at(bytes, at, size);
}

// Whether a sigma at [at, at + size) ends a word: a cased letter before it and none behind.
bool is_final_sigma(std::string_view bytes, size_t at, size_t size) {
  size_t end = at;
  while (end > 0) {
    const size_t start = previous_start(bytes, end);
    const char32_t c = character(bytes, start);
    if (!is_case_ignorable(c)) {
      if (!is_cased(c)) return false;
      break;
    }
    end = start;
  }
  if (end == 0) return false;
  for (size_t next = at + size; next < bytes.size();) {
    size_t length = 0;
    const char32_t c = utf8_at(bytes, next, length);
    if (!is_case_ignorable(c)) return !is_cased(c);
    next += length;
  }
  return true;
}

}  // namespace

StyledText map_text_case(Heap& heap, const StyledText& text, CaseMapping mapping) {
  TextBuilder out(heap);
  const std::string& bytes = text.bytes;
  heap.step(bytes.size() / 8);
  bool after_cased = false;
  size_t run = 0;
  for (size_t at = 0; at < bytes.size();) {
    size_t size = 0;
    const char32_t c = utf8_at(bytes, at, size);
    while (run < text.runs.size() && text.runs[run].end <= at) ++run;
    const uint8_t origin = text.runs[run].origin;
    const auto lower = [&] {
      if (c == 0x3A3) return std::u32string(1, is_final_sigma(bytes, at, size) ? U'\u03C2' : U'\u03C3');
      return to_lower(c);
    };
    std::u32string mapped;
    switch (mapping) {
      case CaseMapping::kUpper: mapped = to_upper(c); break;
      case CaseMapping::kLower: mapped = lower(); break;
      case CaseMapping::kFold:
        // Case folding is the lower case of the upper case, but for a few letters.
        for (const char32_t up : to_upper(c)) mapped += to_lower(up);
        break;
      case CaseMapping::kTitle:
        mapped = after_cased ? lower() : to_title(c);
        after_cased = is_cased(c);
        break;
      case CaseMapping::kCapitalize: mapped = at == 0 ? to_title(c) : lower(); break;
      case CaseMapping::kSwap: mapped = is_upper(c) ? lower() : is_lower(c) ? to_upper(c) : std::u32string(1, c); break;
    }
    for (const char32_t part : mapped) out.append(part, origin);
    at += size;
  }
  return out.finish();
}

bool text_case_is(std::string_view bytes, CaseTest test) {
  bool found = false;
  bool after_cased = false;
  for (size_t at = 0; at < bytes.size();) {
    size_t size = 0;
    const char32_t c = utf8_at(bytes, at, size);
    at += size;
    const bool upper = is_upper(c), lower = is_lower(c), title = is_title(c);
    switch (test) {
      case CaseTest::kUpper:
        if (lower || title) return false;
        found = found || upper;
        break;
      case CaseTest::kLower:
        if (upper || title) return false;
        found = found || lower;
        break;
      case CaseTest::kTitle:
        if (upper || title) {
          if (after_cased) return false;
          after_cased = found = true;
        } else if (lower) {
          if (!after_cased) return false;
          found = true;
        } else {
          after_cased = false;
        }
        break;
    }
  }
  return found;
}

StyledText strip_text(Heap& heap, const StyledText& text, const std::string* characters, bool left, bool right) {
  const std::string& bytes = text.bytes;
  const auto strips = [&](size_t at, size_t size) {
    if (!characters) return is_space(character(bytes, at));
    // Characters are self-delimiting in UTF-8, so a match of all bytes is one of a character.
    return characters->find(bytes.substr(at, size)) != std::string::npos;
  };
  size_t begin = 0, end = bytes.size();
  while (left && begin < end) {
    heap.step();
    const size_t size = utf8_length(bytes[begin]);
    if (!strips(begin, size)) break;
    begin += size;
  }
  while (right && end > begin) {
    heap.step();
    const size_t start = previous_start(bytes, end);
    if (!strips(start, end - start)) break;
    end = start;
  }
  return slice_text(heap, text, begin, end);
}

StyledText replace_text(Heap& heap, const StyledText& text, const std::string& before, const StyledText& after,
                        int64_t limit) {
  TextBuilder out(heap);
  const std::string& bytes = text.bytes;
  heap.step(bytes.size() / 32);
  size_t begin = 0;
  if (before.empty()) {
    // Between all characters, and at both ends.
    for (size_t at = 0; limit != 0; --limit) {
      heap.step();
      out.append(after);
      if (at >= bytes.size()) break;
      const size_t size = utf8_length(bytes[at]);
      out.append(text, at, at + size);
      at += size;
      begin = at;
    }
  } else {
    for (; limit != 0; --limit) {
      const size_t at = bytes.find(before, begin);
      if (at == std::string::npos) break;
      heap.step();
      out.append(text, begin, at);
      out.append(after);
      begin = at + before.size();
    }
  }
  out.append(text, begin, bytes.size());
  return out.finish();
}

Values split_text(Heap& heap, const StyledText& text, const std::string* separator, int64_t limit, bool from_right) {
  const std::string& bytes = text.bytes;
  heap.step(bytes.size() / 16);
  std::vector<std::pair<size_t, size_t>> parts;
  if (limit < 0) limit = INT64_MAX;
  const auto space_at = [&](size_t at) { return is_space(character(bytes, at)); };
  if (!separator && !from_right) {
    size_t at = 0;
    for (;;) {
      while (at < bytes.size() && space_at(at)) at += utf8_length(bytes[at]);
      if (at >= bytes.size()) break;
      if (limit-- == 0) {
        parts.emplace_back(at, bytes.size());
        break;
      }
      const size_t begin = at;
      while (at < bytes.size() && !space_at(at)) at += utf8_length(bytes[at]);
      parts.emplace_back(begin, at);
    }
    // A rest that isn't cut loses nothing at its end in Python's rule; only its front was skipped.
  } else if (!separator) {
    size_t end = bytes.size();
    for (;;) {
      while (end > 0 && space_at(previous_start(bytes, end))) end = previous_start(bytes, end);
      if (end == 0) break;
      if (limit-- == 0) {
        parts.emplace_back(0, end);
        break;
      }
      size_t begin = end;
      while (begin > 0 && !space_at(previous_start(bytes, begin))) begin = previous_start(bytes, begin);
      parts.emplace_back(begin, end);
      end = begin;
    }
  } else if (!from_right) {
    size_t begin = 0;
    for (;;) {
      const size_t at = limit-- > 0 ? bytes.find(*separator, begin) : std::string::npos;
      if (at == std::string::npos) break;
      parts.emplace_back(begin, at);
      begin = at + separator->size();
    }
    parts.emplace_back(begin, bytes.size());
  } else {
    size_t end = bytes.size();
    for (;;) {
      size_t at = std::string::npos;
      if (limit-- > 0 && end >= separator->size()) at = bytes.rfind(*separator, end - separator->size());
      if (at == std::string::npos) break;
      parts.emplace_back(at + separator->size(), end);
      end = at;
    }
    parts.emplace_back(0, end);
  }
  if (from_right) std::reverse(parts.begin(), parts.end());
  Values out;
  out.reserve(parts.size());
  for (const auto& [begin, end] : parts) out.push_back(make_string(heap, slice_text(heap, text, begin, end)));
  return out;
}

Values split_text_lines(Heap& heap, const StyledText& text, bool keep_ends) {
  const std::string& bytes = text.bytes;
  Values out;
  size_t begin = 0;
  for (size_t at = 0; at < bytes.size();) {
    size_t size = 0;
    if (!is_line_end(utf8_at(bytes, at, size))) {
      at += size;
      continue;
    }
    const size_t end = at;
    at += size;
    if (bytes[end] == '\r' && at < bytes.size() && bytes[at] == '\n') ++at;
    out.push_back(make_string(heap, slice_text(heap, text, begin, keep_ends ? at : end)));
    begin = at;
  }
  heap.step(bytes.size() / 16);
  if (begin < bytes.size()) out.push_back(make_string(heap, slice_text(heap, text, begin, bytes.size())));
  return out;
}

StyledText justify_text(Heap& heap, const StyledText& text, int64_t width, const StyledText& fill, int side) {
  const size_t missing = width > static_cast<int64_t>(text.length) ? static_cast<size_t>(width) - text.length : 0;
  // Python's centre puts an odd blank left when the width is odd.
  const size_t left = side < 0 ? 0 : side > 0 ? missing : missing / 2 + (missing & static_cast<size_t>(width) & 1);
  const uint8_t origin = fill.origins();
  TextBuilder out(heap);
  out.append_repeated(fill.bytes, left, origin);
  out.append(text);
  out.append_repeated(fill.bytes, missing - left, origin);
  return out.finish();
}

}  // namespace headrace::text::jinja
