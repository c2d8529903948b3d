// Elementwise work over the thread pool.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/thread_pool.h"
#include "cpu/kernel_table.h"
#include "tensor/op_params.h"

namespace headrace {

// Calls function(first, count) for pieces of [0, num_elements), each of enough work to outweigh the handing out, and of
// little enough to share evenly.
template <class Function>
void for_elements(ThreadPool& pool, int64_t num_elements, const Function& function) {
  constexpr int64_t kElementsPerTask = 16384;
  pool.run((num_elements + kElementsPerTask - 1) / kElementsPerTask, [&](int64_t task, int) {
    const int64_t at = task * kElementsPerTask;
    function(at, std::min(kElementsPerTask, num_elements - at));
  });
}

// GatedActivationParams for `count` elements.
inline void activate(const KernelTable& kernels, Activation activation, float limit, const float* gate, const float* up,
                     int64_t count, float* out) {
  kernels.gated_activation({static_cast<int32_t>(activation), limit, 1, count, gate, count, up, count, out, count});
}

}  // namespace headrace
