// Laws of the histogram that latencies are kept in.
#include "schedule/latency_histogram.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <limits>
#include <random>
#include <vector>

using headrace::schedule::LatencyHistogram;

TEST_CASE("bounds rise by a quarter at most, and the last bucket has none") {
  CHECK(LatencyHistogram::bound_ns(0) == 125'000);
  CHECK(LatencyHistogram::bound_ns(3) == 200'000);
  CHECK(LatencyHistogram::bound_ns(4) == 250'000);
  for (size_t i = 1; i + 1 < LatencyHistogram::kNumBuckets; ++i) {
    const uint64_t low = LatencyHistogram::bound_ns(i - 1), high = LatencyHistogram::bound_ns(i);
    CHECK(low < high);
    CHECK((high - low) * 4 <= low);
  }
  CHECK(LatencyHistogram::bound_ns(LatencyHistogram::kNumBuckets - 2) > uint64_t{1000} * 1'000'000'000);
  CHECK(LatencyHistogram::bound_ns(LatencyHistogram::kNumBuckets - 1) == std::numeric_limits<uint64_t>::max());
  CHECK(LatencyHistogram::bound_ns(100000) == std::numeric_limits<uint64_t>::max());
}

TEST_CASE("a duration is counted in the one bucket whose bounds hold it") {
  std::vector<int64_t> durations = {-5, 0, 1, 99'999, 100'000, 124'999, 125'000, std::numeric_limits<int64_t>::max()};
  for (size_t i = 0; i + 1 < LatencyHistogram::kNumBuckets; ++i) {
    const auto bound = static_cast<int64_t>(LatencyHistogram::bound_ns(i));
    durations.insert(durations.end(), {bound - 1, bound, bound + 1});
  }
  for (const int64_t duration : durations) {
    LatencyHistogram histogram;
    histogram.record(duration);
    CHECK(histogram.count() == 1);
    const auto& buckets = histogram.buckets();
    const auto at = static_cast<size_t>(std::find(buckets.begin(), buckets.end(), 1) - buckets.begin());
    REQUIRE(at < buckets.size());
    const auto ns = static_cast<uint64_t>(std::max<int64_t>(duration, 0));
    if (at > 0) CHECK(ns >= LatencyHistogram::bound_ns(at - 1));
    CHECK(ns < LatencyHistogram::bound_ns(at));
  }
}

TEST_CASE("quantiles are at most a bucket off, and those of nothing are 0") {
  CHECK(LatencyHistogram().quantile_ns(0.5) == 0);
  std::mt19937_64 random(5);
  std::vector<uint64_t> durations;
  LatencyHistogram histogram;
  uint64_t sum = 0;
  for (int i = 0; i < 20000; ++i) {
    const uint64_t ns = 200'000 + random() % 50'000'000 * (i % 100 == 0 ? 40 : 1);
    durations.push_back(ns);
    histogram.record(static_cast<int64_t>(ns));
    sum += ns;
  }
  std::sort(durations.begin(), durations.end());
  CHECK(histogram.sum_ns() == sum);
  for (const double q : {0.0, 0.01, 0.5, 0.95, 0.99, 0.999, 1.0}) {
    const auto exact = static_cast<double>(durations[std::min<size_t>(static_cast<size_t>(q * 20000), 19999)]);
    const auto read = static_cast<double>(histogram.quantile_ns(q));
    INFO(q << ": " << read << " for " << exact);
    CHECK(read >= exact / 1.26);
    CHECK(read <= exact * 1.26);
  }
  CHECK(histogram.quantile_ns(1.0) <= durations.back());
}
