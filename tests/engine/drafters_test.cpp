// What drafters without a model guess, and the automaton behind them.
#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include <catch2/catch.hpp>

#include "speculation/ngram_drafter.h"
#include "speculation/suffix_automaton.h"
#include "speculation/suffix_drafter.h"

namespace headrace::speculation {
namespace {

std::vector<int32_t> guesses_of(Drafter& drafter, const std::vector<int32_t>& tokens, int32_t most = 8,
                                SequenceId id = {1, 0}, std::string_view scope = "a") {
  DraftRequest request;
  request.context = {id, scope, tokens, 1, nullptr};
  request.max_nodes = request.max_depth = most;
  DraftTree tree;
  REQUIRE(drafter.draft({&request, 1}, {&tree, 1}).ok());
  REQUIRE(tree.is_chain());
  std::vector<int32_t> out;
  for (const DraftNode& node : tree.nodes()) out.push_back(node.token);
  return out;
}

using Tokens = std::vector<int32_t>;

}  // namespace

TEST_CASE("n-grams: the last occurrence of the longest run goes on") {
  NgramDrafter drafter;
  CHECK(guesses_of(drafter, {1, 2, 3, 9, 1, 2, 4, 9, 1, 2}, 2) == Tokens{4, 9});
  CHECK(guesses_of(drafter, {1, 2, 3, 9, 1, 2, 4, 9, 1, 2, 3, 9, 1}, 2) == Tokens{2, 4});  // of 3 9 1, not of 9 1
  CHECK(guesses_of(drafter, {1, 2, 3, 4}, 2, {2, 0}).empty());
  CHECK(guesses_of(drafter, Tokens(48, 7), 6, {3, 0}) == Tokens(6, 7));
  CHECK(guesses_of(drafter, {1}, 6, {4, 0}).empty());
}

TEST_CASE("the automaton knows every run of its text, and how often what followed it") {
  std::mt19937 random(5);
  for (int round = 0; round < 40; ++round) {
    SuffixAutomaton automaton;
    std::vector<int32_t> text;
    const int32_t alphabet = 2 + round % 5;
    for (int i = 0; i < 60; ++i) {
      text.push_back(static_cast<int32_t>(random() % static_cast<uint32_t>(alphabet)));
      automaton.append(text.back());
    }
    // The longest run at the end that stands before: by the definition.
    size_t longest = 0;
    for (size_t n = 1; n < text.size(); ++n) {
      const auto found = std::search(text.begin(), text.end() - 1, text.end() - static_cast<ptrdiff_t>(n), text.end());
      if (found != text.end() - 1) longest = n;
    }
    CHECK(automaton.repeated().length == static_cast<int32_t>(longest));
    // Of a run, what followed it most often.
    for (int trial = 0; trial < 50; ++trial) {
      const size_t start = random() % (text.size() - 4), size = 1 + random() % 3;
      const std::vector<int32_t> run(text.begin() + static_cast<ptrdiff_t>(start),
                                     text.begin() + static_cast<ptrdiff_t>(start + size));
      SuffixAutomaton::Match match;
      for (const int32_t token : run) match = automaton.follow(match, token);
      REQUIRE(match.length == static_cast<int32_t>(size));
      std::vector<int> followed(static_cast<size_t>(alphabet));
      for (size_t i = 0; i + size < text.size(); ++i) {
        if (std::equal(run.begin(), run.end(), text.begin() + static_cast<ptrdiff_t>(i))) {
          ++followed[static_cast<size_t>(text[i + size])];
        }
      }
      const auto next = automaton.most_frequent(match.state);
      CHECK(next.count == *std::max_element(followed.begin(), followed.end()));
      CHECK(followed[static_cast<size_t>(next.token)] == next.count);
      CHECK(next.total == std::accumulate(followed.begin(), followed.end(), 0));
    }
  }
}

TEST_CASE("suffixes: the longest run goes on with what came most often, and periods go on") {
  SuffixDrafter drafter;
  CHECK(guesses_of(drafter, {1, 2, 3, 1, 2, 3, 1, 2, 4, 1, 2}, 1) == Tokens{3});
  CHECK(guesses_of(drafter, Tokens(48, 7), 6, {3, 0}) == Tokens(6, 7));
  CHECK(guesses_of(drafter, {1, 2, 3, 4}, 2, {2, 0}).empty());
}

TEST_CASE("what a sequence put out serves others of its scope only, and what is kept is bounded") {
  SuffixDrafter drafter(40, 2);
  const Tokens said = {1, 10, 11, 12, 13, 14, 15};
  drafter.end({{1, 0}, "a", said, 1, nullptr});
  CHECK(guesses_of(drafter, {5, 10, 11, 12}, 2, {2, 0}, "a") == Tokens{13, 14});
  CHECK(guesses_of(drafter, {5, 10, 11, 12}, 2, {3, 0}, "b").empty());
  for (uint64_t i = 0; i < 20; ++i) {
    const auto token = static_cast<int32_t>(100 + i);
    drafter.end({{10 + i, 0}, "a", Tokens{1, token, 7, token}, 1, nullptr});
  }
  CHECK(guesses_of(drafter, {5, 10, 11, 12}, 2, {4, 0}, "a").empty());  // forgotten
  CHECK(guesses_of(drafter, {5, 119, 7}, 1, {5, 0}, "a") == Tokens{119});
  drafter.end({{49, 0}, "b", said, 1, nullptr, true});  // secret: nothing is kept
  CHECK(guesses_of(drafter, {5, 10, 11, 12}, 2, {8, 0}, "b").empty());
  drafter.end({{50, 0}, "b", said, 1, nullptr});
  drafter.end({{51, 0}, "c", said, 1, nullptr});  // the least recently used scope gives way
  CHECK(guesses_of(drafter, {5, 119, 7}, 1, {6, 0}, "a").empty());
  CHECK(guesses_of(drafter, {5, 10, 11, 12}, 2, {7, 0}, "c") == Tokens{13, 14});
}

TEST_CASE("trees of several drafters become one, bounded, and its best chain is kept") {
  DraftTree a, b, all;
  a.add(-1, 1, 0.9f);
  a.add(0, 2, 0.5f);
  b.add(-1, 1, 0.8f);
  b.add(0, 3, 0.9f);
  b.add(1, 4, 0.9f);
  b.add(-1, 9, 0.1f);
  all.merge(a, 0, 16, 3);
  all.merge(b, 1, 16, 3);
  REQUIRE(all.size() == 5);
  CHECK_FALSE(all.is_chain());
  CHECK(all.nodes()[0].confidence == 0.9f);
  CHECK(all.nodes()[2].drafter == 1);
  all.keep_best_chain();
  REQUIRE(all.size() == 3);
  CHECK(all.is_chain());
  CHECK(all.nodes()[2].token == 4);
  CHECK(all.survival(2) == Approx(0.9 * 0.9 * 0.9));
  DraftTree small;
  small.merge(b, 0, 2, 16);
  CHECK(small.size() == 2);
  small.clear();
  small.merge(b, 0, 16, 1);
  CHECK(small.size() == 2);  // of depth 1
}

TEST_CASE("a chain goes on while the next guess is worth its time") {
  MeasuredAcceptance measured;
  SequenceAcceptance sequence;
  for (int i = 0; i < 400; ++i) {
    for (int32_t depth = 1; depth <= 16; ++depth) measured.record(0.8f, depth, i % 5 != 0);
  }
  CHECK(measured.average(3) == Approx(0.8).margin(0.01));
  // Tokens in the time of a step: 1.8/1.5, 2.44/2 = 1.22, 2.952/2.5.
  const DraftWorth worth(measured, sequence, 1e6, 5e5, 16);
  CHECK(worth.gain_ns(16.0) == Approx(2.44e6 - 2e6).margin(0.03e6));
  CHECK(worth.gain_ns(1.0) == Approx(1.8e6 - 1.5e6).margin(0.03e6));
  CHECK(worth.pays(1.0, 1));
  CHECK(worth.pays(0.8, 2));        // 0.64 of a token for 0.61 of one
  CHECK_FALSE(worth.pays(0.7, 2));  // 0.56
  CHECK_FALSE(worth.pays(0.64, 3));
  CHECK(worth.confidence(0.8f, 2) == Approx(0.8).margin(0.01));
  CHECK(DraftWorth(measured, sequence, 1e6, 0.9e6, 16).gain_ns(16.0) == 0.0);
  // Guesses that take nothing go on for ever, and so do those of which nobody asks whether they pay.
  CHECK(DraftWorth(measured, sequence, 1e6, 0.0, 16).pays(1e-6, 16));
  CHECK(DraftWorth().pays(1e-6, 16));
  CHECK(DraftWorth().confidence(2.0f, 1) == 1.0);
}

TEST_CASE("of drawn siblings the first is kept, whatever follows") {
  DraftTree tree;
  const int32_t q = tree.add_distribution({{1, 2}, {0.5f, 0.5f}});
  tree.add(-1, 2, 0.5f, q);
  tree.add(-1, 1, 0.5f, q);
  tree.add(1, 7, 1.0f);
  tree.keep_best_chain();
  REQUIRE(tree.size() == 1);
  CHECK(tree.nodes()[0].token == 2);
}

}  // namespace headrace::speculation
