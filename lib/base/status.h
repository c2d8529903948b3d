// Status and Result: how every fallible function of the library reports failure. No exception crosses a folder.
#pragma once

#include <headrace/headrace.h>

#include <cassert>
#include <optional>
#include <string>
#include <utility>

#include "base/format.h"

namespace headrace {

// The codes of headrace.h, so that no translation stands between a parser and the C ABI.
enum class StatusCode : int32_t {
  kOk = HEADRACE_OK,
  kInvalidArgument = HEADRACE_INVALID_ARGUMENT,
  kNotFound = HEADRACE_NOT_FOUND,
  kIo = HEADRACE_IO_ERROR,
  kMalformed = HEADRACE_MALFORMED,
  kUnsupported = HEADRACE_UNSUPPORTED,
  kOutOfMemory = HEADRACE_OUT_OF_MEMORY,
  kResourceExhausted = HEADRACE_RESOURCE_EXHAUSTED,
  kFailedPrecondition = HEADRACE_FAILED_PRECONDITION,
  kCancelled = HEADRACE_CANCELLED,
  kDeadlineExceeded = HEADRACE_DEADLINE_EXCEEDED,
  kBufferTooSmall = HEADRACE_BUFFER_TOO_SMALL,
  kInternal = HEADRACE_INTERNAL,
};

// An outcome: ok, or a code with a message for people and the place it speaks of (a tensor name, a metadata key, a
// JSON pointer, "line 3, column 9"). The place is kept apart from the message so that callers can act on it.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message, std::string place = {})
      : code_(code), message_(std::move(message)), place_(std::move(place)) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }
  const std::string& place() const { return place_; }

  // "place: message", for logs and tests.
  std::string to_string() const;

  // The same failure seen from further out: `outer` is put before the place ("blk.0.attn_q.weight" under
  // "model.gguf" becomes "model.gguf: blk.0.attn_q.weight").
  Status within(std::string_view outer) const;

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
  std::string place_;
};

// The system's words for an errno.
std::string errno_text(int error);

// Makers in fmt's syntax: return malformed("blk.0", "shape {} overflows", n).
#define HEADRACE_STATUS_MAKER(name, code)                                                     \
  template <class... Args>                                                                    \
  Status name(std::string place, fmt::format_string<Args...> message, Args&&... args) {       \
    return Status(code, fmt::format(message, std::forward<Args>(args)...), std::move(place)); \
  }
HEADRACE_STATUS_MAKER(invalid_argument, StatusCode::kInvalidArgument)
HEADRACE_STATUS_MAKER(not_found, StatusCode::kNotFound)
HEADRACE_STATUS_MAKER(io_error, StatusCode::kIo)
HEADRACE_STATUS_MAKER(malformed, StatusCode::kMalformed)
HEADRACE_STATUS_MAKER(unsupported, StatusCode::kUnsupported)
HEADRACE_STATUS_MAKER(out_of_memory, StatusCode::kOutOfMemory)
HEADRACE_STATUS_MAKER(resource_exhausted, StatusCode::kResourceExhausted)
HEADRACE_STATUS_MAKER(failed_precondition, StatusCode::kFailedPrecondition)
HEADRACE_STATUS_MAKER(cancelled, StatusCode::kCancelled)
HEADRACE_STATUS_MAKER(internal_error, StatusCode::kInternal)
#undef HEADRACE_STATUS_MAKER

// A value, or the Status that says why there is none.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}  // NOLINT: implicit, so that `return value;` reads well
  Result(Status status) : status_(std::move(status)) { assert(!status_.ok()); }  // NOLINT

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }

  T& operator*() { return *value_; }
  const T& operator*() const { return *value_; }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }
  T take() { return std::move(*value_); }

 private:
  std::optional<T> value_;
  Status status_;
};

#define HEADRACE_CONCAT_INNER(a, b) a##b
#define HEADRACE_CONCAT(a, b) HEADRACE_CONCAT_INNER(a, b)

// return the failure of `expression` (a Status), or go on.
#define HEADRACE_RETURN_IF_ERROR(expression)                        \
  do {                                                              \
    if (::headrace::Status status_ = (expression); !status_.ok()) { \
      return status_;                                               \
    }                                                               \
  } while (false)

// HEADRACE_ASSIGN_OR_RETURN(auto x, make_x()): declare or assign from a Result, or return its failure.
#define HEADRACE_ASSIGN_OR_RETURN(target, expression)     \
  auto HEADRACE_CONCAT(result_, __LINE__) = (expression); \
  if (!HEADRACE_CONCAT(result_, __LINE__).ok()) {         \
    return HEADRACE_CONCAT(result_, __LINE__).status();   \
  }                                                       \
  target = HEADRACE_CONCAT(result_, __LINE__).take()

}  // namespace headrace
