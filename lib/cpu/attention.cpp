#include "cpu/attention.h"

#include <algorithm>
#include <limits>
#include <span>

#include "cpu/attention_tiles.h"
#include "cpu/cached_row.h"
#include "tensor/seen_positions.h"

namespace headrace {
namespace {

constexpr int64_t kSplit = kAttentionSplit;
constexpr int64_t kChunkPositions = 64;  // of the kernel
// Where splits are shared out: long runs read memory ahead without a break, several per thread even out its pace.
constexpr int64_t kRunsPerThread = 4;
// Where there are fewer splits than this for a thread, the query heads of a KV head are shared out too, but no fewer than
// so many together: each part reads the keys and values anew.
constexpr int64_t kSplitsPerThread = 2;
constexpr int32_t kFewestHeads = 4;

// Rows of a tile for some query heads of one KV head.
struct Unit {
  const AttentionTile& tile;
  int32_t kv_head;
  int32_t first_head, num_heads;

  int64_t rows() const { return int64_t{tile.num_tokens} * num_heads; }
};

// The units of one stage.
class Units {
 public:
  Units(const PagedAttentionParams& p, std::span<const AttentionTile> tiles, int num_threads)
      : tiles_(tiles), kv_heads_(p.layout.num_kv_heads), group_(p.num_heads / kv_heads_) {
    int64_t splits = 0;
    for (const AttentionTile& tile : tiles) splits += tile.num_splits() * kv_heads_;
    const int64_t wanted = kSplitsPerThread * num_threads;
    const int64_t parts = std::clamp<int64_t>((wanted + splits - 1) / std::max<int64_t>(splits, 1), 1,
                                              std::max(1, group_ / kFewestHeads));
    part_heads_ = static_cast<int32_t>((group_ + parts - 1) / parts);
    parts_ = (group_ + part_heads_ - 1) / part_heads_;
  }

  int64_t size() const { return static_cast<int64_t>(tiles_.size()) * kv_heads_ * parts_; }

  // The last tiles of a prompt see the most keys: they come first.
  Unit operator[](int64_t index) const {
    const AttentionTile& tile = tiles_[tiles_.size() - 1 - static_cast<size_t>(index / parts_ / kv_heads_)];
    const auto kv_head = static_cast<int32_t>(index / parts_ % kv_heads_);
    const auto head = static_cast<int32_t>(index % parts_) * part_heads_;
    return {tile, kv_head, kv_head * group_ + head, std::min(part_heads_, group_ - head)};
  }

 private:
  std::span<const AttentionTile> tiles_;
  int32_t kv_heads_, group_, part_heads_, parts_;
};

// Consecutive splits of one unit that one thread walks.
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
  Run(const PagedAttentionParams& params, const AttentionPlan& plan, const WrittenBias& bias,
      const KernelTable& kernels)
      : p_(params),
        plan_(plan),
        bias_(bias),
        kernels_(kernels),
        head_dim_(params.layout.head_dim),
        padded_dim_((head_dim_ + kPanel - 1) / kPanel * kPanel),
        most_rows_(int64_t{plan.most_tokens} * (params.num_heads / params.layout.num_kv_heads)) {}

  int64_t most_rows() const { return most_rows_; }
  // Of a row's maximum, sum and values.
  int64_t row_floats() const { return padded_dim_ + 2; }

  // Where rows between stages wait, [num_tokens, num_heads, row_floats].
  void set_between(float* between) { between_ = between; }

  int64_t lay(Workspace& w, float* memory) const {
    const int64_t tile_rows = kernels_.float_tile_rows;
    return w.lay(memory, most_rows_, (most_rows_ + tile_rows - 1) / tile_rows * tile_rows, head_dim_, padded_dim_,
                 kernels_.attention_scratch_floats(head_dim_, static_cast<int32_t>(most_rows_)),
                 is_listed(p_) ? kSplit : 0);
  }

  // Fills the rows' ranges and their queries in the kernel's order.
  void load_rows(const Unit& unit, const Workspace& w) const {
    const int64_t stride = kernels_.float_tile_rows, tile_rows = rows_per_tile(unit);
    int64_t row = 0;
    for (const TileToken& token : tokens_of(unit)) {
      for (int32_t head = unit.first_head; head < unit.first_head + unit.num_heads; ++head, ++row) {
        w.row_begin[row] = seen_begin(p_, token.row);
        w.row_end[row] = seen_end(p_, token.sequence, token.row);
        if (bias_.width > 0) w.row_bias[row] = bias_.of(head, p_.positions[token.row]);
        const float* src = p_.q + (int64_t{token.row} * p_.num_heads + head) * head_dim_;
        float* dst = w.q + row / tile_rows * stride * head_dim_ + row % tile_rows;
        for (int64_t d = 0; d < head_dim_; ++d) dst[d * stride] = src[d];
      }
    }
  }

  // ahead_splits: how many of the next splits the same thread will do; starts: whether this is its first.
  void split(const Unit& unit, int64_t index, bool starts, int64_t ahead_splits, const Workspace& w, float* max,
             float* sum, float* acc) const {
    const AttentionTile& tile = unit.tile;
    const int64_t first = (tile.first_split() + index) * kSplit;
    AttentionSplit s;
    s.kv_dtype = static_cast<int32_t>(p_.layout.dtype);
    s.head_dim = head_dim_;
    s.padded_dim = padded_dim_;
    s.block_size = p_.layout.block_size;
    s.code_bytes = static_cast<int64_t>(p_.layout.code_bytes());
    s.half_bytes = static_cast<int64_t>(p_.layout.half_bytes());
    s.scale_groups = p_.layout.scale_groups();
    s.cache = reinterpret_cast<const uint8_t*>(p_.cache_of(tile.sequence)) +
              static_cast<size_t>(unit.kv_head) * p_.layout.head_bytes();
    s.block_bytes = static_cast<int64_t>(p_.layout.block_bytes());
    s.block_table = p_.block_tables[tile.sequence];
    s.begin = std::max(tile.begin, first);
    s.end = std::min(tile.end, first + kSplit);
    s.starts = starts;
    s.ahead_end = std::min(tile.end, first + ahead_splits * kSplit + kSplit);
    s.num_rows = static_cast<int32_t>(unit.rows());
    s.tile_rows = static_cast<int32_t>(rows_per_tile(unit));
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
    if (is_listed(p_)) list_rows(unit, s, w);
    kernels_.attention_split(s);
  }

  void start(const Unit& unit, const Workspace& w) const {
    int64_t row = 0;
    for (const TileToken& token : tokens_of(unit)) {
      for (int32_t head = unit.first_head; head < unit.first_head + unit.num_heads; ++head, ++row) {
        float* const acc = w.acc + row * padded_dim_;
        if (unit.tile.resumes) {
          const float* from = between(token, head);
          w.max[row] = from[0];
          w.sum[row] = from[1];
          std::copy_n(from + 2, padded_dim_, acc);
          continue;
        }
        // A sink is a logit whose value vector is zero.
        w.max[row] = p_.sinks == nullptr ? -std::numeric_limits<float>::infinity() : p_.sinks[head];
        w.sum[row] = p_.sinks == nullptr ? 0.0f : 1.0f;
        std::fill_n(acc, padded_dim_, 0.0f);
      }
    }
  }

  void merge(const Unit& unit, const Workspace& w, const float* max, const float* sum, const float* acc) const {
    for (int64_t row = 0; row < unit.rows(); ++row) {
      kernels_.attention_merge(max[row], sum[row], acc + row * padded_dim_, padded_dim_, &w.max[row], &w.sum[row],
                               w.acc + row * padded_dim_);
    }
  }

  void finish(const Unit& unit, const Workspace& w) const {
    int64_t row = 0;
    for (const TileToken& token : tokens_of(unit)) {
      for (int32_t head = unit.first_head; head < unit.first_head + unit.num_heads; ++head, ++row) {
        const float* const acc = w.acc + row * padded_dim_;
        if (unit.tile.goes_on) {
          float* const to = between(token, head);
          to[0] = w.max[row];
          to[1] = w.sum[row];
          std::copy_n(acc, padded_dim_, to + 2);
          continue;
        }
        float* out = p_.out + (int64_t{token.row} * p_.num_heads + head) * head_dim_;
        kernels_.attention_finish(acc, w.sum[row], head_dim_, out);
      }
    }
  }

 private:
  // Where the rows of a split's ranks lie.
  void list_rows(const Unit& unit, AttentionSplit& s, const Workspace& w) const {
    const TileToken token = tokens_of(unit)[0];
    const int64_t positions = listed_positions(p_, token.row);
    const int64_t first = p_.selected.positions == nullptr ? window_begin(p_, token.row) : 0;
    for (int64_t rank = s.begin; rank < s.end; ++rank) {
      const bool is_run = rank >= positions;
      const int64_t number = is_run ? number_in(p_.runs.selected, token.row, rank - positions, 0)
                                    : number_in(p_.selected, token.row, rank, first);
      const KvLayout& layout = is_run ? p_.runs.layout : p_.layout;
      const std::byte* head = (is_run ? p_.runs.cache : p_.cache_of(token.sequence)) +
                              static_cast<size_t>(unit.kv_head) * layout.head_bytes();
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

  std::span<const TileToken> tokens_of(const Unit& unit) const {
    return std::span(plan_.tokens)
        .subspan(static_cast<size_t>(unit.tile.first_token), static_cast<size_t>(unit.tile.num_tokens));
  }
  // As many tiles of the kernel as its widest would make, all about as wide: narrow ones wait for their operands.
  int64_t rows_per_tile(const Unit& unit) const {
    const int64_t tiles = (unit.rows() + kernels_.float_tile_rows - 1) / kernels_.float_tile_rows;
    return (unit.rows() + tiles - 1) / tiles;
  }
  float* between(const TileToken& token, int32_t head) const {
    return between_ + (int64_t{token.row} * p_.num_heads + head) * row_floats();
  }

  const PagedAttentionParams& p_;
  const AttentionPlan& plan_;
  const WrittenBias& bias_;
  const KernelTable& kernels_;
  const int32_t head_dim_, padded_dim_;
  const int64_t most_rows_;
  float* between_ = nullptr;
};

// Walks the units of one stage. partials: scratch.
void run_stage(const Run& run, const Units& units, std::span<const Workspace> spaces, AlignedBuffer& partials,
               ThreadPool& pool) {
  if (pool.num_threads() == 1 || units.size() >= 4 * pool.num_threads()) {
    pool.run(units.size(), [&](int64_t index, int thread) {
      const Unit unit = units[index];
      const Workspace& w = spaces[static_cast<size_t>(thread)];
      run.load_rows(unit, w);
      run.start(unit, w);
      const int64_t splits = unit.tile.num_splits();
      for (int64_t split = 0; split < splits; ++split) {
        run.split(unit, split, split == 0, splits - 1 - split, w, w.split_max, w.split_sum, w.split_acc);
        run.merge(unit, w, w.split_max, w.split_sum, w.split_acc);
      }
      run.finish(unit, w);
    });
    return;
  }

  // Few units, as when one long sequence is decoded: runs of splits are shared out, then all splits merged in order.
  const int64_t count = units.size();
  std::vector<int64_t> first_split(static_cast<size_t>(count) + 1, 0);
  for (int64_t unit = 0; unit < count; ++unit) {
    first_split[static_cast<size_t>(unit) + 1] = first_split[static_cast<size_t>(unit)] + units[unit].tile.num_splits();
  }
  const int64_t run_length = std::max<int64_t>(1, first_split.back() / (kRunsPerThread * pool.num_threads()));
  std::vector<SplitRun> runs;
  for (int64_t unit = 0; unit < count; ++unit) {
    const int64_t splits = units[unit].tile.num_splits();
    for (int64_t first = 0; first < splits; first += run_length) {
      runs.push_back({unit, first, std::min(first + run_length, splits)});
    }
  }
  const int64_t rows = run.most_rows(), stride = rows * run.row_floats();
  float* const parts = partials.reserve_floats(first_split.back() * stride);
  const auto partial = [&](int64_t unit, int64_t split) {
    return parts + (first_split[static_cast<size_t>(unit)] + split) * stride;
  };
  pool.run(static_cast<int64_t>(runs.size()), [&](int64_t index, int thread) {
    const SplitRun& each = runs[static_cast<size_t>(index)];
    const Unit unit = units[each.unit];
    const Workspace& w = spaces[static_cast<size_t>(thread)];
    run.load_rows(unit, w);
    for (int64_t split = each.first; split < each.end; ++split) {
      float* at = partial(each.unit, split);
      run.split(unit, split, split == each.first, each.end - 1 - split, w, at, at + rows, at + 2 * rows);
    }
  });
  pool.run(count, [&](int64_t index, int thread) {
    const Unit unit = units[index];
    const Workspace& w = spaces[static_cast<size_t>(thread)];
    run.start(unit, w);
    for (int64_t split = 0; split < unit.tile.num_splits(); ++split) {
      const float* at = partial(index, split);
      run.merge(unit, w, at, at + rows, at + 2 * rows);
    }
    run.finish(unit, w);
  });
}

}  // namespace

void CpuAttention::run(const PagedAttentionParams& params, ThreadPool& pool, const KernelTable& kernels) {
  WrittenBias bias = WrittenBias::measure(params);
  if (bias.width > 0) {
    bias.values = bias_.reserve_floats(params.num_heads * bias.width);
    pool.run(params.num_heads, [&](int64_t head, int) { bias.fill(params, static_cast<int32_t>(head)); });
  }
  const AttentionPlan plan = plan_attention(params, pool.num_threads());
  Run run(params, plan, bias, kernels);
  if (plan.has_stages()) {
    const int64_t rows = int64_t{params.query_start[params.num_seqs]} * params.num_heads;
    run.set_between(between_.reserve_floats(rows * run.row_floats()));
  }
  thread_scratch_.resize(static_cast<size_t>(pool.num_threads()));
  std::vector<Workspace> spaces(thread_scratch_.size());
  for (size_t thread = 0; thread < spaces.size(); ++thread) {
    const int64_t floats = run.lay(spaces[thread], nullptr);
    run.lay(spaces[thread], thread_scratch_[thread].reserve_floats(floats));
  }
  for (const std::vector<AttentionTile>& tiles : plan.stages) {
    run_stage(run, Units(params, tiles, pool.num_threads()), spaces, partials_, pool);
  }
}

}  // namespace headrace
