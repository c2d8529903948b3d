// The files that a graft takes weights from.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "formats/model_folder.h"
#include "formats/tensor_file.h"
#include "model/model_spec.h"
#include "model/weight_names.h"

namespace headrace {

// A model folder, or a safetensors file with the config.json beside it.
struct DonorFolder {
  ModelFolder folder;                // its config with the graft's changes
  std::shared_ptr<TensorFile> file;  // what is taken: of quantized checkpoints as open_quantized has them
};
// base: the folder whose config.json counts where the donor has none. `changes` (or null) are keys laid over the config; their
// values are moved.
Result<DonorFolder> open_donor_folder(const std::string& path, const std::string& base, nlohmann::json* changes,
                                      bool use_mmap);

// What a donor's own family makes of it.
struct Donor {
  ModelSpec spec;
  WeightNaming naming;
  std::shared_ptr<TensorFile> file;
};
// The same of a GGUF file too, whose metadata nothing changes.
Result<Donor> open_donor(const std::string& path, const std::string& base, nlohmann::json* changes, bool use_mmap);

}  // namespace headrace
