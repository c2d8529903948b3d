// adapter_config.json of a low-rank adapter, as the PEFT library writes it.
// Source: peft's LoraConfig; scales and patterns as in peft.tuners.lora (update_layer) and get_pattern_key.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/regex.h"

namespace headrace {

class AdapterConfig {
 public:
  static constexpr int64_t kMaxRank = 1 << 16;

  // kMalformed, or kUnsupported with the key as place for all that is not the sum of a weight and a low-rank product: DoRA,
  // trained biases, whole modules, embeddings, ways of initialisation that change the base's weights.
  static Result<AdapterConfig> parse(std::string_view text, const std::string& name);

  // Of a module such as model.layers.0.self_attn.q_proj.
  Result<int64_t> rank(std::string_view module) const;
  // What its product B A x is multiplied by: alpha / rank, or alpha / sqrt(rank) with use_rslora.
  Result<double> scale(std::string_view module) const;

 private:
  // The first pattern that a module's name, or an end of it from a dot on, matches.
  struct Pattern {
    text::Regex regex;
    double value;
  };
  static Result<double> find(const std::vector<Pattern>& patterns, std::string_view module, double otherwise);

  int64_t rank_ = 0;
  double alpha_ = 0;
  bool rank_stabilised_ = false;
  std::vector<Pattern> rank_patterns_, alpha_patterns_;
};

}  // namespace headrace
