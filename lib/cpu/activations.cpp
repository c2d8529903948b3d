#include "cpu/activations.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace headrace {
namespace {

// Outlier blocks are one in so many. Measured on small models, the error falls steeply up to about 3 % of the blocks
// and slowly beyond 10 %; each per cent costs a little over one per cent of a product's time.
constexpr int64_t kOutlierShare = 16;

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

}  // namespace

void quantize_activations(const float* x, int64_t rows, int64_t cols, ActivationType type, ThreadPool& pool,
                          const KernelTable& kernels, ActivationRows& out) {
  const int64_t blocks = cols / kQuantBlock;
  const bool every_block = type == ActivationType::kInt16;
  const int64_t per_row = every_block ? 0 : (blocks + kOutlierShare - 1) / kOutlierShare;
  const int64_t groups = (rows + kOutlierGroupRows - 1) / kOutlierGroupRows;
  const int64_t scratch_floats = kQuantizeScratch * blocks;
  RowRecords records = {};
  float* scratch = nullptr;  // [threads][scratch_floats]
  const auto carve = [&](std::byte* base) {
    Carver carver(base);
    out.first = {blocks, carver.take<uint8_t>(rows * blocks * kActivationBytes)};
    out.second = {blocks, every_block ? carver.take<uint8_t>(rows * blocks * kActivationBytes) : nullptr};
    records = {carver.take<uint8_t>(rows * per_row * kActivationBytes), carver.take<int32_t>(rows * per_row)};
    out.outliers = {per_row, carver.take<uint8_t>(rows * per_row * kActivationBytes),
                    carver.take<int32_t>(rows * per_row), carver.take<int32_t>(groups * (blocks + 1))};
    scratch = carver.take<float>(pool.num_threads() * scratch_floats);
    return carver.used();
  };
  out.storage.reserve(carve(nullptr));
  carve(out.storage.data());
  out.type = type;
  out.rows = rows;
  out.cols = cols;
  out.workspace_rows = std::min(rows, kOutlierGroupRows);
  out.workspace_bytes = static_cast<uint64_t>(kernels.quantized.scratch_bytes(out.workspace_rows) + 63) / 64 * 64;
  out.workspace.reserve(out.workspace_bytes * static_cast<uint64_t>(pool.num_threads()));

  const int64_t tile_rows = kernels.quantized.tile_rows;
  pool.run((rows + tile_rows - 1) / tile_rows, [&](int64_t tile, int thread) {
    const int64_t row = tile * tile_rows;
    kernels.quantized.quantize_tile(x + row * cols, row, static_cast<int32_t>(std::min(tile_rows, rows - row)),
                                    out.first, out.second, per_row, records.bytes, records.index,
                                    scratch + thread * scratch_floats);
  });
  if (!every_block) {
    pool.run(groups, [&](int64_t group, int) { order_group(group, rows, blocks, tile_rows, records, out.outliers); });
  }
}

}  // namespace headrace
