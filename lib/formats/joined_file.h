// The tensors of several files as one file's.
#pragma once

#include <memory>
#include <string>
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

 private:
  JoinedFile() = default;
};

}  // namespace headrace
