// Durations counted in fixed buckets, four to an octave: what percentiles are read from without keeping the durations.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace headrace::schedule {

// Copyable; one thread at a time per object.
class LatencyHistogram {
 public:
  static constexpr size_t kNumBuckets = 96;
  using Buckets = std::array<uint64_t, kNumBuckets>;

  // Bucket i has the durations below bound_ns(i) and not below bound_ns(i - 1): 125, 150, 175, 200, 250, ... microseconds. The
  // last one, and all beyond, have no bound: UINT64_MAX.
  static uint64_t bound_ns(size_t bucket);

  // Less than 0 counts as 0.
  void record(int64_t ns);

  uint64_t count() const { return count_; }
  uint64_t sum_ns() const { return sum_ns_; }
  const Buckets& buckets() const { return buckets_; }
  // The duration that a share q in [0, 1] of all does not exceed, read between the bounds of its bucket as if that were evenly
  // filled; the longest one's bound at most. 0 where nothing was recorded.
  uint64_t quantile_ns(double q) const;

 private:
  Buckets buckets_ = {};
  uint64_t count_ = 0;
  uint64_t sum_ns_ = 0;
  uint64_t longest_ns_ = 0;
};

}  // namespace headrace::schedule
