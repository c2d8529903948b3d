// What Whisper writes of audio, as transformers' generate() gives it: tokens of one window, and segments of longer sounds.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include <headrace/headrace.hpp>

#include "capi/refused_argument.h"
#include "capi/transcription_golden.h"

namespace {

using namespace capi_test;
using headrace::Event;
using headrace::Model;
using headrace::Request;
using headrace::Scheduler;
using headrace::Transcription;

Request first_second(const Model& model, const std::vector<int32_t>& prompt) {
  const std::vector<float> samples = waveform(kRate);
  Request request(model);
  request.set_audio(samples.data(), samples.size(), kRate).add_tokens(prompt);
  return request;
}

// Of each sample.
std::vector<std::vector<int32_t>> written(const Model& model, const Request& request, uint32_t num_samples = 1) {
  headrace::Scheduler scheduler = scheduler_of(model);
  std::vector<std::vector<int32_t>> out(num_samples);
  scheduler.run(request, [&](const Event& event) {
    const auto tokens = event.tokens();
    out[event.index()].insert(out[event.index()].end(), tokens.begin(), tokens.end());
    return true;
  });
  return out;
}

headrace::Sampling hot(uint32_t num_samples) {
  headrace::Sampling sampling;
  sampling.temperature = 3.0f;
  sampling.n = num_samples;
  sampling.has_seed = 1;
  return sampling;
}

bool contains(const std::vector<int32_t>& tokens, int32_t token) {
  return std::ranges::find(tokens, token) != tokens.end();
}

}  // namespace

TEST_CASE("tokens of one window are those of transformers' generate") {
  const auto golden = open_golden();
  const Model model = load();
  const auto free = values_of<int32_t>(*golden, "free.tokens");
  for (const std::string name : {"en_transcribe", "fr_transcribe", "fr_translate"}) {
    INFO(name);
    const auto expected = values_of<int32_t>(*golden, name + ".tokens");
    Request request = first_second(model, values_of<int32_t>(*golden, name + ".prompt"));
    request.set_length(0, static_cast<int64_t>(expected.size()));
    CHECK(written(model, request).front() == expected);
    CHECK(expected != free);
  }
}

TEST_CASE("segments and times of longer sounds are those of transformers' generate") {
  const auto golden = open_golden();
  const Model model = load();
  const auto count = values_of<int32_t>(*golden, "samples").front();
  struct Case {
    std::string name, language, task;
    int64_t num_samples;
  };
  for (const Case& one : {Case{"long_fr", "fr", "transcribe", count}, Case{"long_heard", "", "", count},
                          Case{"long_task", "", "transcribe", count}, Case{"one_window", "en", "", kRate}}) {
    INFO(one.name);
    const Request settings = bounded(model, 24);
    Transcription::Params params;
    params.language = one.language;
    params.task = one.task;
    params.settings = &settings;
    const auto samples = waveform(one.num_samples);
    Transcription transcription(model, samples.data(), samples.size(), kRate, params);
    write_all(model, transcription);
    check_segments(transcription, *golden, one.name);
    CHECK(!transcription.language().empty());
    if (!one.language.empty()) CHECK(transcription.language() == one.language);
  }
}

TEST_CASE("without times windows follow each other") {
  const Model model = load();
  const Request settings = bounded(model, 6);
  Transcription::Params params;
  params.language = "fr";
  params.timestamps = false;
  params.settings = &settings;
  const auto samples = waveform(5 * kRate / 2);
  Transcription transcription(model, samples.data(), samples.size(), kRate, params);
  write_all(model, transcription);
  REQUIRE(transcription.num_segments() == 3);
  for (size_t i = 0; i < 3; ++i) {
    const headrace::SpeechSegment segment = transcription.segment(i);
    CHECK(segment.start == Approx(static_cast<double>(i)));
    CHECK(segment.end == Approx(std::min(static_cast<double>(i) + 1, 2.5)));
    for (const int32_t token : segment.tokens) CHECK(token < 40);
  }
}

TEST_CASE("no sample draws a token that is suppressed, nor one first that may not begin") {
  const auto golden = open_golden();
  const Model model = load();
  const auto never = values_of<int32_t>(*golden, "never"), not_first = values_of<int32_t>(*golden, "not_first");
  Request request = first_second(model, values_of<int32_t>(*golden, "en_transcribe.prompt"));
  request.set_sampling(hot(64)).set_length(0, 12);
  bool begins_later = false;
  for (const auto& tokens : written(model, request, 64)) {
    REQUIRE_FALSE(tokens.empty());
    CHECK_FALSE(contains(not_first, tokens.front()));
    for (const int32_t token : tokens) {
      CHECK_FALSE(contains(never, token));
      begins_later = begins_later || (contains(not_first, token) && token != 41);
    }
  }
  CHECK(begins_later);
}

TEST_CASE("a host's mask holds beside what the model suppresses") {
  class OddMask : public headrace::TokenMask {
   public:
    bool fill(uint32_t* words, size_t num_words) override {
      std::fill_n(words, num_words, 0xaaaaaaaau);
      return true;
    }
    bool advance(int32_t token) override { return token % 2 == 1; }
    void retreat(int32_t) noexcept override {}
  };
  const auto golden = open_golden();
  const Model model = load();
  const auto never = values_of<int32_t>(*golden, "never");
  Request request = first_second(model, values_of<int32_t>(*golden, "en_transcribe.prompt"));
  request.set_sampling(hot(32)).set_length(0, 12);
  request.set_token_mask([] { return std::make_unique<OddMask>(); });
  for (const auto& tokens : written(model, request, 32)) {
    for (const int32_t token : tokens) CHECK((token % 2 == 1 && !contains(never, token)));
  }
}

TEST_CASE("a transcription goes on behind a request that was cancelled") {
  const Model model = load();
  const Request settings = bounded(model, 8);
  Transcription::Params params;
  params.language = "fr";
  params.settings = &settings;
  const auto samples = waveform(2 * kRate);
  Transcription expected(model, samples.data(), samples.size(), kRate, params);
  write_all(model, expected);
  Transcription transcription(model, samples.data(), samples.size(), kRate, params);
  {
    headrace::Scheduler scheduler = scheduler_of(model);
    const auto request = transcription.next();
    scheduler.run(*request, [&](const Event& event) {
      transcription.take(event);
      return false;
    });
  }
  CHECK(transcription.num_segments() == 0);
  write_all(model, transcription);
  REQUIRE(transcription.num_segments() == expected.num_segments());
  for (size_t i = 0; i < expected.num_segments(); ++i)
    CHECK(transcription.segment(i).tokens == expected.segment(i).tokens);
}

TEST_CASE("what a transcription cannot be made of is refused by name") {
  const Model model = load();
  const auto samples = waveform(kRate);
  const auto make = [&](const Transcription::Params& params, uint32_t rate = kRate, size_t count = kRate) {
    return [&, rate, count] { Transcription(model, samples.data(), count, rate, params); };
  };
  Transcription::Params params;
  CHECK(status_of(make(params, 8000), "audio") == HEADRACE_INVALID_ARGUMENT);
  CHECK(status_of(make(params, kRate, 0), "audio") == HEADRACE_INVALID_ARGUMENT);
  params.language = "de";
  CHECK(status_of(make(params), "language") == HEADRACE_INVALID_ARGUMENT);
  params.language = "en";
  params.task = "sing";
  CHECK(status_of(make(params), "task") == HEADRACE_INVALID_ARGUMENT);
  params.task = "";
  params.prompt = {400};
  CHECK(status_of(make(params), "params.prompt[0]") == HEADRACE_INVALID_ARGUMENT);
  params.prompt = {};
  Request settings(model);
  settings.add_tokens({1});
  params.settings = &settings;
  CHECK(status_of(make(params), "params.settings") == HEADRACE_INVALID_ARGUMENT);
  params.settings = nullptr;
  const Model llama = Model::load(HEADRACE_SOURCE_DIR "/tests/data/goldens/llama");
  CHECK(status_of([&] { Transcription(llama, samples.data(), samples.size(), kRate, params); }, "model") ==
        HEADRACE_UNSUPPORTED);
}

TEST_CASE("outputs, samples and events that are NULL are refused by name") {
  const Model model = load();
  const std::vector<float> samples = waveform(kRate);
  using E = headrace_error**;
  const auto create = [&](const float* from, headrace_transcription_params* params, headrace_transcription** out, E e) {
    return headrace_transcription_create(model.get(), from, samples.size(), kRate, params, out, e);
  };
  headrace_transcription* made = nullptr;
  check_refused("samples", [&](E e) { return create(nullptr, nullptr, &made, e); });
  check_refused("transcription", [&](E e) { return create(samples.data(), nullptr, nullptr, e); });
  headrace_transcription_params params;
  headrace_transcription_params_init(&params);
  params.num_prompt_tokens = 2;
  check_refused("params.prompt", [&](E e) { return create(samples.data(), &params, &made, e); });
  params.num_prompt_tokens = 0;
  params.language_size = 2;
  check_refused("params.language", [&](E e) { return create(samples.data(), &params, &made, e); });
  CHECK(made == nullptr);
  REQUIRE(create(samples.data(), nullptr, &made, nullptr) == HEADRACE_OK);
  check_refused("request", [&](E e) { return headrace_transcription_next(made, nullptr, e); });
  check_refused("event", [&](E e) { return headrace_transcription_take(made, nullptr, e); });
  headrace_speech_segment segment;
  headrace_speech_segment_init(&segment);
  headrace_error* error = nullptr;
  CHECK(headrace_transcription_get_segment(made, 0, &segment, &error) == HEADRACE_NOT_FOUND);
  CHECK(std::string(headrace_error_get_place(error)) == "index");
  headrace_error_destroy(error);
  headrace_transcription_destroy(made);
}
