#include "schedule/latency_histogram.h"

#include <algorithm>
#include <bit>
#include <limits>

namespace headrace::schedule {
namespace {

constexpr uint64_t kUnit = 25'000;  // ns; an octave from 4 of them on has four buckets
constexpr size_t kPerOctave = 4;

size_t bucket_of(uint64_t ns) {
  const uint64_t units = ns / kUnit;
  if (units < kPerOctave) return 0;
  const auto octave = static_cast<size_t>(std::bit_width(units / kPerOctave)) - 1;
  const auto quarter = static_cast<size_t>(units >> octave) - kPerOctave;
  return std::min(octave * kPerOctave + quarter, LatencyHistogram::kNumBuckets - 1);
}

}  // namespace

uint64_t LatencyHistogram::bound_ns(size_t bucket) {
  if (bucket + 1 >= kNumBuckets) return std::numeric_limits<uint64_t>::max();
  return ((kPerOctave + bucket % kPerOctave + 1) * kUnit) << (bucket / kPerOctave);
}

void LatencyHistogram::record(int64_t ns) {
  const auto duration = static_cast<uint64_t>(std::max<int64_t>(ns, 0));
  ++buckets_[bucket_of(duration)];
  ++count_;
  sum_ns_ += duration;
  longest_ns_ = std::max(longest_ns_, duration);
}

uint64_t LatencyHistogram::quantile_ns(double q) const {
  if (count_ == 0) return 0;
  const double rank = std::clamp(q, 0.0, 1.0) * static_cast<double>(count_);
  double before = 0.0;
  for (size_t i = 0; i < kNumBuckets; ++i) {
    const auto here = static_cast<double>(buckets_[i]);
    if (here == 0.0 || before + here < rank) {
      before += here;
      continue;
    }
    const uint64_t low = i == 0 ? 0 : bound_ns(i - 1);
    const uint64_t high = std::min(bound_ns(i), std::max(longest_ns_, low));
    return low + static_cast<uint64_t>(static_cast<double>(high - low) * std::max(rank - before, 0.0) / here);
  }
  return longest_ns_;
}

}  // namespace headrace::schedule
