// Whether a window's text stands, and what of it the next windows are told.
#include "engine/window_judgement.h"

#include <vector>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "engine/earlier_text.h"
#include "formats/safetensors.h"
#include "model/speech_config.h"

using namespace headrace;
using namespace headrace::engine;

namespace {

constexpr int32_t kZero = 50, kPrevious = 45;
using Tokens = std::vector<int32_t>;

template <typename T>
std::vector<T> golden_values(const std::string& name) {
  auto golden = SafetensorsFile::open_path(HEADRACE_SOURCE_DIR "/tests/data/transcription/golden.safetensors");
  REQUIRE(golden.ok());
  const auto file = golden.take();
  const TensorEntry* entry = file->find(name);
  REQUIRE(entry != nullptr);
  std::vector<T> out(entry->bytes / sizeof(T));
  REQUIRE(file->read(*entry, 0, std::as_writable_bytes(std::span(out))).ok());
  return out;
}

EarlierText told(const EarlierTextParams& params, int64_t max_tokens = 6) {
  return EarlierText(params, kPrevious, kZero, max_tokens);
}

}  // namespace

TEST_CASE("compression ratios are those of transformers") {
  // Ids of two bytes.
  const auto tokens = golden_values<int32_t>("wide.tokens");
  const double expected = golden_values<double>("wide.ratio").front();
  CHECK(compression_ratio(tokens, 51866) == Approx(expected));
  CHECK(compression_ratio(tokens, 65536) > expected);
  CHECK(compression_ratio(Tokens{}, 51866) == 0);
}

TEST_CASE("a text stands unless one of the thresholds rejects it") {
  const Tokens repeats(60, 7), varied = {1, 2, 3, 4, 5};
  const std::vector<float> high(60, -0.5f), low(60, -1.5f);
  const auto judge = [](const WindowThresholds& thresholds, const Tokens& tokens, const std::vector<float>& logprobs) {
    return judge_window(thresholds, tokens, logprobs, 98);
  };
  CHECK(judge({}, repeats, low) == WindowVerdict::kStands);
  CHECK(judge({2.4, {}, {}}, repeats, {}) == WindowVerdict::kRejected);
  CHECK(judge({2.4, {}, {}}, varied, {}) == WindowVerdict::kStands);
  CHECK(judge({{}, -1.0, {}}, varied, high) == WindowVerdict::kStands);
  CHECK(judge({{}, -1.0, {}}, varied, low) == WindowVerdict::kUnlikely);
  // Of equal ones none is below.
  CHECK(judge({{}, -1.5, {}}, varied, low) == WindowVerdict::kStands);
  // Both: silence is to be looked for.
  CHECK(judge({2.4, -1.0, 0.6}, repeats, low) == WindowVerdict::kUnlikely);
  CHECK(judge({2.4, -1.0, 0.6}, repeats, high) == WindowVerdict::kRejected);
}

TEST_CASE("windows are told the end of what was said before") {
  EarlierText text = told({true, {}, false});
  CHECK(text.tokens().empty());
  text.add_segment(Tokens{51, 1, 2, 53, 53});  // the second of two times is left out
  CHECK(text.tokens() == Tokens{kPrevious, 51, 1, 2, 53});
  text.add_segment(Tokens{53, 3, 55});
  CHECK(text.tokens() == Tokens{kPrevious, 1, 2, 53, 53, 3, 55});
  CHECK(text.max_size() == 7);
  text.set_temperature(0.5f);
  CHECK(text.tokens().empty());
  text.set_temperature(0.4f);
  CHECK(text.tokens().size() == 7);
  // Two times alone are the segment.
  EarlierText times = told({true, {}, false});
  times.add_segment(Tokens{51, 53});
  CHECK(times.tokens() == Tokens{kPrevious, 51, 53});
}

TEST_CASE("a prompt stands before the first window, or before all") {
  for (const Tokens& given : {Tokens{7, 8}, Tokens{kPrevious, 7, 8}}) {
    EarlierText alone = told({false, given, false});
    alone.add_segment(Tokens{1, 2});
    CHECK(alone.tokens() == Tokens{kPrevious, 7, 8});
    EarlierText first = told({true, given, false});
    CHECK(first.tokens() == Tokens{kPrevious, 7, 8});
    first.add_segment(Tokens{1, 2, 3, 4, 5});
    CHECK(first.tokens() == Tokens{kPrevious, 8, 1, 2, 3, 4, 5});
    first.set_temperature(1);
    CHECK(first.tokens() == Tokens{kPrevious, 7, 8});
    EarlierText all = told({true, given, true});
    CHECK(all.tokens() == Tokens{kPrevious, 7, 8});
    all.add_segment(Tokens{1, 2, 3, 4, 5, 6, 9});
    CHECK(all.tokens() == Tokens{kPrevious, 7, 8, 2, 3, 4, 5, 6, 9});
    CHECK(all.max_size() == 9);
  }
}

TEST_CASE("the token before earlier text is the one that is named, or the last but one of those suppressed") {
  const auto previous = [](const char* json) {
    auto config = read_speech_config(nlohmann::json::parse(json), 0, 1, 100);
    REQUIRE(config.ok());
    return config.take().previous;
  };
  CHECK(previous(R"({"prev_sot_token_id": 5, "suppress_tokens": [7, 8, 9]})") == 5);
  CHECK(previous(R"({"suppress_tokens": [7, 8, 9]})") == 8);
  CHECK(previous(R"({"suppress_tokens": [7]})") == -1);
  CHECK_FALSE(read_speech_config(nlohmann::json::parse(R"({"prev_sot_token_id": 100})"), 0, 1, 100).ok());
}
