// Rotary frequencies with every static scaling, as Hugging Face transformers 5 computes them
// (modeling_rope_utils.py).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/model_spec.h"

namespace headrace {

struct RopeScaling {
  // default, linear, llama3, yarn, longrope (Ding et al. 2024); dynamic, whose theta grows in longer sequences than the
  // model was trained for, or with an alpha a fixed other theta (HunYuan); proportional (Gemma 4).
  std::string type = "default";
  double factor = 1.0;
  double original_max_positions = 0;                 // llama3, yarn, longrope, dynamic
  double low_freq_factor = 0, high_freq_factor = 0;  // llama3 (Llama 3.1)
  double beta_fast = 32, beta_slow = 1;              // yarn (Peng et al. 2023)
  bool truncate = true;                              // yarn: whole dims as borders of the ramp
  std::optional<double> attention_factor;            // yarn, longrope: default from factor, or from the two below
  std::optional<double> mscale, mscale_all_dim;      // yarn, DeepSeek's variant
  std::vector<double> short_factors, long_factors;   // longrope: [rotary_dim / 2] divide the frequencies
  double alpha = 0;                                  // dynamic; 0: none
  double rotating_share = 1.0;                       // proportional: of the pairs, the fastest; the others stand still
};

// inv_freq and attention_factor of a RopeSpec. kMalformed (place: the field's name) for numbers that give no
// finite frequencies, kUnsupported for another type.
Result<RopeSpec> make_rope(double theta, int32_t rotary_dim, const RopeScaling& scaling);

}  // namespace headrace
