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

// How a tensor of the file holds a weight.
enum class TensorForm : int32_t {
  kRows,        // as rows
  kTransposed,  // the tensor is the transpose: rows are columns of the file
  kSwapped,     // rows of the file, transposed
  kRowsByHead,  // as rows, those of the sharing weights in turns of one head's
};

// A `*` in ours stands for the number of an expert or a head. Without one in theirs, one tensor holds them all, in
// order. Of several pairs with the same ours, the first whose tensor is in the file counts. Names that stand for the
// same tensor divide its rows among themselves, in the order of list_weights.
struct NamePair {
  std::string_view ours;    // q_proj, or with its suffix: q_proj.bias
  std::string_view theirs;  // self_attn.q_proj; where ours has a suffix, the tensor's whole name
  TensorForm form = TensorForm::kRows;
  bool interleaved = false;  // rows (or columns) of two weights alternate
};

// How a file kind names a family's modules; .weight and .bias are the same in both.
struct WeightNaming {
  std::string_view layer_prefix;    // "model.layers." or "blk."
  std::span<const NamePair> layer;  // modules of a layer
  std::span<const NamePair> top;    // embed, final_norm, lm_head
  // Tensors that may be there and take no part in the text model.
  std::span<const std::string_view> ignored_prefixes;
  std::span<const std::string_view> ignored_suffixes;
  // Layers past the model's last may be there too: they predict tokens further ahead.
  bool more_layers = false;
  // Tensors of other names belong to another part of the model; empty: all are of this one.
  std::span<const std::string_view> own_prefixes = {};
};

// Every weight of the spec under our names, file_name still empty.
std::vector<WeightEntry> list_weights(const ModelSpec& spec);

// The same with names of the file. kNotFound for a missing tensor, kMalformed for another shape, kUnsupported
// for a tensor that the spec has no place for; the tensor is the place.
Result<std::vector<WeightEntry>> resolve_weights(const ModelSpec& spec, const WeightNaming& naming,
                                                 const TensorFile& file);
// The same of weights listed otherwise; num_layers: of the part, which `architecture` names for errors.
Result<std::vector<WeightEntry>> resolve_weights(std::vector<WeightEntry> entries, size_t num_layers,
                                                 std::string_view architecture, const WeightNaming& naming,
                                                 const TensorFile& file);

// The same of a file that may hold anything besides and lack some: weights whose tensor it lacks have a file_name too.
Result<std::vector<WeightEntry>> resolve_listed(std::vector<WeightEntry> entries, const WeightNaming& naming,
                                                const TensorFile& file);

// Those of one layer alone, of a file that may hold anything besides. Weights whose tensor it lacks have a file_name too.
Result<std::vector<WeightEntry>> resolve_layer(const ModelSpec& spec, int64_t layer, const WeightNaming& naming,
                                               const TensorFile& file);

}  // namespace headrace
