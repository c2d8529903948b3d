// What sampling needs of one row of logits: two passes at the speed of the nearer caches.
#include "cpu/kernels/functions.h"
#include "cpu/kernels/kernels.h"

namespace headrace::HEADRACE_ISA_NAMESPACE {
namespace {

constexpr int64_t kPiece = 4096;
constexpr int kSums = 4;  // shorter chains, and less rounding than in one sum

HEADRACE_INLINE float highest(const float* x, int64_t count) {
  const float lowest = -__builtin_inff();
  V16 most[kSums] = {set1(lowest), set1(lowest), set1(lowest), set1(lowest)};
  const int64_t whole = count / kPanel;
  for (int64_t i = 0; i < whole; ++i) most[i % kSums] = max(load(x + i * kPanel), most[i % kSums]);
  float out = reduce_max(max(max(most[0], most[1]), max(most[2], most[3])));
  for (int64_t i = whole * kPanel; i < count; ++i) out = x[i] > out ? x[i] : out;
  return out;
}

HEADRACE_INLINE float sum_of_exponentials(const float* x, int64_t count, float subtracted) {
  const V16 offset = set1(subtracted);
  V16 sums[kSums] = {zero(), zero(), zero(), zero()};
  const int64_t whole = count / kPanel;
  for (int64_t i = 0; i < whole; ++i) sums[i % kSums] = add(sums[i % kSums], exp(sub(load(x + i * kPanel), offset)));
  const int64_t rest = count - whole * kPanel;
  if (rest != 0) {
    // Missing lanes must not count: e^-inf is 0.
    float lanes[kPanel];
    for (int64_t i = 0; i < kPanel; ++i) lanes[i] = i < rest ? x[whole * kPanel + i] : -__builtin_inff();
    sums[0] = add(sums[0], exp(sub(load(lanes), offset)));
  }
  return reduce_add(add(add(sums[0], sums[1]), add(sums[2], sums[3])));
}

}  // namespace

double logit_sum(const float* logits, int64_t count, float* highest_logit, int32_t* argmax) {
  float most = -__builtin_inff();
  int64_t where = 0;  // the piece that raised it last
  for (int64_t at = 0; at < count; at += kPiece) {
    const float here = highest(logits + at, count - at < kPiece ? count - at : kPiece);
    if (here > most) {
      most = here;
      where = at;
    }
  }
  int64_t id = where;
  while (id < count - 1 && logits[id] != most) ++id;
  *highest_logit = most;
  *argmax = (int32_t)id;
  double sum = 0.0;
  for (int64_t at = 0; at < count; at += kPiece) {
    sum += sum_of_exponentials(logits + at, count - at < kPiece ? count - at : kPiece, most);
  }
  return sum;
}

}  // namespace headrace::HEADRACE_ISA_NAMESPACE
