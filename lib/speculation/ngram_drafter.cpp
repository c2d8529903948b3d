#include "speculation/ngram_drafter.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/hash.h"

namespace headrace::speculation {

void NgramDrafter::extend(Index& index, std::span<const int32_t> tokens) {
  const auto size = static_cast<int64_t>(tokens.size());
  for (int64_t at = index.num_indexed; at < size; ++at) {
    for (int64_t n = kShortest; n <= std::min(kLongest, at); ++n) {
      index.after[hash64(tokens.data() + at - n, static_cast<size_t>(n) * sizeof(int32_t))] = at;
    }
    index.num_indexed = at + 1;
  }
}

// What stands from `at` on, beside the chains that are there. Behind the sequence's end it goes on with the guesses themselves,
// as a period does.
void NgramDrafter::continue_from(int64_t at, int32_t length, float confidence, std::span<const int32_t> tokens,
                                 DraftTree& tree) {
  const auto size = static_cast<int64_t>(tokens.size());
  DraftTree chain;
  for (int32_t i = 0; i < length; ++i) {
    const int64_t source = at + i;
    const int32_t token =
        source < size ? tokens[static_cast<size_t>(source)] : chain.nodes()[static_cast<size_t>(source - size)].token;
    chain.add(i - 1, token, confidence);
  }
  tree.merge(chain, 0, tree.size() + length, length);
}

Status NgramDrafter::draft(std::span<const DraftRequest> requests, std::span<DraftTree> trees) {
  constexpr float kConfidences[] = {0.35f, 0.5f, 0.65f};  // of 2 to 4 tokens, before anything is measured
  constexpr int32_t kShortBranch = 8;                     // a part of the nodes: a branch beside the first chain
  for (size_t r = 0; r < requests.size(); ++r) {
    const DraftRequest& request = requests[r];
    const std::span<const int32_t> tokens = request.context.tokens;
    const auto size = static_cast<int64_t>(tokens.size());
    Index& index = sequences_[request.context.id];
    extend(index, tokens);
    std::vector<std::pair<int64_t, float>> found;  // where to go on, each place once
    for (int64_t n = std::min(kLongest, size - 1); n >= kShortest; --n) {
      const auto last = tokens.last(static_cast<size_t>(n));
      const auto at = index.after.find(hash64(last.data(), last.size_bytes()));
      if (at == index.after.end() || at->second < n) continue;
      const auto before = tokens.subspan(static_cast<size_t>(at->second - n), static_cast<size_t>(n));
      if (!std::equal(last.begin(), last.end(), before.begin())) continue;  // another n-gram of the same hash
      if (std::ranges::any_of(found, [&](const auto& one) { return one.first == at->second; })) continue;
      found.emplace_back(at->second, kConfidences[n - kShortest]);
    }
    found.resize(std::min(found.size(), static_cast<size_t>(std::max(request.max_branches, 1))));
    if (found.empty()) continue;
    const int32_t branch = request.max_nodes / kShortBranch;
    const int32_t first =
        std::min(request.max_depth, request.max_nodes - branch * (static_cast<int32_t>(found.size()) - 1));
    continue_from(found[0].first, first, found[0].second, tokens, trees[r]);
    for (size_t i = 1; i < found.size(); ++i) {
      continue_from(found[i].first, std::min(branch, request.max_depth), found[i].second, tokens, trees[r]);
    }
  }
  return Status();
}

}  // namespace headrace::speculation
