#include "model/position_buckets.h"

#include <algorithm>
#include <cmath>

namespace headrace {

int32_t bucket_of(const PositionBuckets& buckets, bool both_ways, int32_t distance) {
  const int32_t count = both_ways ? buckets.num_buckets / 2 : buckets.num_buckets;
  const int32_t first = both_ways && distance > 0 ? count : 0;
  const int32_t away = both_ways ? std::abs(distance) : std::max(-distance, 0);
  const int32_t exact = count / 2;
  if (away < exact) return first + away;
  const float octaves = std::log(static_cast<float>(away) / static_cast<float>(exact));
  const auto all = static_cast<float>(std::log(static_cast<double>(buckets.max_distance) / exact));
  const auto wide = static_cast<int32_t>(octaves / all * static_cast<float>(count - exact));
  return first + std::min(exact + wide, count - 1);
}

std::vector<float> bias_by_distance(const PositionBuckets& buckets, bool both_ways, const PackedWeight& table) {
  const auto heads = static_cast<size_t>(table.cols()), width = 2 * static_cast<size_t>(buckets.max_distance) + 1;
  std::vector<float> out(heads * width), row(heads);
  for (size_t i = 0; i < width; ++i) {
    table.decode_row(bucket_of(buckets, both_ways, static_cast<int32_t>(i) - buckets.max_distance), row.data());
    for (size_t head = 0; head < heads; ++head) out[head * width + i] = row[head];
  }
  return out;
}

}  // namespace headrace
