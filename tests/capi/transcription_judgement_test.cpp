// Windows whose text is rejected, skipped or told to the next ones, as transformers' generate() does it: the attempts, the
// numbers that decide, and the segments that come of it. The golden's settings are those of make_transcription.py.
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
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
using headrace::Transcription;

constexpr int64_t kMaxTokens = 12;
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// What the requests of a transcription wrote.
struct Written {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
};

std::vector<Written> write_all_requests(const Model& model, Transcription& transcription) {
  headrace::Scheduler scheduler = scheduler_of(model);
  std::vector<Written> out;
  while (const auto request = transcription.next()) {
    Written& written = out.emplace_back();
    scheduler.run(*request, [&](const Event& event) {
      for (const int32_t token : event.tokens()) written.tokens.push_back(token);
      for (const float logprob : event.logprobs()) written.logprobs.push_back(logprob);
      transcription.take(event);
      return true;
    });
  }
  return out;
}

std::optional<double> present(double value) { return std::isnan(value) ? std::nullopt : std::optional(value); }

Transcription::Params french(const Request& settings) {
  Transcription::Params params;
  params.language = "fr";
  params.task = "transcribe";
  params.settings = &settings;
  return params;
}

// All of the golden's sound.
Transcription transcription_of(const Model& model, const headrace::TensorFile& golden,
                               const Transcription::Params& params) {
  const auto samples = waveform(values_of<int32_t>(golden, "samples").front());
  return Transcription(model, samples.data(), samples.size(), kRate, params);
}

void set_thresholds(Transcription::Params& params, const headrace::TensorFile& golden, const std::string& name) {
  const auto thresholds = values_of<double>(golden, name + ".thresholds");
  params.compression_ratio_threshold = present(thresholds[0]);
  params.logprob_threshold = present(thresholds[1]);
  params.no_speech_threshold = present(thresholds[2]);
}

double mean(const std::vector<float>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

}  // namespace

TEST_CASE("windows are judged, skipped and told what was said as in transformers' generate") {
  const auto golden = open_golden();
  const Model model = load();
  struct Case {
    std::string name;
    std::vector<float> temperatures;
    bool told = false;
    bool prompted = false, in_all = false;
  };
  const std::vector<float> cold = {0.0f, 1e-4f};
  for (const Case& one :
       {Case{"judged", {}}, Case{"unlikely", cold}, Case{"silent", cold}, Case{"told", {}, true},
        Case{"told_silent", cold, true}, Case{"told_repeats", {0.0f, 0.6f}, true}, Case{"prompted", {}, false, true},
        Case{"told_prompted", {}, true, true}, Case{"told_all_prompted", {}, true, true, true}}) {
    INFO(one.name);
    Request settings = bounded(model, kMaxTokens);
    headrace::Sampling sampling;
    sampling.temperature = 0.0f;
    sampling.top_k = one.told ? 1 : 0;
    settings.set_sampling(sampling);
    Transcription::Params params = french(settings);
    set_thresholds(params, *golden, one.name);
    params.temperatures = one.temperatures;
    params.condition_on_prev_tokens = one.told;
    if (one.prompted) params.prompt_ids = {7, 30, 11, 12};
    params.prompt_in_all_windows = one.in_all;
    Transcription transcription = transcription_of(model, *golden, params);
    const size_t num_requests = write_all_requests(model, transcription).size();
    check_segments(transcription, *golden, one.name);
    // Every window's text is unlikely where silence is looked for, so that each asks for that once.
    const auto attempts = values_of<int32_t>(*golden, one.name + ".attempts");
    const bool asks = one.name == "silent" || one.name == "told_silent";
    CHECK(num_requests == std::accumulate(attempts.begin(), attempts.end(), asks ? attempts.size() : size_t{0}));
  }
}

TEST_CASE("log probabilities and that of silence are those that transformers' generate judges by") {
  const auto golden = open_golden();
  const Model model = load();
  const Request settings = bounded(model, kMaxTokens);
  Transcription::Params params = french(settings);
  params.logprob_threshold = 0.0;
  params.no_speech_threshold = 2.0;
  Transcription transcription = transcription_of(model, *golden, params);
  const auto written = write_all_requests(model, transcription);
  const auto logprobs = values_of<double>(*golden, "judged.logprobs");
  const auto silence = values_of<double>(*golden, "judged.silence");
  REQUIRE(written.size() == 2 * logprobs.size());
  // Logits of both err by some 3e-6; windows differ by 7e-3 and, in silence, by 6e-3 of it.
  for (size_t i = 0; i < logprobs.size(); ++i) {
    INFO(i);
    const Written &text = written[2 * i], &asked = written[2 * i + 1];
    CHECK(text.logprobs.size() == text.tokens.size());
    CHECK(mean(text.logprobs) == Approx(logprobs[i]).margin(1e-5));
    CHECK(asked.tokens == std::vector<int32_t>{46});
    CHECK(std::exp(asked.logprobs.at(0)) == Approx(silence[i]).epsilon(2e-5));
  }
}

TEST_CASE("a window is rejected just above a threshold of its compression ratio") {
  const auto golden = open_golden();
  const Model model = load();
  const auto ratios = values_of<double>(*golden, "judged.ratios");
  const Request settings = bounded(model, kMaxTokens);
  const auto num_requests = [&](double threshold) {
    Transcription::Params params = french(settings);
    params.compression_ratio_threshold = threshold;
    params.temperatures = {0.0f, 0.0f, 0.0f};
    Transcription transcription = transcription_of(model, *golden, params);
    return write_all_requests(model, transcription).size();
  };
  const auto above = [&](double threshold) {
    return static_cast<size_t>(std::ranges::count_if(ratios, [&](double ratio) { return ratio > threshold; }));
  };
  for (const double ratio : ratios) {
    CHECK(num_requests(ratio) == ratios.size() + 2 * above(ratio));
    CHECK(num_requests(ratio - 1e-9) == ratios.size() + 2 * above(ratio - 1e-9));
    CHECK(above(ratio - 1e-9) > above(ratio));
  }
}

TEST_CASE("a request for silence whose events were not taken comes again") {
  const auto golden = open_golden();
  const Model model = load();
  const Request settings = bounded(model, kMaxTokens);
  Transcription::Params params = french(settings);
  set_thresholds(params, *golden, "silent");
  params.temperatures = {0.0f, 1e-4f};
  Transcription transcription = transcription_of(model, *golden, params);
  {
    headrace::Scheduler scheduler = scheduler_of(model);
    for (const bool takes : {true, false}) {
      const auto request = transcription.next();
      scheduler.run(*request, [&](const Event& event) {
        if (takes) transcription.take(event);
        return true;
      });
    }
  }
  write_all(model, transcription);
  check_segments(transcription, *golden, "silent");
}

TEST_CASE("thresholds, temperatures and prompts that mean nothing are refused by name") {
  const Model model = load();
  const auto samples = waveform(kRate);
  const auto refused = [&](const char* place, const std::function<void(Transcription::Params&)>& change) {
    INFO(place);
    Transcription::Params params;
    change(params);
    const auto make = [&] { Transcription(model, samples.data(), samples.size(), kRate, params); };
    CHECK(status_of(make, place) == HEADRACE_INVALID_ARGUMENT);
  };
  using P = Transcription::Params;
  refused("temperatures[0]", [](P& params) { params.temperatures = {-0.1f}; });
  refused("temperatures[1]", [](P& params) { params.temperatures = {0.0f, static_cast<float>(kNaN)}; });
  refused("temperatures[0]", [](P& params) { params.temperatures = {std::numeric_limits<float>::infinity()}; });
  refused("compression_ratio_threshold", [](P& params) { params.compression_ratio_threshold = kNaN; });
  refused("logprob_threshold", [](P& params) { params.logprob_threshold = -std::numeric_limits<double>::infinity(); });
  refused("no_speech_threshold", [](P& params) {
    params.logprob_threshold = -1;
    params.no_speech_threshold = kNaN;
  });
  refused("no_speech_threshold", [](P& params) { params.no_speech_threshold = 0.6; });
  refused("prompt_condition_type", [](P& params) { params.prompt_in_all_windows = true; });
  refused("params.prompt_ids[1]", [](P& params) { params.prompt_ids = {1, 99}; });
  refused("prompt_ids", [](P& params) { params.prompt_ids.assign(37, 1); });
  refused("prompt_ids", [](P& params) {
    params.prompt_ids.assign(17, 1);
    params.condition_on_prev_tokens = params.prompt_in_all_windows = true;
  });
}

TEST_CASE("fields of the C struct are refused by name") {
  const Model model = load();
  const auto samples = waveform(kRate);
  using E = headrace_error**;
  const auto refused = [&](const char* place, const std::function<void(headrace_transcription_params&)>& change) {
    headrace_transcription_params params;
    headrace_transcription_params_init(&params);
    change(params);
    headrace_transcription* made = nullptr;
    check_refused(place, [&](E e) {
      return headrace_transcription_create(model.get(), samples.data(), samples.size(), kRate, &params, &made, e);
    });
    CHECK(made == nullptr);
  };
  using P = headrace_transcription_params;
  refused("params.temperatures", [](P& params) { params.num_temperatures = 1; });
  refused("params.prompt_ids", [](P& params) { params.num_prompt_ids = 1; });
  refused("params.has_compression_ratio_threshold", [](P& params) { params.has_compression_ratio_threshold = 2; });
  refused("params.has_logprob_threshold", [](P& params) { params.has_logprob_threshold = 2; });
  refused("params.has_no_speech_threshold", [](P& params) { params.has_no_speech_threshold = 2; });
  refused("params.condition_on_prev_tokens", [](P& params) { params.condition_on_prev_tokens = 2; });
  refused("params.prompt_condition_type", [](P& params) { params.prompt_condition_type = 2; });
  refused("params.reserved", [](P& params) { params.reserved = 1; });
}

TEST_CASE("a program compiled before thresholds were added goes on as it did") {
  const auto golden = open_golden();
  const Model model = load();
  const auto samples = waveform(values_of<int32_t>(*golden, "samples").front());
  const Request settings = bounded(model, 24);
  headrace_transcription_params params;
  headrace_transcription_params_init(&params);
  params.language = "fr";
  params.language_size = 2;
  params.settings = settings.get();
  // Beyond the struct's old end nothing is read.
  params.struct_size = offsetof(headrace_transcription_params, temperatures);
  params.num_temperatures = 7;
  params.reserved = 7;
  headrace_transcription* made = nullptr;
  REQUIRE(headrace_transcription_create(model.get(), samples.data(), samples.size(), kRate, &params, &made, nullptr) ==
          HEADRACE_OK);
  headrace_transcription_destroy(made);
}
