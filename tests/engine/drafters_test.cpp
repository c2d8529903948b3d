// What drafters without a model guess, and the automaton behind them.
#include <algorithm>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include <catch2/catch.hpp>

#include "speculation/ngram_drafter.h"
#include "speculation/position_tree.h"
#include "speculation/speculator.h"
#include "speculation/suffix_automaton.h"
#include "speculation/suffix_drafter.h"
#include "speculation/verify_paths.h"

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

TEST_CASE("several continuations are branches where they are wanted") {
  const auto tree_of = [](Drafter& drafter, const Tokens& tokens, int32_t branches) {
    DraftRequest request;
    request.context = {{1, 0}, "a", tokens, 1, nullptr};
    request.max_nodes = request.max_depth = 16;
    request.max_branches = branches;
    DraftTree tree;
    REQUIRE(drafter.draft({&request, 1}, {&tree, 1}).ok());
    Tokens roots;
    for (const DraftNode& node : tree.nodes()) {
      if (node.parent < 0) roots.push_back(node.token);
      CHECK(node.depth <= 16);
    }
    CHECK(tree.size() <= 16);
    return roots;
  };
  SuffixDrafter suffix;
  const Tokens said = {1, 2, 3, 1, 2, 3, 1, 2, 4, 8, 1, 2, 5, 1, 2};
  CHECK(tree_of(suffix, said, 3) == Tokens{3, 5, 4});  // twice, then the latest
  CHECK(tree_of(suffix, said, 2) == Tokens{3, 5});
  NgramDrafter ngram;
  // Behind 9 1 2 came 7 the last time, behind 1 2 alone 4.
  const Tokens after = {9, 1, 2, 7, 6, 6, 6, 1, 2, 4, 6, 9, 1, 2};
  CHECK(tree_of(ngram, after, 3) == Tokens{7, 4});
  NgramDrafter again;
  CHECK(tree_of(again, after, 1) == Tokens{7});
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
      const auto found = automaton.frequent(match.state, 1);
      REQUIRE(found.size() == 1);
      const SuffixAutomaton::Next& next = found.front();
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

TEST_CASE("paths verify a tree: a node goes on from its parent's, a sibling begins another") {
  DraftTree tree;
  tree.add(-1, 1, 0.9f);  // 0
  tree.add(-1, 2, 0.5f);  // 1
  tree.add(0, 3, 0.9f);   // 2
  tree.add(2, 4, 0.9f);   // 3
  tree.add(0, 5, 0.1f);   // 4
  tree.add(1, 6, 0.8f);   // 5
  tree.add(4, 7, 0.8f);   // 6
  const auto paths = verify_paths(tree, tree.size());
  REQUIRE(paths.size() == 3);
  CHECK(paths[0].nodes == Tokens{0, 2, 3});
  CHECK(paths[1].nodes == Tokens{1, 5});
  CHECK(paths[2].nodes == Tokens{0, 4, 6});
  CHECK(paths[0].num_shared == 0);
  CHECK(paths[1].num_shared == 0);
  CHECK(paths[2].num_shared == 1);
  CHECK(verify_paths(tree, 1).size() == 1);
  CHECK(verify_paths(tree, 0).empty());
  // The rows of each node, added up, are those of the paths, whose first has the root's anyway.
  int64_t rows = -1, sum = 0;
  for (const VerifyPath& path : paths) rows += 1 + static_cast<int64_t>(path.nodes.size());
  const std::vector<bool> begins = {false, true, false, false, true, false, false};
  for (size_t i = 0; i < begins.size(); ++i) sum += rows_of_guess(tree.nodes()[i], begins[i]);
  CHECK(sum == rows);
}

TEST_CASE("nodes put first keep their parents, and the others their order") {
  DraftTree tree;
  tree.add(-1, 1, 0.9f);
  tree.add(-1, 2, 0.5f);
  tree.add(0, 3, 0.9f);
  tree.add(1, 4, 0.9f);
  const Tokens order = {1, 3};
  CHECK(tree.put_first(order) == Tokens{2, 0, 3, 1});
  std::vector<std::pair<int32_t, int32_t>> seen;
  for (const DraftNode& node : tree.nodes()) seen.emplace_back(node.token, node.parent);
  CHECK(seen == std::vector<std::pair<int32_t, int32_t>>{{2, -1}, {4, 0}, {1, -1}, {3, 2}});
}

TEST_CASE("positions that are guessed apart combine, the likeliest paths first") {
  DraftTree beside;
  beside.add(-1, 1, 0.6f);
  beside.add(-1, 2, 0.3f);
  beside.add(0, 3, 0.8f);
  beside.add(0, 4, 0.1f);
  const DraftTree tree = combine_positions(beside, 5);
  std::vector<std::pair<int32_t, int32_t>> seen;
  for (const DraftNode& node : tree.nodes()) seen.emplace_back(node.token, node.parent);
  // 0.6, 0.48, 0.3, 0.24, 0.06
  CHECK(seen == std::vector<std::pair<int32_t, int32_t>>{{1, -1}, {3, 0}, {2, -1}, {3, 2}, {4, 0}});
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

TEST_CASE("of a chosen and a drawn sibling of the same token one stands") {
  Speculator speculator({std::make_shared<NgramDrafter>(), std::make_shared<SuffixDrafter>()}, 16, [] { return 0; });
  SequenceRecord record;
  record.standings.resize(2);
  record.counts.drafters.resize(2);
  DraftTree tree;
  tree.add(-1, 5, 0.9f);
  tree.add(-1, 5, 0.9f, tree.add_distribution({{5}, {1.0f}}), 1);
  tree.add(0, 6, 0.9f);
  tree.add(1, 6, 0.9f, -1, 1);
  speculator.learn(record, tree, 4, Tokens{5, 6, 7}, {});
  CHECK(speculator.totals().drafted() == 4);
  CHECK(speculator.totals().drafters[0].accepted == 2);
  CHECK(speculator.totals().drafters[1].accepted == 0);
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
