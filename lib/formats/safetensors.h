// safetensors files: one, or the shards that a model.safetensors.index.json names.
// Format: the safetensors README (8-byte header length, JSON header, body).
#pragma once

#include <map>

#include "formats/tensor_file.h"

namespace headrace {

class SafetensorsFile : public TensorFile {
 public:
  using Metadata = std::map<std::string, std::string, std::less<>>;

  // Every tensor of every source. kMalformed with the tensor or "header" as place (under the source's name);
  // kUnsupported names the tensor whose element type is not read (F8_E5M2, BOOL, ...).
  static Result<std::shared_ptr<SafetensorsFile>> open(std::vector<std::shared_ptr<ByteSource>> sources);
  // One file.
  static Result<std::shared_ptr<SafetensorsFile>> open_path(const std::string& path, bool use_mmap = false);
  // A folder with model.safetensors.index.json (each tensor must lie in the shard the index says, and each
  // shard must hold only what the index lists) or model.safetensors. kNotFound when it has neither.
  static Result<std::shared_ptr<SafetensorsFile>> open_folder(const std::string& folder, bool use_mmap = false);

  // The __metadata__ of the sources; where two differ, the first one's value.
  const Metadata& metadata() const { return metadata_; }

 private:
  SafetensorsFile() = default;
  Metadata metadata_;
};

}  // namespace headrace
