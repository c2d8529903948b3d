#include "text/stop_strings.h"

#include <catch2/catch.hpp>
#include <random>

namespace headrace::text {
namespace {

struct Run {
  std::string text;
  bool stopped = false;
  int32_t index = -1;
  bool operator==(const Run&) const = default;
};

StopMatcher make(const std::vector<std::string>& stops, bool include_stop = false) {
  auto matcher = StopMatcher::create(stops, include_stop);
  REQUIRE(matcher.ok());
  return matcher.take();
}

Run feed(StopMatcher matcher, const std::vector<std::string>& pieces) {
  Run run;
  const auto take = [&](const StopMatcher::Out& out) {
    run.text += out.text;
    run.stopped = out.stopped;
    run.index = out.matched_index;
  };
  for (const std::string& piece : pieces) take(matcher.push(piece));
  take(matcher.flush());
  return run;
}

// The law, by trying every place.
Run expected(const std::vector<std::string>& stops, const std::string& text, bool include_stop) {
  for (size_t start = 0; start < text.size(); ++start) {
    int32_t best = -1;
    for (size_t i = 0; i < stops.size(); ++i) {
      const bool longer = best < 0 || stops[i].size() > stops[static_cast<size_t>(best)].size();
      if (text.compare(start, stops[i].size(), stops[i]) == 0 && longer) best = static_cast<int32_t>(i);
    }
    if (best >= 0) {
      const size_t end = start + (include_stop ? stops[static_cast<size_t>(best)].size() : 0);
      return {text.substr(0, end), true, best};
    }
  }
  return {text, false, -1};
}

TEST_CASE("A stop string across tokens sends nothing of itself") {
  StopMatcher matcher = make({"DEFGHIJ"});
  CHECK(matcher.push("DEF").text.empty());
  CHECK(matcher.push("G").text.empty());
  CHECK(matcher.push("HI").text.empty());
  const auto out = matcher.push("J");
  CHECK(out.text.empty());
  CHECK(out.stopped);
  CHECK(out.matched_index == 0);
  CHECK(matcher.push("more").stopped);
  CHECK(matcher.push("more").text.empty());
  CHECK(matcher.flush().text.empty());
}

TEST_CASE("A stop string inside a token cuts the token") {
  StopMatcher matcher = make({"DE"});
  const auto out = matcher.push("ABDEF");
  CHECK(out.text == "AB");
  CHECK(out.stopped);
  StopMatcher including = make({"DE"}, true);
  CHECK(including.push("ABDEF").text == "ABDE");
}

TEST_CASE("Text that can no longer become a stop string is given at once") {
  StopMatcher matcher = make({"</end>"});
  CHECK(matcher.push("a < b").text == "a < b");
  CHECK(matcher.push(" </").text == " ");
  CHECK(matcher.push("em").text == "</em");
  CHECK(matcher.push("</en").text.empty());
  CHECK(matcher.flush().text == "</en");
}

TEST_CASE("The match that starts first wins, then the longest") {
  CHECK(feed(make({"bc", "abcd"}), {"xabcd"}) == Run{"x", true, 1});
  CHECK(feed(make({"bc", "abcd"}), {"xabce"}) == Run{"xa", true, 0});
  CHECK(feed(make({"\n", "\n\n"}, true), {"a\n", "\nb"}) == Run{"a\n\n", true, 1});
  CHECK(feed(make({"\n", "\n\n"}, true), {"a\n", "b"}) == Run{"a\n", true, 0});
  CHECK(feed(make({"\n", "\n\n"}), {"a\n"}) == Run{"a", true, 0});  // decided by the end of the text
  CHECK(feed(make({"x", "x"}), {"ax"}) == Run{"a", true, 0});
  CHECK(feed(make({}), {"a", "b"}) == Run{"ab", false, -1});
}

TEST_CASE("Every split of a text gives the same output") {
  const std::vector<std::vector<std::string>> sets = {
      {"aba", "bab"}, {"ab", "abab", "b"}, {"aab", "ab"}, {"bb", "abba"}};
  std::mt19937 random(5);
  for (const auto& stops : sets) {
    for (int round = 0; round < 40; ++round) {
      std::string text;
      for (int i = 0; i < 10; ++i) text += "abc"[random() % 3];
      for (const bool include_stop : {false, true}) {
        const StopMatcher matcher = make(stops, include_stop);
        const Run law = expected(stops, text, include_stop);
        for (uint32_t cuts = 0; cuts < 1u << 9; ++cuts) {
          std::vector<std::string> pieces(1);
          for (size_t i = 0; i < text.size(); ++i) {
            pieces.back() += text[i];
            if (cuts >> i & 1) pieces.emplace_back();
          }
          const Run run = feed(matcher, pieces);
          if (run != law) {
            FAIL("text " << text << " cuts " << cuts << " gave " << run.text << " for " << law.text);
          }
        }
      }
    }
  }
}

TEST_CASE("Random stop strings agree with a search at every place") {
  std::mt19937 random(11);
  for (int round = 0; round < 3000; ++round) {
    std::vector<std::string> stops(1 + random() % 6);
    for (auto& stop : stops) {
      for (uint32_t i = 1 + random() % 6; i > 0; --i) stop += "ab"[random() % 2];
    }
    std::string text;
    for (uint32_t i = random() % 40; i > 0; --i) text += random() % 12 == 0 ? 'c' : "ab"[random() % 2];
    std::vector<std::string> pieces(1);
    for (const char c : text) {
      pieces.back() += c;
      if (random() % 3 == 0) pieces.emplace_back();
    }
    const bool include_stop = random() % 2 == 0;
    REQUIRE(feed(make(stops, include_stop), pieces) == expected(stops, text, include_stop));
  }
}

TEST_CASE("64 stop strings of a kilobyte cost linear time") {
  std::vector<std::string> stops;
  for (int i = 0; i < 64; ++i) stops.push_back(std::string(1000, 'a') + std::string(1, static_cast<char>('A' + i)));
  StopMatcher matcher = make(stops);
  std::string given;
  for (int i = 0; i < 200; ++i) {
    given += matcher.push(std::string(999, 'a')).text;
    given += matcher.push("b").text;
  }
  CHECK(given.size() == 200000);  // a search that starts anew at every byte would take 10^10 steps
  CHECK_FALSE(matcher.flush().stopped);
}

TEST_CASE("Stop strings that can never be found are refused") {
  const auto empty = StopMatcher::create({"a", ""});
  REQUIRE_FALSE(empty.ok());
  CHECK(empty.status().code() == StatusCode::kInvalidArgument);
  CHECK(empty.status().place() == "stop[1]");
  CHECK_FALSE(StopMatcher::create({std::string((16 << 20) + 1, 'a')}).ok());
}

TEST_CASE("Bytes above 127 and zero bytes match as they are") {
  const std::string stop("\xC3\xA9\0x", 4);
  CHECK(feed(make({stop}), {"a\xC3\xA9", std::string("\0", 1), "xb"}) == Run{"a", true, 0});
  CHECK(feed(make({stop}), {"a\xC3\xA9", std::string("\0", 1), "yb"}).text == std::string("a\xC3\xA9\0yb", 6));
}

}  // namespace
}  // namespace headrace::text
