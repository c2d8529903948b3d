#include "cpu/ordered_activations.h"

#include <algorithm>

namespace headrace {

const ActivationRows& OrderedActivations::quantize(const float* const* rows, int64_t num_rows, int64_t cols,
                                                   std::span<const int32_t> order, ActivationType type,
                                                   ThreadPool& pool, const KernelTable& kernels) {
  for (size_t i = 0; i < used_; ++i) {
    const Entry& entry = *entries_[i];
    if (entry.rows.type == type && std::equal(rows, rows + num_rows, entry.sources.begin(), entry.sources.end()) &&
        std::equal(order.begin(), order.end(), entry.order.begin(), entry.order.end())) {
      return entry.rows;
    }
  }
  if (used_ == entries_.size()) entries_.push_back(std::make_unique<Entry>());
  Entry& entry = *entries_[used_];
  float* const x = entry.x.reserve_floats(num_rows * cols);
  pool.run(num_rows, [&](int64_t row, int) {
    float* const out = x + row * cols;
    for (int64_t j = 0; j < cols; ++j) out[j] = rows[row][order[static_cast<size_t>(j)]];
  });
  quantize_activations(x, num_rows, cols, type, pool, kernels, entry.rows);
  entry.sources.assign(rows, rows + num_rows);
  entry.order = order;
  ++used_;
  return entry.rows;
}

}  // namespace headrace
