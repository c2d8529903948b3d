// Biases of attention by distance, as T5 learns them: which bucket a distance falls into, and the biases of every distance.
#pragma once

#include <cstdint>
#include <vector>

#include "model/model_spec.h"
#include "ops/backend.h"

namespace headrace {

// distance: the key's position minus the query's. Where rows see none later, such distances have the bucket of 0.
// Reference: T5Attention._relative_position_bucket of transformers, float32 where it computes in float32.
int32_t bucket_of(const PositionBuckets& buckets, bool both_ways, int32_t distance);

// table [num_buckets, num_heads] -> [num_heads, 2 * max_distance + 1] by distance, the most negative first. What lies farther
// has the bucket of max_distance.
std::vector<float> bias_by_distance(const PositionBuckets& buckets, bool both_ways, const PackedWeight& table);

}  // namespace headrace
