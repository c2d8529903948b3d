#include "cpu/grouped_linear.h"

#include <algorithm>

namespace headrace {
namespace {

const CpuPackedWeight& weight_of(const GroupProduct& product) {
  return static_cast<const CpuPackedWeight&>(*product.output.weight);
}

}  // namespace

void GroupedLinear::fill_tiles(const std::vector<int64_t>& starts, const std::vector<const float*>& rows,
                               int64_t in_features, ThreadPool& pool, int64_t tile_rows) {
  const size_t groups = starts.size() - 1;
  first_tiles_.assign(1, 0);
  for (size_t g = 0; g < groups; ++g) {
    first_tiles_.push_back(first_tiles_.back() + (starts[g + 1] - starts[g] + tile_rows - 1) / tile_rows);
  }
  const int64_t tile_floats = tile_rows * in_features;
  float* const tiles = tiles_.reserve_floats(first_tiles_.back() * tile_floats);
  pool.run(first_tiles_.back(), [&](int64_t tile, int) {
    const auto g =
        static_cast<size_t>(std::upper_bound(first_tiles_.begin(), first_tiles_.end(), tile) - first_tiles_.begin()) -
        1;
    const int64_t first = starts[g] + (tile - first_tiles_[g]) * tile_rows;
    const int64_t count = std::min(tile_rows, starts[g + 1] - first);
    float* out = tiles + tile * tile_floats;
    for (int64_t r = 0; r < count; ++r) {
      const float* row = rows[static_cast<size_t>(first + r)];
      for (int64_t k = 0; k < in_features; ++k) out[k * tile_rows + r] = row[k];
    }
  });
}

void GroupedLinear::run(const std::vector<int64_t>& starts, const std::vector<const float*>& rows, int64_t in_features,
                        std::span<const GroupProduct> products, ThreadPool& pool, const KernelTable& kernels) {
  const auto any = [&](ActivationType type) {
    return std::any_of(products.begin(), products.end(), [&](const GroupProduct& product) {
      return weight_of(product).input_type() == type && weight_of(product).column_order().empty();
    });
  };
  ordered_.begin();
  if (any(ActivationType::kFloat32)) fill_tiles(starts, rows, in_features, pool, kernels.float_tile_rows);
  if (any(ActivationType::kInt8)) {
    int8_rows_.quantize(starts, rows.data(), in_features, ActivationType::kInt8, pool, kernels);
  }
  if (any(ActivationType::kInt16)) {
    int16_rows_.quantize(starts, rows.data(), in_features, ActivationType::kInt16, pool, kernels);
  }
  const auto input_of = [&](const GroupProduct& product) {
    const size_t g = product.group;
    LinearInput input{rows[static_cast<size_t>(starts[g])], nullptr, nullptr, starts[g + 1] - starts[g], in_features};
    if (const auto order = weight_of(product).column_order(); !order.empty()) {
      input.q = &ordered_.quantize(rows.data() + starts[g], input.num_tokens, in_features, order,
                                   weight_of(product).input_type(), pool, kernels);
      return input;
    }
    switch (weight_of(product).input_type()) {
      case ActivationType::kFloat32:
        input.x_tiles = tiles_.as<float>() + first_tiles_[g] * kernels.float_tile_rows * in_features;
        break;
      case ActivationType::kInt8: input.q = &int8_rows_.group(g); break;
      case ActivationType::kInt16: input.q = &int16_rows_.group(g); break;
    }
    return input;
  };
  products_.clear();
  for (const GroupProduct& product : products) {
    products_.push_back({&weight_of(product), input_of(product), product.output});
  }
  run_products(products_, pool, kernels);
}

}  // namespace headrace
