// Weights of recurrent layers, as the ops take them.
#pragma once

#include <vector>

#include "model/linear_weight.h"

namespace headrace {

// A depthwise convolution: weight [kernel, channels], bias [channels] or empty.
struct ConvWeights {
  std::vector<float> weight, bias;
};

struct ShortConvWeights {
  LinearWeight b, c, x, out;
  ConvWeights conv;
};

struct MambaWeights {
  LinearWeight x, z, out;      // [channels, hidden_size], [hidden_size, channels]
  LinearWeight step_in, b, c;  // [step_rank or state_size, channels]
  LinearWeight step;           // [channels, step_rank]
  ConvWeights conv;
  std::vector<float> rate;  // [state_size, channels]
  std::vector<float> skip;  // [channels]
};

struct Mamba2Weights {
  LinearWeight z, xbc, step, out;
  ConvWeights conv;                     // the factors of x, B and C are in it
  std::vector<float> rate, bias, skip;  // [num_heads]
  std::vector<float> norm;              // [num_heads * head_dim] or empty
};

struct GatedDeltaWeights {
  LinearWeight q, k, v, z, a, b, out;
  ConvWeights conv;
  std::vector<float> rate, bias;  // [num_heads]
  std::vector<float> norm;        // [value_dim]
  std::vector<float> unit;        // [key_dim] of the RMS norm that is an L2 norm
};

struct KimiDeltaWeights {
  LinearWeight q, k, v, decay_down, decay_up, step, gate_down, gate_up, out;
  ConvWeights conv;               // of q, k and v side by side
  std::vector<float> rate, bias;  // [num_heads * head_dim]
  std::vector<float> norm, unit;  // [head_dim]
};

struct LightningWeights {
  LinearWeight q, k, v, gate, out;
  std::vector<float> norm;   // [num_heads * head_dim]
  std::vector<float> decay;  // [num_heads]
};

struct NoAttentionWeights {};

}  // namespace headrace
