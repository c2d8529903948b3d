// Operations on texts that methods and filters share.
#pragma once

#include <optional>
#include <string>

#include "text/jinja/value.h"

namespace headrace::text::jinja {

enum class CaseMapping : uint8_t { kUpper, kLower, kFold, kTitle, kCapitalize, kSwap };
StyledText map_text_case(Heap& heap, const StyledText& text, CaseMapping mapping);

enum class CaseTest : uint8_t { kUpper, kLower, kTitle };
bool text_case_is(std::string_view bytes, CaseTest test);

// Strips whitespace, or the code points of `characters`, from the chosen ends.
StyledText strip_text(Heap& heap, const StyledText& text, const std::string* characters, bool left, bool right);
// limit < 0: all occurrences.
StyledText replace_text(Heap& heap, const StyledText& text, const std::string& before, const StyledText& after,
                        int64_t limit);
// At whitespace when `separator` is null; at most `limit` cuts when that isn't negative.
Values split_text(Heap& heap, const StyledText& text, const std::string* separator, int64_t limit, bool from_right);
Values split_text_lines(Heap& heap, const StyledText& text, bool keep_ends);
// side -1: text left, 0: centre, 1: text right.
StyledText justify_text(Heap& heap, const StyledText& text, int64_t width, const StyledText& fill, int side);

}  // namespace headrace::text::jinja
