#include "speculation/ngram_drafter.h"

#include <algorithm>

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

// A chain of what stands from `at` on. Behind the sequence's end it goes on with the guesses themselves, as a period does.
void NgramDrafter::continue_from(int64_t at, float confidence, const DraftRequest& request, DraftTree& tree) {
  const std::span<const int32_t> tokens = request.context.tokens;
  const auto size = static_cast<int64_t>(tokens.size());
  const int32_t length = std::min(request.max_nodes, request.max_depth);
  for (int32_t i = 0; i < length; ++i) {
    const int64_t source = at + i;
    const int32_t token =
        source < size ? tokens[static_cast<size_t>(source)] : tree.nodes()[static_cast<size_t>(source - size)].token;
    tree.add(i - 1, token, confidence);
  }
}

Status NgramDrafter::draft(std::span<const DraftRequest> requests, std::span<DraftTree> trees) {
  for (size_t r = 0; r < requests.size(); ++r) {
    const std::span<const int32_t> tokens = requests[r].context.tokens;
    const auto size = static_cast<int64_t>(tokens.size());
    Index& index = sequences_[requests[r].context.id];
    extend(index, tokens);
    for (int64_t n = std::min(kLongest, size - 1); n >= kShortest; --n) {
      const auto last = tokens.last(static_cast<size_t>(n));
      const auto found = index.after.find(hash64(last.data(), last.size_bytes()));
      if (found == index.after.end() || found->second < n) continue;
      const auto before = tokens.subspan(static_cast<size_t>(found->second - n), static_cast<size_t>(n));
      if (!std::equal(last.begin(), last.end(), before.begin())) continue;  // another n-gram of the same hash
      constexpr float kConfidences[] = {0.35f, 0.5f, 0.65f};                // before anything is measured
      continue_from(found->second, kConfidences[n - kShortest], requests[r], trees[r]);
      break;
    }
  }
  return Status();
}

}  // namespace headrace::speculation
