#include "cpu/activations.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

namespace headrace {
namespace {

// A row has one outlier block in so many, and at least so many. Measured on small models, the error falls steeply up to
// about 3 % of the blocks and slowly beyond 10 %; each per cent costs a little over one per cent of a product's time.
constexpr int64_t kOutlierShare = 32;
constexpr int64_t kFewestOutliers = 2;

// Cuts a buffer into arrays on cache-line boundaries; measures only while base is null.
class Carver {
 public:
  explicit Carver(std::byte* base) : base_(base) {}
  template <class T>
  T* take(int64_t count) {
    T* out = base_ ? reinterpret_cast<T*>(base_ + used_) : nullptr;
    used_ += (static_cast<uint64_t>(count) * sizeof(T) + 63) / 64 * 64;
    return out;
  }
  uint64_t used() const { return used_; }

 private:
  std::byte* base_;
  uint64_t used_ = 0;
};

// Where the outlier records of single rows lie before they are put in order.
struct RowRecords {
  uint8_t* bytes;
  int32_t* index;
};

// Copies a single row's record to place r of a tile of `size` entries.
void place_record(const uint8_t* record, uint8_t* tile, int64_t size, int64_t r) {
  for (int64_t word = 0; word < kActivationBytes / 4; ++word) {
    std::memcpy(tile + 4 * (word * size + r), record + 4 * word, 4);
  }
}

// Puts one group's records in the order of OutlierPlane: a counting sort by block, which keeps rows ascending.
void order_group(int64_t group, int64_t rows, int64_t blocks, int64_t tile_rows, const RowRecords& records,
                 const OutlierPlane& plane) {
  const int64_t first_row = group * kOutlierGroupRows;
  const int64_t num_rows = std::min(kOutlierGroupRows, rows - first_row);
  const int64_t first = first_row * plane.per_row, count = num_rows * plane.per_row;
  const int32_t* index = records.index + first;
  int32_t* starts = plane.starts + group * (blocks + 1);
  // starts[b + 1] counts block b, then is where its next entry goes, and in the end its end.
  std::fill_n(starts, blocks + 1, 0);
  for (int64_t i = 0; i < count; ++i) {
    if (index[i] + 2 <= blocks) ++starts[index[i] + 2];
  }
  for (int64_t b = 2; b <= blocks; ++b) starts[b] += starts[b - 1];
  for (int64_t i = 0; i < count; ++i) plane.rows[first + starts[index[i] + 1]++] = static_cast<int32_t>(i);
  for (int64_t b = 0; b < blocks; ++b) {
    for (int32_t entry = starts[b]; entry < starts[b + 1]; ++entry) {
      const int64_t tile = (entry - starts[b]) / tile_rows * tile_rows + starts[b];
      const int64_t size = std::min<int64_t>(tile_rows, starts[b + 1] - tile);
      int32_t& source = plane.rows[first + entry];
      place_record(records.bytes + (first + source) * kActivationBytes, plane.bytes + (first + tile) * kActivationBytes,
                   size, entry - tile);
      source = static_cast<int32_t>(source / plane.per_row);
    }
  }
}

// What a row takes besides its codes.
struct RowShape {
  int64_t blocks, per_row;
  bool every_block;

  RowShape(int64_t cols, ActivationType type)
      : blocks(cols / kQuantBlock),
        per_row(type == ActivationType::kInt16
                    ? 0
                    : std::min(blocks, std::max(kFewestOutliers, (blocks + kOutlierShare - 1) / kOutlierShare))),
        every_block(type == ActivationType::kInt16) {}
};

int64_t outlier_groups(int64_t rows) { return (rows + kOutlierGroupRows - 1) / kOutlierGroupRows; }

// Few rows are shared out evenly: 8 make two tiles of 4 rather than one of 6, and one of 2, which is no faster.
int64_t even_tile_rows(int64_t rows, int64_t most) {
  const int64_t tiles = std::max<int64_t>(1, (rows + most - 1) / most);
  return std::max<int64_t>(1, (rows + tiles - 1) / tiles);
}

// The planes of `rows` rows.
RowRecords carve_rows(Carver& carver, const RowShape& shape, int64_t rows, int64_t most_tile_rows,
                      ActivationRows& out) {
  const int64_t blocks = shape.blocks, records = rows * shape.per_row, tile = even_tile_rows(rows, most_tile_rows);
  out.first = {blocks, tile, carver.take<uint8_t>(rows * blocks * kActivationBytes)};
  out.second = {blocks, tile, shape.every_block ? carver.take<uint8_t>(rows * blocks * kActivationBytes) : nullptr};
  const RowRecords unordered = {carver.take<uint8_t>(records * kActivationBytes), carver.take<int32_t>(records)};
  out.outliers = {shape.per_row, carver.take<uint8_t>(records * kActivationBytes), carver.take<int32_t>(records),
                  carver.take<int32_t>(outlier_groups(rows) * (blocks + 1))};
  return unordered;
}

void set_workspace(ActivationRows& out, int64_t most_rows, const KernelTable& kernels) {
  out.workspace_rows = std::min(most_rows, kOutlierGroupRows);
  out.workspace_bytes = static_cast<uint64_t>(kernels.quantized.scratch_bytes(out.workspace_rows) + 63) / 64 * 64;
}

}  // namespace

void quantize_activations(const float* x, int64_t rows, int64_t cols, ActivationType type, ThreadPool& pool,
                          const KernelTable& kernels, ActivationRows& out) {
  const RowShape shape(cols, type);
  const int64_t scratch_floats = kQuantizeScratch * shape.blocks;
  RowRecords records = {};
  float* scratch = nullptr;  // [threads][scratch_floats]
  const auto carve = [&](std::byte* base) {
    Carver carver(base);
    records = carve_rows(carver, shape, rows, kernels.quantized.tile_rows, out);
    scratch = carver.take<float>(pool.num_threads() * scratch_floats);
    return carver.used();
  };
  out.storage.reserve(carve(nullptr));
  carve(out.storage.data());
  out.type = type;
  out.rows = rows;
  out.cols = cols;
  set_workspace(out, rows, kernels);
  out.workspace.reserve(out.workspace_bytes * static_cast<uint64_t>(pool.num_threads()));
  out.scratch = out.workspace.as<uint8_t>();

  const int64_t tile_rows = out.first.tile_rows;
  pool.run((rows + tile_rows - 1) / tile_rows, [&](int64_t tile, int thread) {
    const int64_t row = tile * tile_rows;
    kernels.quantized.quantize_tile(x + row * cols, row, static_cast<int32_t>(std::min(tile_rows, rows - row)),
                                    out.first, out.second, shape.per_row, records.bytes, records.index,
                                    scratch + thread * scratch_floats);
  });
  if (!shape.every_block) {
    pool.run(outlier_groups(rows), [&](int64_t group, int) {
      order_group(group, rows, shape.blocks, kernels.quantized.tile_rows, records, out.outliers);
    });
  }
}

void QuantizedGroups::quantize(const std::vector<int64_t>& starts, const float* const* rows, int64_t cols,
                               ActivationType type, ThreadPool& pool, const KernelTable& kernels) {
  const RowShape shape(cols, type);
  const int64_t most_tile_rows = kernels.quantized.tile_rows;
  const int64_t scratch_floats = kQuantizeScratch * shape.blocks + most_tile_rows * cols;
  const size_t count = starts.size() - 1;
  groups_.resize(count);
  tile_ends_.resize(count);
  std::vector<RowRecords> records(count);
  float* scratch = nullptr;  // [threads][scratch_floats]
  int64_t most_rows = 0, tiles = 0;
  for (size_t g = 0; g < count; ++g) {
    ActivationRows& group = groups_[g];
    group.type = type;
    group.rows = starts[g + 1] - starts[g];
    group.cols = cols;
    most_rows = std::max(most_rows, group.rows);
    const int64_t tile_rows = even_tile_rows(group.rows, most_tile_rows);
    tile_ends_[g] = tiles += (group.rows + tile_rows - 1) / tile_rows;
  }
  const auto carve = [&](std::byte* base) {
    Carver carver(base);
    for (size_t g = 0; g < count; ++g) {
      records[g] = carve_rows(carver, shape, groups_[g].rows, most_tile_rows, groups_[g]);
    }
    scratch = carver.take<float>(pool.num_threads() * scratch_floats);
    return carver.used();
  };
  storage_.reserve(carve(nullptr));
  carve(storage_.data());
  uint64_t workspace_bytes = 0;
  for (ActivationRows& group : groups_) {
    set_workspace(group, group.rows, kernels);
    workspace_bytes = std::max(workspace_bytes, group.workspace_bytes);
  }
  workspace_.reserve(workspace_bytes * static_cast<uint64_t>(pool.num_threads()));
  for (ActivationRows& group : groups_) {
    group.workspace_bytes = workspace_bytes;
    group.scratch = workspace_.as<uint8_t>();
  }

  pool.run(tiles, [&](int64_t task, int thread) {
    const auto g =
        static_cast<size_t>(std::upper_bound(tile_ends_.begin(), tile_ends_.end(), task) - tile_ends_.begin());
    const ActivationRows& group = groups_[g];
    const int64_t tile_rows = group.first.tile_rows;
    const int64_t row = (task - (g == 0 ? 0 : tile_ends_[g - 1])) * tile_rows;
    const int64_t num_rows = std::min(tile_rows, group.rows - row);
    float* const own = scratch + thread * scratch_floats;
    float* const gathered = own + kQuantizeScratch * shape.blocks;
    for (int64_t r = 0; r < num_rows; ++r) {
      std::memcpy(gathered + r * cols, rows[starts[g] + row + r], static_cast<size_t>(cols) * sizeof(float));
    }
    kernels.quantized.quantize_tile(gathered, row, static_cast<int32_t>(num_rows), group.first, group.second,
                                    shape.per_row, records[g].bytes, records[g].index, own);
  });
  if (shape.every_block) return;
  std::vector<std::pair<size_t, int64_t>> orders;  // group, and outlier group in it
  for (size_t g = 0; g < count; ++g) {
    for (int64_t i = 0; i < outlier_groups(groups_[g].rows); ++i) orders.emplace_back(g, i);
  }
  pool.run(static_cast<int64_t>(orders.size()), [&](int64_t task, int) {
    const auto [g, index] = orders[static_cast<size_t>(task)];
    order_group(index, groups_[g].rows, shape.blocks, most_tile_rows, records[g], groups_[g].outliers);
  });
}

}  // namespace headrace
