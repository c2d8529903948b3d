#include "cpu/activations.h"

#include <algorithm>
#include <cstddef>

namespace headrace {
namespace {

// Rows of one task of a product: unpacking the weights costs little beside so many.
constexpr int64_t kMostTaskRows = 512;
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

QuantizedPlane carve_plane(Carver& carver, int64_t rows, int64_t blocks) {
  const int64_t count = rows * blocks;
  QuantizedPlane plane;
  plane.blocks = blocks;
  plane.codes = carver.take<int8_t>(count * kQuantBlock);
  plane.scales = carver.take<float>(count);
  plane.block_sums = carver.take<float>(count);
  plane.half_sums = carver.take<float>(2 * count);
  plane.block_minus = carver.take<int32_t>(count);
  plane.half_minus = carver.take<int32_t>(2 * count);
  return plane;
}

}  // namespace

void quantize_activations(const float* x, int64_t rows, int64_t cols, ActivationType type, ThreadPool& pool,
                          const KernelTable& kernels, ActivationRows& out) {
  const int64_t blocks = cols / kQuantBlock;
  const int64_t second_blocks =
      type == ActivationType::kInt16 ? blocks : (blocks + kOutlierShare - 1) / kOutlierShare;
  int32_t* amax = nullptr;  // [threads][blocks]
  const auto carve = [&](std::byte* base) {
    Carver carver(base);
    out.first = carve_plane(carver, rows, blocks);
    out.second = carve_plane(carver, rows, second_blocks);
    out.second_index = carver.take<int32_t>(rows * second_blocks);
    amax = carver.take<int32_t>(pool.num_threads() * blocks);
    return carver.used();
  };
  out.storage.reserve(carve(nullptr));
  carve(out.storage.data());
  out.type = type;
  out.rows = rows;
  out.cols = cols;
  out.workspace_rows = std::min(rows, kMostTaskRows);
  out.workspace_bytes = static_cast<uint64_t>(kernels.quantized.scratch_bytes(out.workspace_rows) + 63) / 64 * 64;
  out.workspace.reserve(out.workspace_bytes * static_cast<uint64_t>(pool.num_threads()));

  // A few rows are not worth waking other threads for.
  constexpr int64_t kTaskValues = 8192;
  const int64_t task_rows = std::max<int64_t>(1, kTaskValues / std::max<int64_t>(cols, 1));
  pool.run((rows + task_rows - 1) / task_rows, [&](int64_t task, int thread) {
    const int64_t end = std::min(rows, (task + 1) * task_rows);
    for (int64_t row = task * task_rows; row < end; ++row) {
      kernels.quantized.quantize_row(x + row * cols, row, out.first, out.second, out.second_index,
                                     amax + thread * blocks);
    }
  });
}

}  // namespace headrace
