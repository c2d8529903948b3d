// RMS and layer normalisation of one row.
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

namespace {

// The total of four sums of every fourth vector, as above.
HEADRACE_INLINE float total(const V16* sums) { return reduce_add(add(add(sums[0], sums[1]), add(sums[2], sums[3]))); }

}  // namespace

void layer_norm_row(const float* x, const float* weight, const float* bias, int64_t size, float eps, float* out) {
  const int64_t whole = size / kPanel, rest = size - whole * kPanel;
  const float* const x_rest = x + whole * kPanel;
  V16 sums[4] = {zero(), zero(), zero(), zero()};
  for (int64_t i = 0; i < whole; ++i) sums[i & 3] = add(sums[i & 3], load(x + i * kPanel));
  if (rest != 0) sums[whole & 3] = add(sums[whole & 3], load_partial(x_rest, rest));
  const float mean = total(sums) / static_cast<float>(size);
  // Differences first, squares then: the mean may be far larger than the spread.
  V16 squares[4] = {zero(), zero(), zero(), zero()};
  const V16 means = set1(mean);
  for (int64_t i = 0; i < whole; ++i) {
    const V16 difference = sub(load(x + i * kPanel), means);
    squares[i & 3] = fma(difference, difference, squares[i & 3]);
  }
  float square_sum = 0.0f;
  for (int64_t i = 0; i < rest; ++i) square_sum += (x_rest[i] - mean) * (x_rest[i] - mean);
  square_sum += total(squares);
  const V16 factor = set1(1.0f / scalar_sqrt(square_sum / static_cast<float>(size) + eps));
  for (int64_t i = 0; i < whole; ++i) {
    const V16 normed = mul(sub(load(x + i * kPanel), means), factor);
    const V16 offset = bias == nullptr ? zero() : load(bias + i * kPanel);
    store(out + i * kPanel, fma(normed, load(weight + i * kPanel), offset));
  }
  if (rest != 0) {
    const V16 normed = mul(sub(load_partial(x_rest, rest), means), factor);
    const V16 offset = bias == nullptr ? zero() : load_partial(bias + whole * kPanel, rest);
    store_partial(out + whole * kPanel, fma(normed, load_partial(weight + whole * kPanel, rest), offset), rest);
  }
}

}  // namespace headrace::HEADRACE_ISA_NAMESPACE
