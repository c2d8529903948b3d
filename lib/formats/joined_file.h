// The tensors of several files as one file's.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "formats/tensor_file.h"

namespace headrace {

class JoinedFile final : public TensorFile {
 public:
  struct Part {
    std::string prefix;  // put before the names of this file's tensors
    std::shared_ptr<const TensorFile> file;
  };
  // kMalformed when two tensors have one name then.
  static Result<std::shared_ptr<TensorFile>> join(const std::vector<Part>& parts);

  Status read(const TensorEntry& entry, uint64_t byte_offset, std::span<std::byte> dst) const override;

 private:
  // A tensor that its file makes of others (TensorEntry::kNoSource).
  struct Made {
    std::shared_ptr<const TensorFile> file;
    const TensorEntry* entry;  // of that file
  };

  JoinedFile() = default;

  std::unordered_map<std::string, Made> made_;  // by the name here
};

}  // namespace headrace
