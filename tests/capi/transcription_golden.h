// The tiny Whisper of tests/data/transcription and what transformers' generate() makes of its waveform (make_transcription.py).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include <headrace/headrace.hpp>

#include "formats/safetensors.h"

namespace capi_test {

inline const std::string kFolder = HEADRACE_SOURCE_DIR "/tests/data/transcription";
inline constexpr uint32_t kRate = 16000;

inline std::shared_ptr<headrace::TensorFile> open_golden() {
  auto golden = headrace::SafetensorsFile::open_path(kFolder + "/golden.safetensors");
  REQUIRE(golden.ok());
  return golden.take();
}

template <typename T>
std::vector<T> values_of(const headrace::TensorFile& golden, const std::string& name) {
  const headrace::TensorEntry* entry = golden.find(name);
  INFO(name);
  REQUIRE(entry != nullptr);
  std::vector<T> out(entry->bytes / sizeof(T));
  REQUIRE(golden.read(*entry, 0, std::as_writable_bytes(std::span(out))).ok());
  return out;
}

// As make_transcription.py has it.
inline std::vector<float> waveform(int64_t count) {
  std::vector<float> out;
  for (int64_t i = 0; i < count; ++i) {
    out.push_back(static_cast<float>(((31 * i * i + 17 * i) % 1009 - 504) * (i / 3700 % 5)) / 2048.0f);
  }
  return out;
}

inline headrace::Model load() { return headrace::Model::load(kFolder); }

// Its keys and values are as exact as the reference's.
inline headrace::Scheduler scheduler_of(const headrace::Model& model) {
  return headrace::Scheduler(model, headrace::Options().set("kv.dtype", "f32"));
}

inline void write_all(const headrace::Model& model, headrace::Transcription& transcription) {
  headrace::Scheduler scheduler = scheduler_of(model);
  while (const auto request = transcription.next()) {
    scheduler.run(*request, [&](const headrace::Event& event) {
      transcription.take(event);
      return true;
    });
  }
}

// A request of so many tokens at most.
inline headrace::Request bounded(const headrace::Model& model, int64_t max_tokens) {
  headrace::Request settings(model);
  settings.set_length(0, max_tokens);
  return settings;
}

inline int32_t status_of(const std::function<void()>& call, const std::string& place) {
  try {
    call();
  } catch (const headrace::Error& error) {
    CHECK(error.place() == place);
    return error.code();
  }
  return HEADRACE_OK;
}

// Those of the golden's case.
inline void check_segments(const headrace::Transcription& transcription, const headrace::TensorFile& golden,
                           const std::string& name) {
  const auto times = values_of<double>(golden, name + ".times");
  const auto sizes = values_of<int32_t>(golden, name + ".sizes");
  const auto tokens = values_of<int32_t>(golden, name + ".tokens");
  REQUIRE(transcription.num_segments() == sizes.size());
  auto from = tokens.begin();
  for (size_t i = 0; i < sizes.size(); ++i) {
    INFO(i);
    const headrace::SpeechSegment segment = transcription.segment(i);
    CHECK(segment.start == Approx(times[2 * i]).margin(1e-9));
    CHECK(segment.end == Approx(times[2 * i + 1]).margin(1e-9));
    CHECK(segment.tokens == std::vector<int32_t>(from, from + sizes[i]));
    from += sizes[i];
  }
  CHECK(from == tokens.end());
}

}  // namespace capi_test
