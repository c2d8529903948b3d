#include "engine/speech_segments.h"

#include <algorithm>

namespace headrace::engine {

CutWindow cut_window(std::span<const int32_t> tokens, int32_t zero, int64_t num_frames) {
  const auto is_time = [&](size_t i) { return tokens[i] >= zero; };
  const auto step = [&](size_t i) { return int64_t{tokens[i]} - zero; };
  const auto part = [&](size_t begin, size_t end) {
    return std::vector<int32_t>(tokens.begin() + static_cast<ptrdiff_t>(begin),
                                tokens.begin() + static_cast<ptrdiff_t>(end));
  };
  std::vector<size_t> seconds;  // of pairs of times
  for (size_t i = 1; i < tokens.size(); ++i) {
    if (is_time(i - 1) && is_time(i)) seconds.push_back(i);
  }
  CutWindow out;
  out.num_frames = num_frames;
  if (seconds.empty()) {
    const int64_t whole = num_frames / kFramesPerStep;
    int64_t end = whole;
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (is_time(i)) end = step(i) == 0 ? whole : step(i);
    }
    out.segments.push_back({0, end, part(0, tokens.size())});
    return out;
  }
  // One time at the end: nothing is said behind it.
  const size_t size = tokens.size();
  const bool ends_in_silence = !is_time(size - 2) && is_time(size - 1);
  size_t begin = 0;
  for (const size_t second : seconds) {
    const bool is_last = !ends_in_silence && second == seconds.back();
    // The last keeps the second time of its pair, where the next window begins.
    out.segments.push_back({step(begin), step(second - 1), part(begin, is_last ? second + 1 : second)});
    begin = second;
  }
  if (ends_in_silence) {
    out.segments.push_back({step(begin), step(size - 1), part(begin, size)});
  } else if (const int64_t seek = step(begin - 1); seek > 0) {
    out.num_frames = seek * kFramesPerStep;
  }
  return out;
}

}  // namespace headrace::engine
