// How the template engine fails within this folder: an exception that never leaves it (ChatTemplate turns it
// into a Status), since every expression can fail and a failure always ends the whole parse or rendering.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "base/format.h"

#include "base/status.h"

namespace headrace::text::jinja {

// A place in the template, counted from 1; columns count code points. Line 0: not known.
struct Position {
  uint32_t line = 0;
  uint32_t column = 0;
};

inline std::string to_string(Position position) {
  return position.line == 0 ? std::string() : fmt::format("line {}, column {}", position.line, position.column);
}

struct Failure {
  StatusCode code;
  std::string message;
  Position position;
};

// The data doesn't fit the template: wrong types, undefined values.
template <class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> message, Args&&... args) {
  throw Failure{StatusCode::kInvalidArgument, fmt::format(message, std::forward<Args>(args)...), {}};
}

// The template itself is wrong at `position`.
template <class... Args>
[[noreturn]] void fail_at(Position position, fmt::format_string<Args...> message, Args&&... args) {
  throw Failure{StatusCode::kMalformed, fmt::format(message, std::forward<Args>(args)...), position};
}

template <class... Args>
[[noreturn]] void exhausted(fmt::format_string<Args...> message, Args&&... args) {
  throw Failure{StatusCode::kResourceExhausted, fmt::format(message, std::forward<Args>(args)...), {}};
}

}  // namespace headrace::text::jinja
