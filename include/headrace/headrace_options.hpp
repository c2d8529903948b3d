// What headrace.hpp starts from: errors, options, and runtimes that models share. Include headrace.hpp.
#pragma once

#include <headrace/headrace.h>
#include <headrace/headrace_experimental.h>

#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace headrace {
// The inline namespace keeps these names apart from the library's own when both are linked into one program.
inline namespace api_v1 {

// A failed call: its code, message and place.
class Error : public std::exception {
 public:
  Error(headrace_status code, std::string message, std::string place)
      : code_(code), message_(std::move(message)), place_(std::move(place)) {
    what_ = place_.empty() ? message_ : place_ + ": " + message_;
  }
  headrace_status code() const noexcept { return code_; }
  const std::string& message() const noexcept { return message_; }
  const std::string& place() const noexcept { return place_; }
  const char* what() const noexcept override { return what_.c_str(); }

 private:
  headrace_status code_;
  std::string message_, place_, what_;
};

namespace detail {

// Throws what `error` says (and destroys it) unless status is ok.
inline void check(headrace_status status, headrace_error* error) {
  if (status == HEADRACE_OK) return;
  std::string message = headrace_error_get_message(error), place = headrace_error_get_place(error);
  headrace_error_destroy(error);
  if (message.empty()) message = headrace_status_get_name(status);
  throw Error(status, std::move(message), std::move(place));
}

// Calls call(&error) and throws on failure.
template <class Call>
void call(const Call& function) {
  headrace_error* error = nullptr;
  const headrace_status status = function(&error);
  check(status, error);
}

// Runs a (buffer, capacity, needed) function: asks for the size, then fills. Repeats when the size grew in between.
template <class Element, class Call>
std::vector<Element> read_buffer(const Call& function) {
  std::vector<Element> buffer;
  for (;;) {
    size_t needed = 0;
    headrace_error* error = nullptr;
    const headrace_status status = function(buffer.empty() ? nullptr : buffer.data(), buffer.size(), &needed, &error);
    if (status == HEADRACE_BUFFER_TOO_SMALL) {
      headrace_error_destroy(error);
      buffer.resize(needed);
      continue;
    }
    check(status, error);
    buffer.resize(needed);
    return buffer;
  }
}

template <class Call>
std::string read_text(const Call& function) {
  const std::vector<char> text = read_buffer<char>(function);
  return std::string(text.begin(), text.end());
}

template <class Handle, void (*Destroy)(Handle*)>
struct Destroyer {
  void operator()(Handle* handle) const noexcept { Destroy(handle); }
};
template <class Handle, void (*Destroy)(Handle*)>
using Unique = std::unique_ptr<Handle, Destroyer<Handle, Destroy>>;

}  // namespace detail

class Options;

// Threads and memory that the models loaded with Options::set_runtime share.
class Runtime {
 public:
  inline explicit Runtime(const Options& options);
  headrace_runtime_stats stats() const {
    headrace_runtime_stats stats;
    headrace_runtime_stats_init(&stats);
    detail::call([&](headrace_error** error) { return headrace_runtime_get_stats(handle_.get(), &stats, error); });
    return stats;
  }
  const headrace_runtime* get() const { return handle_.get(); }

 private:
  detail::Unique<headrace_runtime, headrace_runtime_destroy> handle_;
};

// "engine.threads", "kv.dtype", ...: docs/c-abi.md lists them, Options::list() too.
class Options {
 public:
  Options() {
    headrace_options* handle = nullptr;
    detail::call([&](headrace_error** error) { return headrace_options_create(&handle, error); });
    handle_.reset(handle);
  }
  Options& set(std::string_view key, std::string_view value) {
    detail::call([&](headrace_error** error) {
      return headrace_options_set(handle_.get(), key.data(), key.size(), value.data(), value.size(), error);
    });
    return *this;
  }
  // The callback must outlive every object made with these options.
  Options& set_log(headrace_log_callback callback, void* user) {
    detail::call(
        [&](headrace_error** error) { return headrace_options_set_log(handle_.get(), callback, user, error); });
    return *this;
  }
  Options& set_runtime(const Runtime& runtime) {
    detail::call(
        [&](headrace_error** error) { return headrace_options_set_runtime(handle_.get(), runtime.get(), error); });
    return *this;
  }
  // Each option as JSON: {"key", "type", "default", "range", "doc"}.
  static std::vector<std::string> list() {
    std::vector<std::string> infos;
    for (size_t index = 0; index < headrace_options_get_count(); ++index) {
      infos.push_back(detail::read_text([&](char* buffer, size_t capacity, size_t* needed, headrace_error** error) {
        return headrace_options_get_info(index, buffer, capacity, needed, error);
      }));
    }
    return infos;
  }
  const headrace_options* get() const { return handle_.get(); }

 private:
  detail::Unique<headrace_options, headrace_options_destroy> handle_;
};

inline Runtime::Runtime(const Options& options) {
  headrace_runtime* handle = nullptr;
  detail::call([&](headrace_error** error) { return headrace_runtime_create(options.get(), &handle, error); });
  handle_.reset(handle);
}

}  // namespace api_v1
}  // namespace headrace
