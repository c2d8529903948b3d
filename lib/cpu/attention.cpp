#include "cpu/attention.h"

#include <algorithm>
#include <limits>

#include "cpu/cached_row.h"
#include "tensor/seen_positions.h"

namespace headrace {
namespace {

// Partial sums of every row are closed at multiples of this many positions and merged in order, whether one thread
// walks the splits or several share them.
constexpr int64_t kSplit = 512;
constexpr int64_t kChunkPositions = 64;  // of the kernel
// Rows (token, query head) of one tile: the keys and values of a chunk are widened once for all of them. The more the
// better, as long as queries and sums stay in a second-level cache and every thread has several tiles.
constexpr int32_t kMostRows = 192, kFewestRows = 48;
constexpr int64_t kUnitsPerThread = 8;
// Where splits are shared out: long runs read memory ahead without a break, several per thread even out its pace.
constexpr int64_t kRunsPerThread = 4;

struct Tile {
  int32_t seq;
  int32_t first_token;
  int32_t num_tokens;
  int64_t begin, end;  // positions that any row sees

  int64_t first_split() const { return begin / kSplit; }
  int64_t num_splits() const { return (end - 1) / kSplit - first_split() + 1; }
};

int32_t choose_tile_tokens(const PagedAttentionParams& p, int num_threads) {
  if (is_listed(p)) return 1;
  const int64_t group = p.num_heads / p.layout.num_kv_heads;
  const int64_t rows = int64_t{p.query_start[p.num_seqs]} * group * p.layout.num_kv_heads;
  int64_t target = kMostRows;
  while (target > kFewestRows && rows < target * kUnitsPerThread * num_threads) target /= 2;
  return static_cast<int32_t>(std::max<int64_t>(1, target / group));
}

// Tokens of one tile stand at consecutive positions, so that what they see begins and ends ever later, spans included:
// the positions between the first and the last that any of them sees are then all seen by one of them, hence cached.
std::vector<Tile> cut_tiles(const PagedAttentionParams& p, int32_t tile_tokens) {
  std::vector<Tile> tiles;
  for (int32_t seq = 0; seq < p.num_seqs; ++seq) {
    for (int32_t token = p.query_start[seq]; token < p.query_start[seq + 1];) {
      int32_t next = token + 1;
      while (next < p.query_start[seq + 1] && next - token < tile_tokens &&
             p.positions[next] == p.positions[next - 1] + 1) {
        ++next;
      }
      tiles.push_back({seq, token, next - token, seen_begin(p, token), seen_end(p, seq, next - 1)});
      token = next;
    }
  }
  return tiles;
}

// Consecutive splits of one tile and KV head that one thread walks.
struct SplitRun {
  int64_t unit;
  int64_t first, end;
};

// PagedAttentionParams::position_bias written out over every distance of the batch's rows and the positions of the chunks
// that they see, so that a row's biases lie in order of position.
struct WrittenBias {
  int64_t before = 0, width = 0;  // distances behind a row; of a head, in all
  float* values = nullptr;        // [num_heads, width]

  static WrittenBias measure(const PagedAttentionParams& p) {
    WrittenBias out;
    if (p.position_bias == nullptr) return out;
    int64_t after = 0;
    for (int32_t seq = 0; seq < p.num_seqs; ++seq) {
      for (int32_t row = p.query_start[seq]; row < p.query_start[seq + 1]; ++row) {
        const int64_t end = (seen_end(p, seq, row) + kChunkPositions - 1) / kChunkPositions * kChunkPositions;
        out.before = std::max<int64_t>(out.before, p.positions[row]);
        after = std::max(after, end - p.positions[row]);
      }
    }
    out.width = out.before + after;
    return out;
  }

  void fill(const PagedAttentionParams& p, int32_t head) const {
    const float* from = p.position_bias + head * (2 * int64_t{p.bias_reach} + 1);
    float* to = values + head * width;
    for (int64_t i = 0; i < width; ++i) {
      to[i] = from[std::clamp<int64_t>(i - before, -p.bias_reach, p.bias_reach) + p.bias_reach];
    }
  }

  // By position, as seen from that of a row.
  const float* of(int32_t head, int32_t position) const { return values + head * width + before - position; }
};

// One thread's working memory, cut from one buffer.
struct Workspace {
  int64_t *row_begin, *row_end;  // [rows]
  const float** row_bias;        // [rows] where there are biases
  float* q;                      // [tiles of rows][head_dim][tile_rows]
  float *max, *sum, *acc;        // running
  float *split_max, *split_sum, *split_acc;
  float* kernel;
  const uint8_t** listed;  // [kSplit] rows of a split with a list of positions
  const uint8_t** listed_scales;

  // Lays the pieces out from `memory` and returns the floats used; memory may be null to measure.
  int64_t lay(float* memory, int64_t rows, int64_t padded_rows, int64_t head_dim, int64_t padded_dim,
              int64_t kernel_floats, int64_t listed_rows) {
    int64_t used = 0;
    const auto take = [&](int64_t floats) {
      float* at = memory == nullptr ? nullptr : memory + used;
      used += (floats + 15) / 16 * 16;
      return at;
    };
    row_begin = reinterpret_cast<int64_t*>(take(rows * 2));
    row_end = reinterpret_cast<int64_t*>(take(rows * 2));
    row_bias = reinterpret_cast<const float**>(take(rows * 2));
    q = take(padded_rows * head_dim);
    max = take(rows);
    sum = take(rows);
    acc = take(rows * padded_dim);
    split_max = take(rows);
    split_sum = take(rows);
    split_acc = take(rows * padded_dim);
    kernel = take(kernel_floats);
    listed = reinterpret_cast<const uint8_t**>(take(listed_rows * 2));
    listed_scales = reinterpret_cast<const uint8_t**>(take(listed_rows * 2));
    return used;
  }
};

class Run {
 public:
  Run(const PagedAttentionParams& params, const WrittenBias& bias, const KernelTable& kernels, int num_threads)
      : p_(params),
        bias_(bias),
        kernels_(kernels),
        group_(params.num_heads / params.layout.num_kv_heads),
        head_dim_(params.layout.head_dim),
        padded_dim_((head_dim_ + kPanel - 1) / kPanel * kPanel),
        tile_tokens_(choose_tile_tokens(params, num_threads)) {}

  int32_t tile_tokens() const { return tile_tokens_; }
  int32_t most_rows() const { return tile_tokens_ * group_; }
  int64_t partial_floats() const { return int64_t{most_rows()} * (padded_dim_ + 2); }

  int64_t lay(Workspace& w, float* memory) const {
    const int64_t tile_rows = kernels_.float_tile_rows;
    return w.lay(memory, most_rows(), (most_rows() + tile_rows - 1) / tile_rows * tile_rows, head_dim_, padded_dim_,
                 kernels_.attention_scratch_floats(head_dim_, most_rows()), is_listed(p_) ? kSplit : 0);
  }

  // Fills the rows' ranges and their queries in the kernel's order.
  void load_rows(const Tile& tile, int32_t kv_head, const Workspace& w) const {
    const int64_t tile_rows = kernels_.float_tile_rows;
    for (int32_t token = 0; token < tile.num_tokens; ++token) {
      const int32_t batch_row = tile.first_token + token;
      for (int32_t g = 0; g < group_; ++g) {
        const int64_t row = int64_t{token} * group_ + g;
        w.row_begin[row] = seen_begin(p_, batch_row);
        w.row_end[row] = seen_end(p_, tile.seq, batch_row);
        if (bias_.width > 0) w.row_bias[row] = bias_.of(kv_head * group_ + g, p_.positions[batch_row]);
        const float* src = p_.q + (int64_t{batch_row} * p_.num_heads + kv_head * group_ + g) * head_dim_;
        float* dst = w.q + row / tile_rows * tile_rows * head_dim_ + row % tile_rows;
        for (int64_t d = 0; d < head_dim_; ++d) dst[d * tile_rows] = src[d];
      }
    }
  }

  // ahead_splits: how many of the next splits the same thread will do; starts: whether this is its first.
  void split(const Tile& tile, int32_t kv_head, int64_t index, bool starts, int64_t ahead_splits, const Workspace& w,
             float* max, float* sum, float* acc) const {
    const int64_t first = (tile.first_split() + index) * kSplit;
    AttentionSplit s;
    s.kv_dtype = static_cast<int32_t>(p_.layout.dtype);
    s.head_dim = head_dim_;
    s.padded_dim = padded_dim_;
    s.block_size = p_.layout.block_size;
    s.code_bytes = static_cast<int64_t>(p_.layout.code_bytes());
    s.half_bytes = static_cast<int64_t>(p_.layout.half_bytes());
    s.scale_groups = p_.layout.scale_groups();
    s.cache =
        reinterpret_cast<const uint8_t*>(p_.cache_of(tile.seq)) + static_cast<size_t>(kv_head) * p_.layout.head_bytes();
    s.block_bytes = static_cast<int64_t>(p_.layout.block_bytes());
    s.block_table = p_.block_tables[tile.seq];
    s.begin = std::max(tile.begin, first);
    s.end = std::min(tile.end, first + kSplit);
    s.starts = starts;
    s.ahead_end = std::min(tile.end, first + ahead_splits * kSplit + kSplit);
    s.num_rows = tile.num_tokens * group_;
    s.q = w.q;
    s.row_begin = w.row_begin;
    s.row_end = w.row_end;
    s.scale = p_.scale;
    s.row_bias = bias_.width > 0 ? w.row_bias : nullptr;
    s.softcap = p_.logit_softcap;
    s.max = max;
    s.sum = sum;
    s.acc = acc;
    s.scratch = w.kernel;
    s.rows = s.row_scales = nullptr;
    if (is_listed(p_)) list_rows(tile, kv_head, s, w);
    kernels_.attention_split(s);
  }

  void start(const Tile& tile, int32_t kv_head, const Workspace& w) const {
    const int64_t rows = int64_t{tile.num_tokens} * group_;
    for (int64_t row = 0; row < rows; ++row) {
      // A sink is a logit whose value vector is zero.
      w.max[row] =
          p_.sinks == nullptr ? -std::numeric_limits<float>::infinity() : p_.sinks[kv_head * group_ + row % group_];
      w.sum[row] = p_.sinks == nullptr ? 0.0f : 1.0f;
    }
    std::fill_n(w.acc, rows * padded_dim_, 0.0f);
  }

  void merge(const Tile& tile, const Workspace& w, const float* max, const float* sum, const float* acc) const {
    const int64_t rows = int64_t{tile.num_tokens} * group_;
    for (int64_t row = 0; row < rows; ++row) {
      kernels_.attention_merge(max[row], sum[row], acc + row * padded_dim_, padded_dim_, &w.max[row], &w.sum[row],
                               w.acc + row * padded_dim_);
    }
  }

  void finish(const Tile& tile, int32_t kv_head, const Workspace& w) const {
    const int64_t rows = int64_t{tile.num_tokens} * group_;
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t batch_row = tile.first_token + row / group_;
      float* out = p_.out + (batch_row * p_.num_heads + kv_head * group_ + row % group_) * head_dim_;
      kernels_.attention_finish(w.acc + row * padded_dim_, w.sum[row], head_dim_, out);
    }
  }

 private:
  // Where the rows of a split's ranks lie.
  void list_rows(const Tile& tile, int32_t kv_head, AttentionSplit& s, const Workspace& w) const {
    const int64_t positions = listed_positions(p_, tile.first_token);
    const int64_t first = p_.selected.positions == nullptr ? window_begin(p_, tile.first_token) : 0;
    for (int64_t rank = s.begin; rank < s.end; ++rank) {
      const bool is_run = rank >= positions;
      const int64_t number = is_run ? number_in(p_.runs.selected, tile.first_token, rank - positions, 0)
                                    : number_in(p_.selected, tile.first_token, rank, first);
      const KvLayout& layout = is_run ? p_.runs.layout : p_.layout;
      const std::byte* head =
          (is_run ? p_.runs.cache : p_.cache_of(tile.seq)) + static_cast<size_t>(kv_head) * layout.head_bytes();
      const CachedRow row = cached_row(layout, head, s.block_table, number);
      w.listed[rank - s.begin] = row.codes;
      w.listed_scales[rank - s.begin] = row.scales;
    }
    s.rows = w.listed;
    s.row_scales = w.listed_scales;
  }

  // The number at a rank of a row's list, or of all from `first` on.
  static int64_t number_in(const SelectedPositions& list, int32_t token, int64_t rank, int64_t first) {
    return list.positions == nullptr ? first + rank : list.positions[token * list.max_count + rank];
  }

  const PagedAttentionParams& p_;
  const WrittenBias& bias_;
  const KernelTable& kernels_;
  int32_t group_, head_dim_, padded_dim_, tile_tokens_;
};

}  // namespace

void CpuAttention::run(const PagedAttentionParams& params, ThreadPool& pool, const KernelTable& kernels) {
  WrittenBias bias = WrittenBias::measure(params);
  if (bias.width > 0) {
    bias_.reserve(static_cast<uint64_t>(params.num_heads * bias.width) * sizeof(float));
    bias.values = bias_.as<float>();
    pool.run(params.num_heads, [&](int64_t head, int) { bias.fill(params, static_cast<int32_t>(head)); });
  }
  const Run run(params, bias, kernels, pool.num_threads());
  const std::vector<Tile> tiles = cut_tiles(params, run.tile_tokens());
  const int64_t heads = params.layout.num_kv_heads;
  const int64_t units = static_cast<int64_t>(tiles.size()) * heads;
  if (units == 0) return;

  thread_scratch_.resize(static_cast<size_t>(pool.num_threads()));
  std::vector<Workspace> spaces(thread_scratch_.size());
  for (size_t thread = 0; thread < spaces.size(); ++thread) {
    const int64_t floats = run.lay(spaces[thread], nullptr);
    thread_scratch_[thread].reserve(static_cast<uint64_t>(floats) * sizeof(float));
    run.lay(spaces[thread], thread_scratch_[thread].as<float>());
  }
  // The last tiles of a prompt see the most keys: they start first.
  const auto tile_of = [&](int64_t unit) -> const Tile& {
    return tiles[tiles.size() - 1 - static_cast<size_t>(unit / heads)];
  };

  if (pool.num_threads() == 1 || units >= 4 * pool.num_threads()) {
    pool.run(units, [&](int64_t unit, int thread) {
      const Tile& tile = tile_of(unit);
      const int32_t kv_head = static_cast<int32_t>(unit % heads);
      const Workspace& w = spaces[static_cast<size_t>(thread)];
      run.load_rows(tile, kv_head, w);
      run.start(tile, kv_head, w);
      for (int64_t index = 0; index < tile.num_splits(); ++index) {
        run.split(tile, kv_head, index, index == 0, tile.num_splits() - 1 - index, w, w.split_max, w.split_sum,
                  w.split_acc);
        run.merge(tile, w, w.split_max, w.split_sum, w.split_acc);
      }
      run.finish(tile, kv_head, w);
    });
    return;
  }

  // Few tiles, as when one long sequence is decoded: runs of splits are shared out, then all splits merged in order.
  std::vector<int64_t> first_split(static_cast<size_t>(units) + 1, 0);
  for (int64_t unit = 0; unit < units; ++unit) {
    first_split[static_cast<size_t>(unit) + 1] = first_split[static_cast<size_t>(unit)] + tile_of(unit).num_splits();
  }
  const int64_t run_length = std::max<int64_t>(1, first_split.back() / (kRunsPerThread * pool.num_threads()));
  std::vector<SplitRun> runs;
  for (int64_t unit = 0; unit < units; ++unit) {
    const int64_t splits = tile_of(unit).num_splits();
    for (int64_t first = 0; first < splits; first += run_length) {
      runs.push_back({unit, first, std::min(first + run_length, splits)});
    }
  }
  const int64_t rows = run.most_rows(), stride = run.partial_floats();
  partials_.reserve(static_cast<uint64_t>(first_split.back() * stride) * sizeof(float));
  const auto partial = [&](int64_t unit, int64_t split) {
    return partials_.as<float>() + (first_split[static_cast<size_t>(unit)] + split) * stride;
  };
  pool.run(static_cast<int64_t>(runs.size()), [&](int64_t index, int thread) {
    const SplitRun& each = runs[static_cast<size_t>(index)];
    const Tile& tile = tile_of(each.unit);
    const int32_t kv_head = static_cast<int32_t>(each.unit % heads);
    const Workspace& w = spaces[static_cast<size_t>(thread)];
    run.load_rows(tile, kv_head, w);
    for (int64_t split = each.first; split < each.end; ++split) {
      float* at = partial(each.unit, split);
      run.split(tile, kv_head, split, split == each.first, each.end - 1 - split, w, at, at + rows, at + 2 * rows);
    }
  });
  pool.run(units, [&](int64_t unit, int thread) {
    const Tile& tile = tile_of(unit);
    const int32_t kv_head = static_cast<int32_t>(unit % heads);
    const Workspace& w = spaces[static_cast<size_t>(thread)];
    run.start(tile, kv_head, w);
    for (int64_t split = 0; split < tile.num_splits(); ++split) {
      const float* at = partial(unit, split);
      run.merge(tile, w, at, at + rows, at + 2 * rows);
    }
    run.finish(tile, kv_head, w);
  });
}

}  // namespace headrace
