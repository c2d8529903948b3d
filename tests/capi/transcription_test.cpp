// Whisper's tokens as transformers' generate() gives them for one window of audio: what generation_config.json suppresses does
// not come.
#include <algorithm>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include <headrace/headrace.hpp>

#include "formats/safetensors.h"

namespace {

const std::string kFolder = HEADRACE_SOURCE_DIR "/tests/data/transcription";

template <typename T>
std::vector<T> values_of(const headrace::TensorFile& golden, const std::string& name) {
  const headrace::TensorEntry* entry = golden.find(name);
  REQUIRE(entry != nullptr);
  std::vector<T> out(entry->bytes / sizeof(T));
  REQUIRE(golden.read(*entry, 0, std::as_writable_bytes(std::span(out))).ok());
  return out;
}

// Of so many samples of one request, each.
std::vector<std::vector<int32_t>> written(const headrace::Model& model, const headrace::TensorFile& golden,
                                          const std::vector<int32_t>& prompt, uint32_t count,
                                          uint32_t num_samples = 1) {
  const headrace::TensorEntry* features = golden.find("input_features");
  REQUIRE(features != nullptr);
  const auto values = values_of<float>(golden, "input_features");
  headrace::Request request(model);
  request.set_audio_features(values.data(), values.size(), static_cast<uint32_t>(features->shape[1]),
                             static_cast<uint32_t>(features->shape[2]));
  request.add_tokens(prompt);
  headrace::Sampling sampling;
  sampling.temperature = num_samples == 1 ? 0.0f : 3.0f;
  sampling.n = num_samples;
  sampling.has_seed = 1;
  request.set_sampling(sampling).set_length(0, count);
  headrace::Scheduler scheduler(model);
  std::vector<std::vector<int32_t>> out(num_samples);
  scheduler.run(request, [&](const headrace::Event& event) {
    const auto tokens = event.tokens();
    out[event.index()].insert(out[event.index()].end(), tokens.begin(), tokens.end());
    return true;
  });
  return out;
}

}  // namespace

TEST_CASE("tokens of one window are those of transformers' generate") {
  const auto golden = headrace::SafetensorsFile::open_path(kFolder + "/golden.safetensors");
  REQUIRE(golden.ok());
  const headrace::Model model = headrace::Model::load(kFolder, headrace::Options().set("kv.dtype", "f32"));
  const auto free = values_of<int32_t>(**golden, "free.tokens");
  for (const std::string name : {"en_transcribe", "fr_transcribe", "fr_translate"}) {
    INFO(name);
    const auto prompt = values_of<int32_t>(**golden, name + ".prompt");
    const auto expected = values_of<int32_t>(**golden, name + ".tokens");
    CHECK(written(model, **golden, prompt, static_cast<uint32_t>(expected.size())).front() == expected);
    CHECK(expected != free);
  }
}

TEST_CASE("no sample draws a token that is suppressed, nor one first that may not begin") {
  const auto golden = headrace::SafetensorsFile::open_path(kFolder + "/golden.safetensors");
  REQUIRE(golden.ok());
  const headrace::Model model = headrace::Model::load(kFolder);
  const auto prompt = values_of<int32_t>(**golden, "en_transcribe.prompt");
  bool begins_later = false;
  for (const auto& tokens : written(model, **golden, prompt, 12, 64)) {
    REQUIRE_FALSE(tokens.empty());
    CHECK(tokens.front() != 24);
    for (const int32_t token : tokens) {
      CHECK(token <= 41);  // the end
      CHECK((token != 2 && token != 11 && token != 21 && token != 40));
      begins_later = begins_later || token == 24;
    }
  }
  CHECK(begins_later);
}
