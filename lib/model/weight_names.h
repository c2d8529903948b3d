// One set of weight names over both file kinds, and the check that a file holds exactly what the spec asks
// for.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "formats/tensor_file.h"
#include "model/model_spec.h"
#include "model/weights.h"

namespace headrace {

struct NamePair {
  std::string_view ours;    // q_proj
  std::string_view theirs;  // self_attn.q_proj
};

// How a file kind names a family's modules; .weight and .bias are the same in both.
struct WeightNaming {
  std::string_view layer_prefix;    // "model.layers." or "blk."
  std::span<const NamePair> layer;  // modules of a layer
  std::span<const NamePair> top;    // embed, final_norm, lm_head
  // Tensors that may be there and take no part in the text model.
  std::span<const std::string_view> ignored_prefixes;
  std::span<const std::string_view> ignored_suffixes;
};

// Every weight of the spec under our names, file_name still empty.
std::vector<WeightEntry> list_weights(const ModelSpec& spec);

// The same with names of the file. kNotFound for a missing tensor, kMalformed for another shape, kUnsupported
// for a tensor that the spec has no place for; the tensor is the place.
Result<std::vector<WeightEntry>> resolve_weights(const ModelSpec& spec, const WeightNaming& naming,
                                                 const TensorFile& file);

}  // namespace headrace
