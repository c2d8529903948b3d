// Quantized checkpoints of Hugging Face folders: config.json's quantization_config, and the tensors that it speaks of.
//
// What a module's tensors are decides how its weight is read, and the config is checked against it: modules without
// quantized tensors keep their plain ones, whatever lists of ignored modules say. Weights keep their codes and scales.
// Activations are those of the library; what a checkpoint says of quantizing them, or the KV cache, has no effect.
#pragma once

#include <memory>

#include <nlohmann/json_fwd.hpp>

#include "formats/tensor_file.h"

namespace headrace {

// The file as it is where config has no quantization_config; else its tensors with each quantized weight as NAME.weight
// in a block format (docs/formats.md). kUnsupported names the key or tensor that is not read, kMalformed what does not fit.
Result<std::shared_ptr<TensorFile>> open_quantized(std::shared_ptr<TensorFile> file, const nlohmann::json& config);

}  // namespace headrace
