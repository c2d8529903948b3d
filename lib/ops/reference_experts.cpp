// Mixtures of experts and heads with matrices of their own, one row at a time.
#include <cmath>
#include <vector>

#include "ops/backend.h"
#include "ops/reference_backend.h"

namespace headrace {
namespace {

// y = W x + bias
void multiply(const PackedWeight& weight, const float* bias, const float* x, float* y) {
  const auto cols = static_cast<size_t>(weight.cols());
  std::vector<float> row(cols);
  for (int64_t n = 0; n < weight.rows(); ++n) {
    weight.decode_row(n, row.data());
    double sum = bias == nullptr ? 0.0 : static_cast<double>(bias[n]);
    for (size_t k = 0; k < cols; ++k) sum += static_cast<double>(x[k]) * static_cast<double>(row[k]);
    y[n] = static_cast<float>(sum);
  }
}

}  // namespace

void reference_experts(const ExpertsParams& p) {
  const auto hidden = static_cast<size_t>(p.hidden_size), inner = static_cast<size_t>(p.intermediate_size);
  std::vector<float> x(hidden), gate(inner), up(inner), y(hidden);
  std::vector<double> sum(hidden);
  for (int64_t token = 0; token < p.num_tokens; ++token) {
    sum.assign(hidden, 0.0);
    for (int32_t i = 0; i < p.top_k; ++i) {
      const ExpertWeights& expert = p.all_experts[static_cast<size_t>(p.experts[token * p.top_k + i])];
      const float weight = p.weights[token * p.top_k + i];
      const float* row = p.x + token * p.hidden_size;
      for (size_t d = 0; d < hidden; ++d) x[d] = p.weight_inputs ? row[d] * weight : row[d];
      const bool gated = expert.gate != nullptr;
      if (gated) multiply(*expert.gate, expert.gate_bias, x.data(), gate.data());
      multiply(*expert.up, expert.up_bias, x.data(), up.data());
      GatedActivationParams activation;
      activation.gate = gated ? gate.data() : up.data();
      activation.up = gated ? up.data() : nullptr;
      activation.num_elements = p.intermediate_size;
      activation.activation = p.activation;
      activation.limit = p.activation_limit;
      activation.out = gate.data();
      reference_gated_activation(activation);
      multiply(*expert.down, expert.down_bias, gate.data(), y.data());
      const double factor = p.weight_inputs ? 1.0 : static_cast<double>(weight);
      for (size_t d = 0; d < hidden; ++d) sum[d] += factor * static_cast<double>(y[d]);
    }
    float* out = p.out + token * p.hidden_size;
    for (size_t d = 0; d < hidden; ++d) {
      out[d] = static_cast<float>(p.accumulate ? static_cast<double>(out[d]) + sum[d] : sum[d]);
    }
  }
}

void reference_head_linear(const HeadLinearParams& p) {
  for (int64_t token = 0; token < p.num_tokens; ++token) {
    for (size_t h = 0; h < p.weights.size(); ++h) {
      const auto head = static_cast<int64_t>(h);
      multiply(*p.weights[h], nullptr, p.x + token * p.x_row_stride + head * p.x_head_stride,
               p.y + token * p.y_row_stride + head * p.y_head_stride);
    }
  }
}

void reference_gate_rows(const GateRowsParams& p) {
  for (int64_t token = 0; token < p.num_tokens; ++token) {
    const double factor = 1.0 / (1.0 + std::exp(-static_cast<double>(p.gate[token])));
    for (int64_t i = 0; i < p.size; ++i) {
      float& x = p.x[token * p.size + i];
      x = static_cast<float>(static_cast<double>(x) * factor);
    }
  }
}

}  // namespace headrace
