// RMS normalisation of one row.
#include "cpu/kernels/kernels.h"
#include "cpu/kernels/vec.h"

namespace headrace::HEADRACE_ISA_NAMESPACE {

void rms_norm_row(const float* x, const float* weight, int64_t size, float eps, float weight_offset, float* out) {
  // Four sums of every fourth vector: shorter chains, and a quarter of the rounding error of one.
  V16 sums[4] = {zero(), zero(), zero(), zero()};
  const int64_t whole = size / kPanel;
  for (int64_t i = 0; i < whole; ++i) {
    const V16 v = load(x + i * kPanel);
    sums[i & 3] = fma(v, v, sums[i & 3]);
  }
  const int64_t rest = size - whole * kPanel;
  if (rest != 0) {
    const V16 v = load_partial(x + whole * kPanel, rest);
    sums[whole & 3] = fma(v, v, sums[whole & 3]);
  }
  const float sum = reduce_add(add(add(sums[0], sums[1]), add(sums[2], sums[3])));
  const V16 factor = set1(1.0f / scalar_sqrt(sum / static_cast<float>(size) + eps));
  const V16 offset = set1(weight_offset);
  for (int64_t i = 0; i < whole; ++i) {
    const V16 w = add(load(weight + i * kPanel), offset);
    store(out + i * kPanel, mul(mul(load(x + i * kPanel), factor), w));
  }
  if (rest != 0) {
    const V16 w = add(load_partial(weight + whole * kPanel, rest), offset);
    store_partial(out + whole * kPanel, mul(mul(load_partial(x + whole * kPanel, rest), factor), w), rest);
  }
}

}  // namespace headrace::HEADRACE_ISA_NAMESPACE
