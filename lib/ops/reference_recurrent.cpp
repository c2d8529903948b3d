// The scalar reference of the ops that carry a state. Sums are float64; what stands in a state is float32.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "ops/reference_backend.h"

namespace headrace {
namespace {

double widen(float x) { return static_cast<double>(x); }
double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }
double softplus(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::fabs(x))); }

// Walks the rows of each sequence in order with its state, and copies the state's `size` floats where wanted.
template <class Function>
void walk(const StateRows& rows, int64_t size, const Function& function) {
  int32_t next = 0;
  for (int32_t s = 0; s < rows.num_seqs; ++s) {
    float* state = rows.states[s] + rows.offset;
    for (int32_t t = rows.query_start[s]; t < rows.query_start[s + 1]; ++t) {
      function(t, state);
      for (; next < rows.num_snapshots && rows.snapshot_rows[next] == t; ++next) {
        std::memcpy(rows.snapshots[next] + rows.offset, state, static_cast<size_t>(size) * sizeof(float));
      }
    }
  }
}

}  // namespace

void reference_causal_conv(const CausalConvParams& p) {
  const int64_t past = p.kernel - 1;
  walk(p.rows, past * p.channels, [&](int64_t t, float* state) {
    for (int64_t c = 0; c < p.channels; ++c) {
      float u = p.x[t * p.stride + c];
      if (p.gate_in != nullptr) u *= p.gate_in[t * p.stride + c];
      double sum = p.bias == nullptr ? 0.0 : widen(p.bias[c]);
      for (int64_t k = 0; k < past; ++k) sum += widen(p.weight[k * p.channels + c]) * widen(state[k * p.channels + c]);
      sum += widen(p.weight[past * p.channels + c]) * widen(u);
      if (p.silu) sum *= sigmoid(sum);
      if (p.gate_out != nullptr) sum *= widen(p.gate_out[t * p.stride + c]);
      p.out[t * p.out_stride + c] = static_cast<float>(sum);
      for (int64_t k = 0; k + 1 < past; ++k) state[k * p.channels + c] = state[(k + 1) * p.channels + c];
      state[(past - 1) * p.channels + c] = u;
    }
  });
}

void reference_pool_runs(const PoolRunsParams& p) {
  const int64_t width = p.width();
  // {greatest, sum, sum of values} of one channel, the three apart by p.channels.
  const auto clear = [&](float* sums) {
    sums[0] = -std::numeric_limits<float>::infinity();
    sums[p.channels] = sums[2 * p.channels] = 0.0f;
  };
  const auto include = [&](float* sums, double exponent, double value) {
    const double before = widen(sums[0]), greatest = std::max(before, exponent);
    const double kept = std::exp(before - greatest), added = std::exp(exponent - greatest);
    sums[0] = static_cast<float>(greatest);
    sums[p.channels] = static_cast<float>(widen(sums[p.channels]) * kept + added);
    sums[2 * p.channels] = static_cast<float>(widen(sums[2 * p.channels]) * kept + added * value);
  };
  walk(p.rows, p.state_lines() * p.channels, [&](int64_t t, float* state) {
    const int64_t j = p.positions[t] % p.run;
    for (int64_t c = 0; c < p.channels; ++c) {
      float *const open = state + c, *const after = open + 3 * p.channels;
      const auto exponent = [&](int64_t at) {
        // In float32, as the greatest one is kept.
        return static_cast<double>(p.gate[t * width + at] + p.bias[j * width + at]);
      };
      if (j == 0 && (!p.overlap || p.positions[t] == 0)) clear(open);
      if (j == 0 && p.overlap) {
        for (int64_t i = 0; i < 3 && p.positions[t] > 0; ++i) open[i * p.channels] = after[i * p.channels];
        clear(after);
      }
      const int64_t own = p.overlap ? p.channels + c : c;
      include(open, exponent(own), widen(p.value[t * width + own]));
      if (p.overlap) include(after, exponent(c), widen(p.value[t * width + c]));
      if (j + 1 == p.run) {
        p.out[p.entries[t] * p.channels + c] =
            static_cast<float>(widen(open[2 * p.channels]) / widen(open[p.channels]));
      }
    }
  });
}

void reference_selective_scan(const SelectiveScanParams& p) {
  walk(p.rows, p.state_size * p.channels, [&](int64_t t, float* state) {
    for (int64_t c = 0; c < p.channels; ++c) {
      const double dt = softplus(widen(p.step[t * p.step_stride + c])), x = widen(p.x[t * p.x_stride + c]);
      double sum = widen(p.skip[c]) * x;
      for (int64_t n = 0; n < p.state_size; ++n) {
        float& s = state[n * p.channels + c];
        s = static_cast<float>(std::exp(dt * widen(p.rate[n * p.channels + c])) * widen(s) +
                               dt * x * widen(p.b[t * p.bc_stride + n]));
        sum += widen(s) * widen(p.c[t * p.bc_stride + n]);
      }
      const double gate = widen(p.gate[t * p.gate_stride + c]);
      p.out[t * p.out_stride + c] = static_cast<float>(sum * gate * sigmoid(gate));
    }
  });
}

void reference_linear_recurrence(const LinearRecurrenceParams& p) {
  const int64_t head_size = p.key_dim * p.value_dim;
  const int64_t decay_width = p.channel_decay ? p.key_dim : 1;
  std::vector<double> u(static_cast<size_t>(p.value_dim)), sum(u.size());
  walk(p.rows, p.num_heads * head_size, [&](int64_t t, float* state) {
    for (int64_t h = 0; h < p.num_heads; ++h) {
      const int64_t key_head = h / (p.num_heads / p.num_key_heads);
      const float* q = p.q + t * p.q_stride + key_head * p.key_dim;
      const float* k = p.k + t * p.k_stride + key_head * p.key_dim;
      const float* v = p.v + t * p.v_stride + h * p.value_dim;
      const float* decay = p.decay + t * p.decay_stride + h * decay_width;
      const double step = p.step == nullptr ? 1.0 : widen(p.step[t * p.num_heads + h]);
      float* s = state + h * head_size;
      for (size_t j = 0; j < u.size(); ++j) u[j] = widen(v[j]);
      for (int64_t i = 0; i < p.key_dim; ++i) {
        for (size_t j = 0; j < u.size(); ++j) {
          float& value = s[i * p.value_dim + static_cast<int64_t>(j)];
          value = static_cast<float>(widen(value) * widen(decay[p.channel_decay ? i : 0]));
          if (p.delta) u[j] -= widen(value) * widen(k[i]);
        }
      }
      std::fill(sum.begin(), sum.end(), 0.0);
      for (int64_t i = 0; i < p.key_dim; ++i) {
        for (size_t j = 0; j < u.size(); ++j) {
          float& value = s[i * p.value_dim + static_cast<int64_t>(j)];
          value = static_cast<float>(widen(value) + widen(k[i]) * step * u[j]);
          sum[j] += widen(value) * widen(q[i]);
        }
      }
      for (size_t j = 0; j < u.size(); ++j) {
        const double skip = p.skip == nullptr ? 0.0 : widen(p.skip[h]) * widen(v[j]);
        p.out[t * p.out_stride + h * p.value_dim + static_cast<int64_t>(j)] =
            static_cast<float>(widen(p.scale) * sum[j] + skip);
      }
    }
  });
}

void reference_decay_gates(const DecayGatesParams& p) {
  for (int64_t t = 0; t < p.num_tokens; ++t) {
    for (int64_t i = 0; i < p.width; ++i) {
      const double raw = widen(p.raw[t * p.raw_stride + i]) + widen(p.bias[i]);
      const double step = std::min(std::max(softplus(raw), widen(p.low)), widen(p.high));
      p.decay[t * p.width + i] = static_cast<float>(std::exp(widen(p.rate[i]) * step));
      if (p.step != nullptr) p.step[t * p.width + i] = static_cast<float>(step);
    }
  }
}

void reference_group_norm(const GroupNormParams& p) {
  std::vector<double> x(static_cast<size_t>(p.size)), gate(x.size());
  for (int64_t t = 0; t < p.num_tokens; ++t) {
    for (int64_t g = 0; g < p.groups; ++g) {
      double squares = 0.0;
      for (size_t i = 0; i < x.size(); ++i) {
        const auto at = g * p.size + static_cast<int64_t>(i);
        const double z = p.gate == nullptr ? 0.0 : widen(p.gate[t * p.gate_stride + at]);
        gate[i] = p.gate == nullptr ? 1.0 : p.activation == Activation::kSilu ? z * sigmoid(z) : sigmoid(z);
        x[i] = widen(p.x[t * p.x_stride + at]) * (p.gate_first ? gate[i] : 1.0);
        squares += x[i] * x[i];
      }
      const double factor = 1.0 / std::sqrt(squares / static_cast<double>(p.size) + widen(p.eps));
      for (size_t i = 0; i < x.size(); ++i) {
        const auto at = g * p.size + static_cast<int64_t>(i);
        const double weight = widen(p.weight[p.group_weights ? at : static_cast<int64_t>(i)]);
        p.out[t * p.out_stride + at] = static_cast<float>(x[i] * factor * weight * (p.gate_first ? 1.0 : gate[i]));
      }
    }
  }
}

}  // namespace headrace
