#include "cpu/activations.h"

namespace headrace {

void quantize_activations(const float* x, int64_t rows, int64_t cols, ActivationType type, ThreadPool& pool,
                          const KernelTable& kernels, ActivationRows& out) {
  static_cast<void>(x);
  static_cast<void>(pool);
  static_cast<void>(kernels);
  out.type = type;
  out.rows = rows;
  out.cols = cols;
}

}  // namespace headrace
