// The one wrapper around every C body: no exception leaves it, and every failure becomes a code and an error object.
#pragma once

#include <algorithm>
#include <cstring>
#include <exception>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include <headrace/headrace.h>

#include "base/status.h"

struct headrace_error {
  headrace_status code = HEADRACE_OK;
  std::string message;
  std::string place;
};

namespace headrace::capi {

// Hands `status` to the caller; where even that does not fit into memory, *error is NULL and the code remains.
inline headrace_status report(const Status& status, headrace_error** error) noexcept {
  if (error == nullptr || status.ok()) return static_cast<headrace_status>(status.code());
  try {
    *error = new headrace_error{static_cast<headrace_status>(status.code()), status.message(), status.place()};
  } catch (...) {
    *error = nullptr;
  }
  return static_cast<headrace_status>(status.code());
}

// Hands out a failure found while an exception is handled. Its words are copied here, where running out of memory again
// costs the words and not the process.
inline headrace_status report_caught(StatusCode code, const char* message, const char* detail,
                                     headrace_error** error) noexcept {
  if (error == nullptr) return static_cast<headrace_status>(code);
  try {
    *error = new headrace_error{static_cast<headrace_status>(code), std::string(message) + detail, std::string()};
  } catch (...) {
    *error = nullptr;
  }
  return static_cast<headrace_status>(code);
}

// Runs `body`, which returns a Status.
template <class Body>
headrace_status guarded(headrace_error** error, const Body& body) noexcept {
  if (error != nullptr) *error = nullptr;
  try {
    return report(body(), error);
  } catch (const std::bad_alloc&) {
    return report_caught(StatusCode::kOutOfMemory, "an allocation failed", "", error);
  } catch (const std::length_error&) {
    return report_caught(StatusCode::kOutOfMemory, "a size is beyond what a container can hold", "", error);
  } catch (const std::exception& exception) {
    return report_caught(StatusCode::kInternal, "unexpected exception: ", exception.what(), error);
  } catch (...) {
    return report_caught(StatusCode::kInternal, "unexpected exception", "", error);
  }
}

inline Status null_argument(const char* name) { return invalid_argument(name, "is NULL"); }

// A text argument: NULL is allowed only with size 0.
inline Result<std::string_view> text_argument(const char* name, const char* text, size_t size) {
  if (text == nullptr && size != 0) return null_argument(name);
  return text == nullptr ? std::string_view() : std::string_view(text, size);
}

// Token ids, each within the vocabulary.
inline Status check_tokens(const char* name, const int32_t* tokens, size_t num_tokens, int32_t vocab_size) {
  if (tokens == nullptr && num_tokens != 0) return null_argument(name);
  for (size_t i = 0; i < num_tokens; ++i) {
    if (tokens[i] >= 0 && tokens[i] < vocab_size) continue;
    return invalid_argument(fmt::format("{}[{}]", name, i), "{} is outside the vocabulary of {}", tokens[i],
                            vocab_size);
  }
  return Status();
}

// A truth value of the interface: other numbers are a caller's mistake.
inline Result<bool> flag_argument(const char* name, int64_t value) {
  if (value != 0 && value != 1) return invalid_argument(name, "{} is neither 0 nor 1", value);
  return value == 1;
}

// A path for the system's calls, which end at the first zero byte.
inline Result<std::string_view> path_argument(const char* path, size_t size) {
  HEADRACE_ASSIGN_OR_RETURN(const std::string_view text, text_argument("path", path, size));
  if (text.empty()) return invalid_argument("path", "is empty");
  if (text.find('\0') != std::string_view::npos) return invalid_argument("path", "holds a zero byte");
  return text;
}

// The (buffer, capacity, *needed) convention, counted in elements.
template <class Element>
Status copy_out(const Element* values, size_t count, Element* buffer, size_t capacity, size_t* needed) {
  if (needed == nullptr) return null_argument("needed");
  if (buffer == nullptr && capacity != 0) return null_argument("buffer");
  *needed = count;
  if (count > capacity) {
    return Status(StatusCode::kBufferTooSmall, fmt::format("{} do not fit into a capacity of {}", count, capacity));
  }
  if (count != 0) std::memcpy(buffer, values, count * sizeof(Element));
  return Status();
}
inline Status copy_text(std::string_view text, char* buffer, size_t capacity, size_t* needed) {
  return copy_out(text.data(), text.size(), buffer, capacity, needed);
}

// An open struct as the caller gave it, read into this build's: a size that was never set, or a tail of a newer header
// that is not zero, is refused. kFirstSize is the struct's size in ABI version 1.
template <class Struct>
Result<Struct> read_struct(const char* name, const Struct* given, size_t first_size) {
  if (given == nullptr) return null_argument(name);
  uint32_t size = 0;
  std::memcpy(&size, given, sizeof size);
  if (size < first_size) {
    return invalid_argument(std::string(name) + ".struct_size", "{} is too small; call headrace_<struct>_init first",
                            size);
  }
  // No header will ever define such a struct: memory that was not initialized must not steer how far is read.
  constexpr uint32_t kLargestSize = 4096;
  if (size > kLargestSize) {
    return invalid_argument(std::string(name) + ".struct_size", "{} is too large; call headrace_<struct>_init first",
                            size);
  }
  const unsigned char* bytes = reinterpret_cast<const unsigned char*>(given);
  for (size_t i = sizeof(Struct); i < size; ++i) {
    if (bytes[i] != 0)
      return invalid_argument(std::string(name) + ".struct_size", "a field this library does not know is set");
  }
  Struct copy = {};
  std::memcpy(&copy, given, std::min<size_t>(size, sizeof(Struct)));
  return copy;
}

// All zero but for its size; nothing for NULL.
template <class Struct>
void init_struct(Struct* out) {
  if (out == nullptr) return;
  *out = Struct{};
  out->struct_size = sizeof *out;
}

// The other direction: fills what the caller's struct has room for and keeps its size.
template <class Struct>
Status write_struct(const char* name, const Struct& values, Struct* out, size_t first_size) {
  HEADRACE_ASSIGN_OR_RETURN(const Struct given, read_struct(name, out, first_size));
  const uint32_t size = given.struct_size;
  std::memcpy(out, &values, std::min<size_t>(size, sizeof(Struct)));
  out->struct_size = size;
  return Status();
}

}  // namespace headrace::capi
