// Products of several weights with rows of their own, in as few loops as one linear op takes.
#pragma once

#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "cpu/activations.h"
#include "cpu/kernel_table.h"
#include "cpu/linear_product.h"
#include "cpu/ordered_activations.h"

namespace headrace {

struct GroupProduct {
  size_t group = 0;
  LinearOutput output;  // y is the group's first row
};

// Keeps its buffers between calls. Thread rule: that of the backend that owns it.
class GroupedLinear {
 public:
  // Group g has rows [starts[g], starts[g + 1]), at least one, and rows[i] is where row i's in_features values lie. A
  // row's product has the bits that it has in a linear op by itself. Throws std::bad_alloc.
  void run(const std::vector<int64_t>& starts, const std::vector<const float*>& rows, int64_t in_features,
           std::span<const GroupProduct> products, ThreadPool& pool, const KernelTable& kernels);

 private:
  void fill_tiles(const std::vector<int64_t>& starts, const std::vector<const float*>& rows, int64_t in_features,
                  ThreadPool& pool, int64_t tile_rows);

  QuantizedGroups int8_rows_, int16_rows_;
  OrderedActivations ordered_;
  AlignedBuffer tiles_;
  std::vector<int64_t> first_tiles_;  // of each group, and their number in the end
  std::vector<LinearProduct> products_;
};

}  // namespace headrace
