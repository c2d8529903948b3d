// Rows of one sequence as the kernels of recurrent layers see them. Strides are in floats.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace headrace {

constexpr int kMostConvWindow = 16;

constexpr int64_t kMostConvChannels = 256;

// `channels` channels of CausalConvParams, at most kMostConvChannels.
struct ConvSpan {
  int64_t num_rows;
  int64_t channels;
  int32_t kernel;
  bool silu;
  const float* x;  // [num_rows][stride], gates likewise or null
  const float* gate_in;
  const float* gate_out;
  int64_t stride;
  const float* weight;  // [kernel][weight_stride]
  int64_t weight_stride;
  const float* bias;  // or null
  float* state;       // [kernel - 1][state_stride]
  int64_t state_stride;
  float* out;
  int64_t out_stride;
};

// `channels` channels of PoolRunsParams.
struct PoolSpan {
  int64_t num_rows;
  int64_t channels;
  int32_t run;
  const float* value;  // [num_rows][stride], gates likewise
  const float* gate;
  int64_t stride;
  const float* bias;         // [run][stride]
  int64_t second_half;       // floats from a channel's first half to its second; 0: no overlap
  const int32_t* positions;  // [num_rows], likewise
  const int32_t* entries;
  float* state;  // [3 or 6][state_stride]
  int64_t state_stride;
  float* out;
  int64_t out_stride;
};

// `channels` channels of SelectiveScanParams.
struct ScanSpan {
  int64_t num_rows;
  int64_t channels;
  int64_t state_size;
  const float* x;
  int64_t x_stride;
  const float* step;
  int64_t step_stride;
  const float* b;
  const float* c;
  int64_t bc_stride;
  const float* gate;
  int64_t gate_stride;
  const float* rate;  // [state_size][state_stride]
  const float* skip;
  float* state;  // [state_size][state_stride]
  int64_t state_stride;
  float* out;
  int64_t out_stride;
};

// `columns` columns of one head of LinearRecurrenceParams.
struct RecurrenceSpan {
  int64_t num_rows;
  int64_t columns;
  int64_t key_dim;
  int64_t value_dim;  // between rows of the state
  const float* q;
  int64_t q_stride;
  const float* k;
  int64_t k_stride;
  const float* v;
  int64_t v_stride;
  const float* decay;
  int64_t decay_stride;
  bool channel_decay;
  bool delta;
  const float* step;  // or null
  int64_t step_stride;
  bool has_skip;
  float skip;
  float scale;
  float* state;
  float* out;
  int64_t out_stride;
};

}  // namespace headrace
