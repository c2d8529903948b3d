// Layers whose rows carry a state from one to the next, in place of attention or beside it. Every kind begins with a
// short causal convolution over its inputs, except lightning attention.
#pragma once

#include <array>
#include <cstdint>

namespace headrace {

// out(C * conv(B * x)), [B, C, x] linear in the input. Reference: transformers models/lfm2.
struct ShortConv {
  int32_t channels = 0;
  int32_t kernel = 0;
  bool bias = false;  // of the projections and of the convolution
  bool operator==(const ShortConv&) const = default;
};

// Selective scan with a rate per channel and state. Reference: Gu and Dao 2023, transformers models/mamba.
struct Mamba {
  int32_t channels = 0;
  int32_t state_size = 0;
  int32_t step_rank = 0;
  int32_t kernel = 0;
  bool conv_bias = false;
  bool bias = false;      // of the input and output projections
  bool log_rates = true;  // the file holds log(-rate)
  bool operator==(const Mamba&) const = default;
};

// Selective scan with a rate per head. Reference: Dao and Gu 2024, transformers models/mamba2.
struct Mamba2 {
  int32_t num_heads = 0;
  int32_t head_dim = 0;
  int32_t state_size = 0;
  int32_t num_groups = 0;  // heads that share their B and C
  int32_t kernel = 0;
  bool conv_bias = false;
  bool bias = false;
  bool log_rates = true;
  float step_low = 0.0f, step_high = 0.0f;  // bounds of the step
  bool gated_norm = true;                   // false: the output times silu(z), without a norm
  bool norm_first = false;                  // norm(y) * silu(z), not norm(y * silu(z))
  int32_t norm_groups = 1;
  // Factors of z, x, B, C and the step before anything else happens to them.
  std::array<float, 5> scales = {1.0f, 1.0f, 1.0f, 1.0f, 1.0f};
  int64_t inner() const { return int64_t{num_heads} * head_dim; }
  int64_t group_states() const { return int64_t{num_groups} * state_size; }
  int64_t conv_channels() const { return inner() + 2 * group_states(); }
  bool operator==(const Mamba2&) const = default;
};

// Gated delta rule. Reference: Yang et al. 2024, transformers models/qwen3_next.
struct GatedDelta {
  int32_t num_heads = 0;      // of values
  int32_t num_key_heads = 0;  // of queries and keys
  int32_t key_dim = 0;
  int32_t value_dim = 0;
  int32_t kernel = 0;
  bool log_rates = true;
  // Channels of the tensors q, k and v that hold the convolution one after the other; zeros: one tensor holds all.
  std::array<int32_t, 3> conv_parts = {};
  float step_scale = 1.0f;  // of sigmoid(b): 2 allows negative eigenvalues
  float norm_eps = 0.0f;    // of the output's norm
  int64_t keys() const { return int64_t{num_key_heads} * key_dim; }
  int64_t values() const { return int64_t{num_heads} * value_dim; }
  int64_t conv_channels() const { return 2 * keys() + values(); }
  bool operator==(const GatedDelta&) const = default;
};

// Kimi's delta attention: the gated delta rule with a decay per key channel. Reference: Kimi Linear 2025, transformers
// models/kimi_linear.
struct KimiDelta {
  int32_t num_heads = 0;
  int32_t head_dim = 0;  // of keys and values
  int32_t kernel = 0;
  float norm_eps = 0.0f;
  int64_t width() const { return int64_t{num_heads} * head_dim; }
  bool operator==(const KimiDelta&) const = default;
};

// Linear attention with a fixed decay per head. Reference: Qin et al. 2024, transformers models/minimax.
struct LightningAttention {
  int32_t num_heads = 0;
  int32_t head_dim = 0;
  float slope_factor = 1.0f;  // of the layer: head h decays by exp(-slope_factor * 2^(-8 (h + 1) / num_heads))
  float norm_eps = 0.0f;      // of the output's norm
  int64_t width() const { return int64_t{num_heads} * head_dim; }
  bool operator==(const LightningAttention&) const = default;
};

// No attention: the layer is its feed-forward alone.
struct NoAttention {
  bool operator==(const NoAttention&) const = default;
};

}  // namespace headrace
