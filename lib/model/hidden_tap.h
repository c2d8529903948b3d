// Rows of the residual stream that a step also gives out: what transformers calls hidden_states.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"

namespace headrace {

struct ModelSpec;

struct HiddenTap {
  // Each from 0 (the embeddings, which enter the first layer) to the number of layers: i is what enters layer i, and the last
  // what the head reads, behind the final norm.
  std::vector<int32_t> layers;
  int32_t first_row = 0, num_rows = 0;  // of the batch
  float* out = nullptr;                 // [layers, num_rows, hidden_size]
};

// kInvalidArgument for a number that names no layer or one twice; kUnsupported for layers between which the model has several
// streams. The place is "layers" and its index.
Status check_hidden_layers(const ModelSpec& spec, std::span<const int32_t> layers);

}  // namespace headrace
