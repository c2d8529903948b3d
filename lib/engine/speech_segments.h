// The tokens that a model wrote for one window of audio, cut at its times.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace headrace::engine {

// Of a spectrogram, for each step that tokens of times count: rows of the encoder are as far apart.
inline constexpr int64_t kFramesPerStep = 2;

// Times are steps behind the window's beginning.
struct WindowSegment {
  int64_t start = 0, end = 0;
  std::vector<int32_t> tokens;  // those of times among them
};

struct CutWindow {
  std::vector<WindowSegment> segments;
  int64_t num_frames = 0;  // behind the window's beginning the next one begins
};

// tokens: without the prompt and the end; ids from `zero` on are times; the window has num_frames of audio. Two times next to
// each other end a segment; what comes behind the last such is left to the next window, if the tokens do not end with one time.
// Reference: transformers' WhisperGenerationMixin._retrieve_segment.
CutWindow cut_window(std::span<const int32_t> tokens, int32_t zero, int64_t num_frames);

}  // namespace headrace::engine
