// What Qwen2 and Qwen3 share: rotary positions, activation, and windows on the upper layers.
#pragma once

#include "model/families/dense_decoder.h"

namespace headrace {

// Keys of config.json beside those of every decoder.
inline constexpr std::string_view kQwenKeys[] = {"use_sliding_window", "sliding_window", "max_window_layers",
                                                 "layer_types", "attention_bias"};

Result<ModelSpec> read_qwen_config(const ConfigReader& config, const DenseDefaults& defaults);
Result<ModelSpec> read_qwen_gguf(const GgufReader& gguf);

}  // namespace headrace
