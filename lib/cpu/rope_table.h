// Cosines and sines of a batch's positions, kept between the layers of one forward pass.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/thread_pool.h"
#include "tensor/op_params.h"

namespace headrace {

// Angles are position * inv_freq in float64, so that positions in the millions lose nothing. Thread rule: that of the
// backend that owns it.
class RopeTable {
 public:
  struct Rows {
    const float* cosine;  // [num_tokens, rotary_dim / 2], attention_factor included
    const float* sine;
  };
  // Valid until the next call but kKept - 1. A pass alternates between few rotations: of full and of windowed layers, back
  // again, and of runs of rows.
  Rows rows(const RopeStoreParams& params, ThreadPool& pool);

 private:
  struct Entry {
    std::vector<int32_t> positions, axes;
    std::vector<float> inv_freq;
    float attention_factor = 0.0f;
    bool backwards = false;
    std::vector<float> cosine, sine;
  };
  static constexpr size_t kKept = 6;
  std::array<Entry, kKept> entries_;
  size_t next_ = 0;
};

}  // namespace headrace
