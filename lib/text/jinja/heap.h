// The budget of one rendering: steps, live bytes, the longest string, native stack and deadline. Every object
// made while rendering is charged here, so that no template can exhaust the host.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "text/jinja/failure.h"

namespace headrace::text::jinja {

struct Limits {
  uint64_t max_steps = 50'000'000;
  size_t max_string_bytes = size_t{16} << 20;
  size_t max_live_bytes = size_t{256} << 20;
  int max_depth = 200;
  std::optional<std::chrono::steady_clock::time_point> deadline;
};

class Heap {
 public:
  explicit Heap(const Limits& limits) : limits_(limits), steps_left_(limits.max_steps) {}
  Heap(const Heap&) = delete;
  Heap& operator=(const Heap&) = delete;

  const Limits& limits() const { return limits_; }

  // One unit of work is about one evaluated expression, one visited element or 64 copied bytes.
  void step(uint64_t count = 1) {
    if (count > steps_left_) exhausted("the template takes more than {} steps", limits_.max_steps);
    steps_left_ -= count;
    until_clock_ += count;
    if (until_clock_ >= kStepsPerClockRead) check_deadline();
  }

  // Before a container of that many elements is filled.
  void check_items(uint64_t items) const {
    if (items > limits_.max_live_bytes / 32)
      exhausted("the template holds more than {} bytes at once", limits_.max_live_bytes);
  }

  void check_string(size_t bytes) const {
    if (bytes > limits_.max_string_bytes) exhausted("a text would be longer than {} bytes", limits_.max_string_bytes);
  }

  void charge(size_t bytes) {
    if (bytes > limits_.max_live_bytes || live_bytes_ > limits_.max_live_bytes - bytes)
      exhausted("the template holds more than {} bytes at once", limits_.max_live_bytes);
    live_bytes_ += bytes;
  }
  void release(size_t bytes) noexcept { live_bytes_ -= bytes; }

  // Refuses recursion that would eat the caller's stack: the engine uses at most kMaxStackBytes of it.
  void check_stack() const {
    const char here = 0;
    const auto at = reinterpret_cast<uintptr_t>(&here);
    const uintptr_t used = at < stack_base_ ? stack_base_ - at : at - stack_base_;
    if (used > kMaxStackBytes) exhausted("the template nests too deeply");
  }
  void set_stack_base(const void* address) { stack_base_ = reinterpret_cast<uintptr_t>(address); }

  static constexpr size_t kMaxStackBytes = size_t{1} << 20;

 private:
  static constexpr uint64_t kStepsPerClockRead = 4096;

  void check_deadline() {
    until_clock_ = 0;
    if (limits_.deadline && std::chrono::steady_clock::now() > *limits_.deadline)
      throw Failure{StatusCode::kDeadlineExceeded, "the deadline passed while the template was rendered", {}};
  }

  Limits limits_;
  uint64_t steps_left_;
  uint64_t until_clock_ = 0;
  size_t live_bytes_ = 0;
  uintptr_t stack_base_ = 0;
};

}  // namespace headrace::text::jinja
