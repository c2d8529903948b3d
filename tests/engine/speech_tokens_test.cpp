// What models that write down speech may write, what they begin with, and how their tokens are cut at times.
#include "engine/speech_tokens.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <set>

#include <catch2/catch.hpp>

#include "engine/speech_prompt.h"
#include "engine/speech_segments.h"

using namespace headrace;
using namespace headrace::engine;

namespace {

// Words are 0 to 9, the end is 10, marks are 11 and 12 (no times), times are 13 to 39.
constexpr int32_t kVocab = 40, kEnd = 10, kZero = 13;

std::shared_ptr<const SpeechTokens> timed(int32_t last_initial = std::numeric_limits<int32_t>::max()) {
  SpeechTokens tokens = suppress_tokens(std::vector<int32_t>{3, 11}, std::vector<int32_t>{4}, kVocab);
  tokens.times = TimeTokens{kZero, kEnd, last_initial};
  return std::make_shared<SpeechTokens>(std::move(tokens));
}

std::set<int32_t> allowed(TokenMask& mask, const std::vector<float>& logits) {
  std::vector<uint32_t> words(mask_words(kVocab), 0);
  REQUIRE(mask.fill(logits, words));
  std::set<int32_t> out;
  for (int32_t token = 0; token < kVocab; ++token) {
    if (mask_allows(words, token)) out.insert(token);
  }
  return out;
}

std::set<int32_t> range(int32_t begin, int32_t end, std::set<int32_t> without = {}) {
  std::set<int32_t> out;
  for (int32_t token = begin; token < end; ++token) {
    if (!without.contains(token)) out.insert(token);
  }
  return out;
}

std::set<int32_t> joined(std::set<int32_t> a, const std::set<int32_t>& b) {
  a.insert(b.begin(), b.end());
  return a;
}

// A word and the end are far likelier than all times together.
std::vector<float> wordy() {
  std::vector<float> logits(kVocab, 0.0f);
  logits[0] = logits[kEnd] = 20.0f;
  return logits;
}

class Even : public TokenMask {
 public:
  bool fill(std::span<const float>, std::span<uint32_t> words) override {
    std::ranges::fill(words, 0x55555555u);
    return true;
  }
  bool advance(int32_t token) override { return token % 2 == 0; }
  void retreat(int32_t num_tokens) override { taken_back += num_tokens; }
  int32_t taken_back = 0;
};

}  // namespace

TEST_CASE("times come first, in pairs, and do not go back") {
  const auto mask = speech_mask(timed(), nullptr);
  const auto words = range(0, kEnd + 1, {3});
  CHECK(allowed(*mask, wordy()) == range(kZero, kVocab));
  REQUIRE(mask->advance(15));
  CHECK(allowed(*mask, wordy()) == words);  // behind the first time no other
  CHECK_FALSE(mask->advance(16));
  REQUIRE(mask->advance(2));
  CHECK(allowed(*mask, wordy()) == joined(words, range(16, kVocab)));  // later than the last
  CHECK_FALSE(mask->advance(15));
  REQUIRE(mask->advance(20));
  CHECK(allowed(*mask, wordy()) == joined({kEnd}, range(20, kVocab)));  // its pair, as late at least, or the end
  REQUIRE(mask->advance(20));
  CHECK(allowed(*mask, wordy()) == words);
  REQUIRE(mask->advance(kEnd));
  mask->retreat(3);
  CHECK(allowed(*mask, wordy()) == joined(words, range(16, kVocab)));
}

TEST_CASE("the first time is not later than it may be") {
  CHECK(allowed(*speech_mask(timed(kZero + 2), nullptr), wordy()) == range(kZero, kZero + 3));
}

TEST_CASE("where all times together are likelier than each word, one of them comes") {
  const auto mask = speech_mask(timed(), nullptr);
  REQUIRE(mask->advance(15));
  REQUIRE(mask->advance(2));
  std::vector<float> logits(kVocab, 0.0f);
  const float all = std::log(static_cast<float>(kVocab - 16));
  logits[0] = all + 0.01f;
  CHECK(allowed(*mask, logits).contains(0));
  logits[0] = all - 0.01f;
  CHECK(allowed(*mask, logits) == range(16, kVocab));
  // A suppressed word does not count.
  logits[3] = 100.0f;
  CHECK(allowed(*mask, logits) == range(16, kVocab));
  logits[16] = -std::numeric_limits<float>::infinity();
  CHECK(allowed(*mask, logits).contains(0));
}

TEST_CASE("a host's mask is narrowed, and walks along") {
  auto even = std::make_unique<Even>();
  Even& host = *even;
  const auto mask =
      speech_mask(std::make_shared<SpeechTokens>(suppress_tokens(std::vector<int32_t>{6}, std::vector<int32_t>{2}, 10)),
                  std::move(even));
  std::vector<uint32_t> words(1, 0);
  REQUIRE(mask->fill(std::vector<float>(10, 0.0f), words));
  CHECK((words[0] & 0x3ff) == 0b0100010001);
  CHECK_FALSE(mask->advance(1));
  CHECK_FALSE(mask->advance(2));
  REQUIRE(mask->advance(4));
  CHECK(mask->advance(2));
  CHECK_FALSE(mask->advance(6));
  mask->retreat(2);
  CHECK(host.taken_back == 2);
  CHECK_FALSE(mask->advance(2));
}

TEST_CASE("prompts are those of transformers' generate") {
  SpeechConfig config;
  config.start = 100;
  config.no_times = 200;
  config.languages = {{"en", 101}, {"fr", 102}};
  config.tasks = {{"transcribe", 110}, {"translate", 111}};
  const auto prompt = [&](const std::string& language, const std::string& task, bool times) {
    const auto made = make_speech_prompt(config, language, task, times);
    REQUIRE(made.ok());
    return std::pair(made->tokens, made->lacks_language);
  };
  using Tokens = std::vector<int32_t>;
  CHECK(prompt("fr", "", true) == std::pair(Tokens{100, 102, 110}, false));
  CHECK(prompt("fr", "translate", false) == std::pair(Tokens{100, 102, 111, 200}, false));
  CHECK(prompt("", "translate", true) == std::pair(Tokens{100, 111}, true));
  CHECK(prompt("", "", false) == std::pair(Tokens{100, 200}, true));
  config.forced = {std::nullopt, 111};
  CHECK(prompt("", "", true) == std::pair(Tokens{100, 111}, true));
  CHECK(prompt("en", "", true) == std::pair(Tokens{100, 101, 110}, false));
  config.forced = {102, 110, 200};
  CHECK(prompt("", "", true) == std::pair(Tokens{100, 102, 110}, false));
  CHECK(make_speech_prompt(config, "", "", true)->language == "fr");
  CHECK(prompt("", "", false) == std::pair(Tokens{100, 102, 110, 200}, false));
  config.forced = {};
  config.language = "fr";
  config.task = "translate";
  CHECK(prompt("", "", true) == std::pair(Tokens{100, 102, 111}, false));
  CHECK(make_speech_prompt(config, "de", "", true).status().place() == "language");
  CHECK(make_speech_prompt(config, "", "sing", true).status().place() == "task");
  SpeechConfig english;
  english.start = 100;
  english.no_times = 200;
  english.knows_one_language = true;
  english.forced = {200};
  CHECK(make_speech_prompt(english, "", "", true)->tokens == Tokens{100});
  CHECK(make_speech_prompt(english, "", "", false)->tokens == Tokens{100, 200});
  CHECK(make_speech_prompt(english, "en", "", true).status().place() == "language");
}

TEST_CASE("tokens are cut at pairs of times") {
  struct Cut {
    std::vector<int32_t> tokens;
    std::vector<std::vector<int64_t>> spans;  // start, end, number of tokens
    int64_t num_frames;
  };
  constexpr int32_t z = kZero;
  const Cut kCuts[] = {
      {{z, 1, z + 5}, {{0, 5, 3}}, 60},                                         // one time at the end
      {{z, 1, 2}, {{0, 30, 3}}, 60},                                            // cut off
      {{1, 2}, {{0, 30, 2}}, 60},                                               // no times
      {{}, {{0, 30, 0}}, 60},                                                   // nothing said
      {{z, 1, z + 5, z + 6, 2}, {{0, 5, 4}}, 10},                               // the rest comes again
      {{z + 1, 1, z + 5, z + 6, 2, 3, z + 9}, {{1, 5, 3}, {6, 9, 4}}, 60},      // and is whole
      {{z + 1, 1, z + 5, z + 6, 2, z + 9, z + 9}, {{1, 5, 3}, {6, 9, 4}}, 18},  // pairs to the end
      {{z, 1, z + 2, z + 2, 4, z + 4, z + 5, 7, z + 8, z + 8, 9}, {{0, 2, 3}, {2, 4, 3}, {5, 8, 4}}, 16},
  };
  for (const Cut& expected : kCuts) {
    const CutWindow cut = cut_window(expected.tokens, kZero, 60);
    CHECK(cut.num_frames == expected.num_frames);
    REQUIRE(cut.segments.size() == expected.spans.size());
    for (size_t i = 0; i < cut.segments.size(); ++i) {
      const WindowSegment& segment = cut.segments[i];
      CHECK(std::vector<int64_t>{segment.start, segment.end, std::ssize(segment.tokens)} == expected.spans[i]);
    }
  }
}
