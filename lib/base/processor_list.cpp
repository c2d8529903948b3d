#include "base/processor_list.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <memory>
#include <optional>
#include <system_error>
#include <thread>

namespace headrace {
namespace {

// Takes a number off the front of `text`.
std::optional<int> take_number(std::string_view& text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 0 || number > kMaxProcessor || text.front() == '-') return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return number;
}

}  // namespace

Result<std::vector<int>> parse_processor_list(std::string_view text) {
  std::vector<int> processors;
  if (text.empty()) return processors;
  for (;;) {
    const auto first = take_number(text);
    if (!first) return invalid_argument("", "not a list of processors in [0, {}] such as 0-3,8", kMaxProcessor);
    int last = *first;
    if (text.starts_with('-')) {
      text.remove_prefix(1);
      const auto end = take_number(text);
      if (!end) return invalid_argument("", "no processor in [0, {}] behind {}-", kMaxProcessor, *first);
      if (*end < *first) return invalid_argument("", "the range {}-{} ends before it begins", *first, *end);
      last = *end;
    }
    for (int processor = *first; processor <= last; ++processor) {
      if (std::find(processors.begin(), processors.end(), processor) != processors.end()) {
        return invalid_argument("", "processor {} is named twice", processor);
      }
      if (processors.size() == kMaxListedProcessors) {
        return invalid_argument("", "more than {} processors", kMaxListedProcessors);
      }
      processors.push_back(processor);
    }
    if (text.empty()) return processors;
    if (text.front() != ',') return invalid_argument("", "not a list of processors such as 0-3,8");
    text.remove_prefix(1);
  }
}

int bind_thread(pthread_t thread, int processor) {
  const size_t count = static_cast<size_t>(processor) + 1, size = CPU_ALLOC_SIZE(count);
  const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set(CPU_ALLOC(count), [](cpu_set_t* old) { CPU_FREE(old); });
  if (set == nullptr) return ENOMEM;
  CPU_ZERO_S(size, set.get());
  CPU_SET_S(static_cast<size_t>(processor), size, set.get());
  return pthread_setaffinity_np(thread, size, set.get());
}

Status check_processors(std::span<const int> processors) {
  if (processors.empty()) return Status();
  int refused = -1, error = 0;
  try {
    std::thread([&] {
      for (const int processor : processors) {
        error = bind_thread(pthread_self(), processor);
        if (error == 0) continue;
        refused = processor;
        return;
      }
    }).join();
  } catch (const std::system_error& failure) {
    return out_of_memory("", "no thread could be started: {}", failure.what());
  }
  if (error == 0) return Status();
  if (error == ENOMEM) return out_of_memory("", "no memory to name processor {}", refused);
  return invalid_argument("", "there is no processor {} for this process", refused);
}

}  // namespace headrace
