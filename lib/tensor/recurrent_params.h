// Parameters of the ops whose rows carry a state from one to the next. Conventions as in op_params.h; strides are in
// floats. A state is walked row by row, whatever the cut of a prompt into steps, so that every cut gives the same bits.
#pragma once

#include <cstdint>

#include "tensor/op_params.h"

namespace headrace {

// The sequences of a step and their states.
struct StateRows {
  int32_t num_seqs = 0;
  const int32_t* query_start = nullptr;  // [num_seqs + 1] rows of each sequence
  float* const* states = nullptr;        // [num_seqs] before the first row, and on return after the last
  int64_t offset = 0;                    // where the op's part of a state begins
  int32_t num_snapshots = 0;
  const int32_t* snapshot_rows = nullptr;  // [num_snapshots] rising: the state after this row is also written to
  float* const* snapshots = nullptr;       // [num_snapshots], at the same offset
};

// out[t, c] = act(bias[c] + sum over k of weight[k, c] * u[t - kernel + 1 + k, c]), u = gate_in * x, times gate_out.
// u before a sequence's first row comes from its state: [kernel - 1, channels], the oldest first.
struct CausalConvParams {
  StateRows rows;
  const float* x = nullptr;         // [num_tokens, channels]
  const float* gate_in = nullptr;   // likewise with the same stride, or null
  const float* gate_out = nullptr;  // likewise
  int64_t stride = 0;
  const float* weight = nullptr;  // [kernel, channels]
  const float* bias = nullptr;    // [channels] or null
  bool silu = false;
  int64_t channels = 0;
  int32_t kernel = 0;    // 2..kMostConvKernel
  float* out = nullptr;  // [num_tokens, channels], not an input
  int64_t out_stride = 0;
};
inline constexpr int32_t kMostConvKernel = 16;

// Softmax pooling over runs of `run` tokens, channel by channel (DeepSeek-V4's compressors). With e = exp(gate[t] + bias[j]),
// t being token j of a run:
//   out[n] = sum of e value / sum of e over the tokens of run n
// With overlap value, gate and bias have two halves of `channels`: of a token's first ones run n takes those of the run
// before, of the second ones its own. The sums are relative to the greatest exponent so far, added token by token.
// State: {greatest exponent, sum of e, sum of e value} [3, channels] of the open run, with overlap behind it that of the run
// after.
struct PoolRunsParams {
  StateRows rows;
  const float* value = nullptr;        // [num_tokens, channels or 2 channels], contiguous
  const float* gate = nullptr;         // likewise
  const float* bias = nullptr;         // [run, channels or 2 channels]
  const int32_t* positions = nullptr;  // [num_tokens] index in the sequence: run n begins at n * run
  int32_t run = 0;
  bool overlap = false;
  int64_t channels = 0;
  const int32_t* entries =
      nullptr;           // [num_tokens] the row of out for the run that a token ends; of others it says nothing
  float* out = nullptr;  // [entries, channels]

  int64_t width() const { return overlap ? 2 * channels : channels; }  // of value, gate and bias
  int64_t state_lines() const { return overlap ? 6 : 3; }              // of `channels` floats
};

// Mamba's selective scan (Gu and Dao 2023). Per channel c with a state s [state_size]:
//   dt = softplus(step[t, c]);  s[n] = exp(dt * rate[n, c]) * s[n] + dt * x[t, c] * b[t, n]
//   out[t, c] = (sum over n of s[n] * c[t, n] + skip[c] * x[t, c]) * silu(gate[t, c])
// State: [state_size, channels].
struct SelectiveScanParams {
  StateRows rows;
  const float* x = nullptr;  // [num_tokens, channels]
  int64_t x_stride = 0;
  const float* step = nullptr;  // [num_tokens, channels]
  int64_t step_stride = 0;
  const float* b = nullptr;  // [num_tokens, state_size]
  const float* c = nullptr;
  int64_t bc_stride = 0;
  const float* gate = nullptr;  // [num_tokens, channels]
  int64_t gate_stride = 0;
  const float* rate = nullptr;  // [state_size, channels], negative
  const float* skip = nullptr;  // [channels]
  int64_t channels = 0;
  int64_t state_size = 0;
  float* out = nullptr;  // [num_tokens, channels]
  int64_t out_stride = 0;
};

// Linear attention with decay: Mamba-2's scan, the gated delta rule, Kimi's delta attention, lightning attention.
// Per head with a state S [key_dim, value_dim]:
//   S = decay * S;  u = step * (v - S^T k) with delta, step * v without;  S = S + k u^T
//   out = scale * S^T q + skip * v
// Value head h reads key head h / (num_heads / num_key_heads). State: [num_heads, key_dim, value_dim].
struct LinearRecurrenceParams {
  StateRows rows;
  const float* q = nullptr;  // [num_tokens, num_key_heads, key_dim]
  int64_t q_stride = 0;      // between rows, likewise below
  const float* k = nullptr;
  int64_t k_stride = 0;
  const float* v = nullptr;  // [num_tokens, num_heads, value_dim]
  int64_t v_stride = 0;
  const float* decay = nullptr;  // [num_tokens, num_heads], or [num_tokens, num_heads, key_dim] with channel_decay
  int64_t decay_stride = 0;      // 0: one row for all
  bool channel_decay = false;    // a factor for each row of S
  const float* step = nullptr;   // [num_tokens, num_heads], contiguous, or null: 1
  const float* skip = nullptr;   // [num_heads] or null
  bool delta = false;
  float scale = 1.0f;
  int32_t num_heads = 0;
  int32_t num_key_heads = 0;
  int64_t key_dim = 0;
  int64_t value_dim = 0;
  float* out = nullptr;  // [num_tokens, num_heads, value_dim]
  int64_t out_stride = 0;
};

// step = min(max(softplus(raw + bias), low), high);  decay = exp(rate * step), elementwise.
struct DecayGatesParams {
  const float* raw = nullptr;  // [num_tokens, width]
  int64_t raw_stride = 0;
  const float* bias = nullptr;  // [width]
  const float* rate = nullptr;  // [width], negative
  float low = 0.0f;
  float high = 0.0f;
  int64_t num_tokens = 0;
  int64_t width = 0;
  float* decay = nullptr;  // [num_tokens, width], contiguous
  float* step = nullptr;   // likewise, or null
};

// RMS norm of groups of a row: norm(x) = x / sqrt(mean(x^2) + eps) * weight; with a gate, norm(x) * act(gate), or
// norm(x * act(gate)) with gate_first. out may be x.
struct GroupNormParams {
  const float* x = nullptr;       // [num_tokens, groups, size]
  int64_t x_stride = 0;           // between rows
  const float* weight = nullptr;  // [size], or [groups, size] with group_weights
  bool group_weights = false;
  const float* gate = nullptr;  // [num_tokens, groups, size] or null
  int64_t gate_stride = 0;
  bool gate_first = false;
  Activation activation = Activation::kSilu;
  int64_t num_tokens = 0;
  int64_t groups = 0;
  int64_t size = 0;
  float eps = 0.0f;
  float* out = nullptr;
  int64_t out_stride = 0;
};

}  // namespace headrace
