#include "cpu/attention_tiles.h"

#include <algorithm>
#include <limits>
#include <span>
#include <tuple>
#include <utility>

#include "tensor/seen_positions.h"

namespace headrace {
namespace {

// Rows (token, query head) of one tile: the keys and values of a chunk are widened once for all of them. The more the
// better, as long as queries and sums stay in a second-level cache and every thread has several tiles.
constexpr int64_t kMostRows = 192, kFewestRows = 48;
constexpr int64_t kUnitsPerThread = 8;
// Two sequences gain less by reading what they share once than they lose by being merged in stages.
constexpr size_t kFewestSharers = 3;

// A sequence that may share.
struct Sharer {
  int32_t sequence;
  int64_t begin;  // first position that any of its rows sees
  int64_t end;    // all of its rows see up to here at least
  int64_t order;  // by which sequences that may be alike become neighbours
};

class Planner {
 public:
  Planner(const PagedAttentionParams& p, int num_threads)
      : p_(p), kv_heads_(p.layout.num_kv_heads), group_(p.num_heads / kv_heads_), threads_(num_threads) {}

  AttentionPlan plan() {
    const int32_t own_tokens = tile_tokens(p_.query_start[p_.num_seqs], 1);
    std::vector<Sharer> sharers;
    for (int32_t seq = 0; seq < p_.num_seqs; ++seq) {
      const int64_t rows = p_.query_start[seq + 1] - p_.query_start[seq];
      if (rows > 0 && rows * group_ <= kFewestRows && p_.num_seqs > 1 && !is_listed(p_)) {
        sharers.push_back(sharer(seq));
      } else {
        cut(seq, 0, own_tokens, 0);
      }
    }
    // Those whose windows begin in the same split: so all of them see something of each split that follows.
    for (Sharer& each : sharers) each.order = each.begin / kAttentionSplit;
    for_alike(
        sharers, [](const Sharer& a, const Sharer& b) { return a.order == b.order; },
        [&](std::span<Sharer> set) { divide(set, set[0].order, own_tokens, 0); });
    return std::move(plan_);
  }

 private:
  Sharer sharer(int32_t seq) const {
    Sharer out{seq, std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::max(), 0};
    for (int32_t row = p_.query_start[seq]; row < p_.query_start[seq + 1]; ++row) {
      out.begin = std::min(out.begin, seen_begin(p_, row));
      out.end = std::min(out.end, seen_end(p_, seq, row));
    }
    return out;
  }

  // Tokens of one tile of `tokens` rows over `splits` splits.
  int32_t tile_tokens(int64_t tokens, int64_t splits) const {
    if (is_listed(p_)) return 1;
    const int64_t rows = tokens * group_;
    int64_t target = kMostRows;
    while (target > kFewestRows && rows * kv_heads_ * splits < target * kUnitsPerThread * threads_) target /= 2;
    return static_cast<int32_t>(std::max<int64_t>(1, target / group_));
  }

  // Whether both have all of a split, in the same blocks from where b begins. a must not begin later.
  bool share(const Sharer& a, const Sharer& b, int64_t split) const {
    const int64_t end = (split + 1) * kAttentionSplit;
    // Something must be left that each walks alone.
    if (end >= a.end || end >= b.end || p_.cache_of(a.sequence) != p_.cache_of(b.sequence)) return false;
    const int64_t first = std::max(split * kAttentionSplit, b.begin) / p_.layout.block_size;
    const int64_t behind = (end - 1) / p_.layout.block_size + 1;
    const int32_t *in_a = p_.block_tables[a.sequence], *in_b = p_.block_tables[b.sequence];
    return std::equal(in_a + first, in_a + behind, in_b + first);
  }

  // Gives runs of sharers that are alike to `each`, the one that begins first at the front of every run.
  template <class Alike, class Each>
  static void for_alike(std::span<Sharer> set, const Alike& alike, const Each& each) {
    std::sort(set.begin(), set.end(), [](const Sharer& a, const Sharer& b) {
      return std::tie(a.order, a.begin, a.sequence) < std::tie(b.order, b.begin, b.sequence);
    });
    while (!set.empty()) {
      size_t count = 1;
      while (count < set.size() && alike(set[0], set[count])) ++count;
      each(set.first(count));
      set = set.subspan(count);
    }
  }

  // Sequences that share all splits before `split`: tiles of the splits that they share still, then of each part of them.
  void divide(std::span<Sharer> set, int64_t split, int32_t own_tokens, size_t stage) {
    if (set.size() < kFewestSharers) {
      for (const Sharer& each : set) cut(each.sequence, split * kAttentionSplit, own_tokens, stage);
      return;
    }
    const auto all_share = [&](int64_t next) {
      return std::all_of(set.begin() + 1, set.end(), [&](const Sharer& each) { return share(set[0], each, next); });
    };
    int64_t end = split;
    while (all_share(end)) ++end;
    if (end > split) add_shared(set, split, end, stage++);
    for (Sharer& each : set) {
      const int64_t last = ((end + 1) * kAttentionSplit - 1) / p_.layout.block_size;
      const bool whole = (end + 1) * kAttentionSplit < each.end;
      each.order = whole ? p_.block_tables[each.sequence][last] : -1 - int64_t{each.sequence};
    }
    for_alike(
        set, [&](const Sharer& a, const Sharer& b) { return share(a, b, end); },
        [&](std::span<Sharer> part) { divide(part, end, own_tokens, stage); });
  }

  void add_shared(std::span<const Sharer> set, int64_t split, int64_t end, size_t stage) {
    const auto first = static_cast<int32_t>(plan_.tokens.size());
    for (const Sharer& each : set) {
      for (int32_t row = p_.query_start[each.sequence]; row < p_.query_start[each.sequence + 1]; ++row) {
        plan_.tokens.push_back({each.sequence, row});
      }
    }
    const auto count = static_cast<int32_t>(plan_.tokens.size()) - first;
    const int32_t most = tile_tokens(count, end - split), tiles = (count + most - 1) / most;
    for (int32_t tile = 0; tile < tiles; ++tile) {
      const int32_t from = count * tile / tiles, to = count * (tile + 1) / tiles;
      int64_t begin = end * kAttentionSplit;
      for (int32_t i = from; i < to; ++i) {
        begin = std::min(begin, seen_begin(p_, plan_.tokens[static_cast<size_t>(first + i)].row));
      }
      add({first + from, to - from, set[0].sequence, std::max(begin, split * kAttentionSplit), end * kAttentionSplit,
           stage > 0, true},
          stage);
    }
  }

  // Tokens of one tile stand at consecutive positions, so that what they see begins and ends ever later, spans included:
  // the positions between the first and the last that any of them sees are then all seen by one of them, hence cached.
  void cut(int32_t seq, int64_t from, int32_t tokens, size_t stage) {
    const int32_t end = p_.query_start[seq + 1];
    for (int32_t row = p_.query_start[seq]; row < end;) {
      const int32_t first = row++;
      while (row < end && row - first < tokens && p_.positions[row] == p_.positions[row - 1] + 1) ++row;
      const auto at = static_cast<int32_t>(plan_.tokens.size());
      for (int32_t i = first; i < row; ++i) plan_.tokens.push_back({seq, i});
      add({at, row - first, seq, std::max(seen_begin(p_, first), from), seen_end(p_, seq, row - 1), stage > 0, false},
          stage);
    }
  }

  void add(const AttentionTile& tile, size_t stage) {
    if (plan_.stages.size() <= stage) plan_.stages.resize(stage + 1);
    plan_.stages[stage].push_back(tile);
    plan_.most_tokens = std::max(plan_.most_tokens, tile.num_tokens);
  }

  const PagedAttentionParams& p_;
  const int32_t kv_heads_, group_;
  const int threads_;
  AttentionPlan plan_;
};

}  // namespace

AttentionPlan plan_attention(const PagedAttentionParams& params, int num_threads) {
  return Planner(params, num_threads).plan();
}

}  // namespace headrace
