// Parameters of the ops of mixtures of experts. Conventions as in op_params.h.
#pragma once

#include <cstdint>
#include <span>

#include "tensor/op_params.h"

namespace headrace {

enum class RouterScore : int32_t {
  kSoftmax,       // over all experts
  kSigmoid,       // of each expert by itself
  kSqrtSoftplus,  // sqrt(ln(1 + e^x)), likewise
};

// How groups of experts are ranked, by the scores that decide the choice.
enum class GroupScore : int32_t {
  kMax,        // DeepSeek-V2
  kTopTwoSum,  // DeepSeek-V3
};

// Which experts a row visits, and with what weights. Row by row:
//   score = softmax, sigmoid or ... of the logits; choice = score + correction
//   only the top_groups best of num_groups equal runs of experts stay in play
//   the top_k experts with the largest choice are taken, of equal ones (NaN counts as the smallest) the lower index; or
//   those given
//   weight = score, divided by max(sum of the chosen scores, sum_floor) + sum_added when normalize is set, times scale
//            and the expert's own
// A softmax over the chosen logits alone is kSoftmax with normalize: the other terms cancel.
struct RouteParams {
  const float* logits = nullptr;      // [num_tokens, num_experts]
  const float* correction = nullptr;  // [num_experts] or null
  int64_t num_tokens = 0;
  int32_t num_experts = 0;
  int32_t top_k = 0;       // at most num_experts / num_groups * top_groups
  int32_t num_groups = 1;  // divides num_experts
  int32_t top_groups = 1;
  GroupScore group_score = GroupScore::kTopTwoSum;
  RouterScore score = RouterScore::kSoftmax;
  bool normalize = false;
  float sum_floor = 0.0f;
  float sum_added = 0.0f;
  float scale = 1.0f;
  const float* expert_scales = nullptr;  // [num_experts] or null
  const int32_t* given = nullptr;        // [num_tokens, top_k], ascending within a row, or null
  int32_t* experts = nullptr;            // [num_tokens, top_k], ascending within a row
  float* weights = nullptr;              // [num_tokens, top_k], of those experts
};

// One expert: down(activation(gate(x)) * up(x)), or down(activation(up(x))) where gate is null, of all alike.
struct ExpertWeights {
  const PackedWeight* gate = nullptr;  // [intermediate_size, hidden_size] or null
  const PackedWeight* up = nullptr;    // [intermediate_size, hidden_size]
  const PackedWeight* down = nullptr;  // [hidden_size, intermediate_size]
  const float* gate_bias = nullptr;    // [intermediate_size] or null
  const float* up_bias = nullptr;      // [intermediate_size] or null
  const float* down_bias = nullptr;    // [hidden_size] or null
};

// out (+)= sum over a row's experts, in ascending order from the first, of weight * expert(x); with weight_inputs of
// expert(weight * x). Only experts that a row names are read. A row's sum is the same, bit for bit, whatever rows
// accompany it.
struct ExpertsParams {
  const float* x = nullptr;  // [num_tokens, hidden_size]
  int64_t num_tokens = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  std::span<const ExpertWeights> all_experts;
  const int32_t* experts = nullptr;  // [num_tokens, top_k], ascending within a row
  const float* weights = nullptr;    // [num_tokens, top_k]
  int32_t top_k = 0;
  Activation activation = Activation::kSilu;
  float activation_limit = 0.0f;  // as in GatedActivationParams
  bool weight_inputs = false;
  bool accumulate = false;
  float* out = nullptr;  // [num_tokens, hidden_size], not x
};

// y[t, h, :] = weights[h] x[t, h, :]: a matrix of its own for each head.
struct HeadLinearParams {
  const float* x = nullptr;  // row t, head h starts at t * x_row_stride + h * x_head_stride
  int64_t x_row_stride = 0;  // floats
  int64_t x_head_stride = 0;
  int64_t num_tokens = 0;
  int64_t in_features = 0;
  std::span<const PackedWeight* const> weights;  // [num_heads], each [out_features, in_features]
  float* y = nullptr;                            // likewise; not x
  int64_t y_row_stride = 0;
  int64_t y_head_stride = 0;
};

// x[t, :] *= sigmoid(gate[t]).
struct GateRowsParams {
  float* x = nullptr;           // [num_tokens, size]
  const float* gate = nullptr;  // [num_tokens]
  int64_t num_tokens = 0;
  int64_t size = 0;
};

}  // namespace headrace
