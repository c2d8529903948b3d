// The tensors of a quantized checkpoint as the model sees them: each quantized weight one tensor in a block format, made
// from its parts (codes, scales, zero points) row by row as it is read.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "formats/tensor_file.h"

namespace headrace {

// Makes the rows of one weight. Immutable; may be called from several threads.
class DerivedRows {
 public:
  virtual ~DerivedRows() = default;
  // Fills out with rows [first, first + count) of the tensor, its leading dimensions counted as one.
  virtual Status read(uint64_t first, uint64_t count, std::byte* out) const = 0;
};

struct DerivedTensor {
  TensorEntry entry;               // name, dtype, shape and column_order
  std::vector<std::string> parts;  // tensors of the file that it replaces
  std::unique_ptr<const DerivedRows> rows;
};

class DerivedFile final : public TensorFile {
 public:
  // The file's tensors without the parts and the hidden ones, and the derived ones. kMalformed where two have one name.
  static Result<std::shared_ptr<DerivedFile>> create(std::shared_ptr<const TensorFile> file,
                                                     std::vector<DerivedTensor> derived,
                                                     std::span<const std::string> hidden);

  Status read(const TensorEntry& entry, uint64_t byte_offset, std::span<std::byte> dst) const override;

 private:
  DerivedFile() = default;
  // A range of the tensor. May throw what allocations throw.
  static Status read_derived(const DerivedTensor& tensor, uint64_t byte_offset, std::span<std::byte> dst);

  std::shared_ptr<const TensorFile> file_;
  std::vector<DerivedTensor> derived_;
  std::unordered_map<std::string_view, const DerivedTensor*> by_name_;  // views into derived_
};

// A tensor's bytes in memory, kept for readers that need all of it for each row. One holds the last tensor asked for.
class WholeTensors {
 public:
  using Bytes = std::shared_ptr<const std::vector<std::byte>>;
  // Of each entry, read unless they are what was asked for last.
  Result<std::vector<Bytes>> get(const TensorFile& file, const std::vector<const TensorEntry*>& entries);

 private:
  std::mutex mutex_;
  std::vector<const TensorEntry*> entries_;
  std::vector<Bytes> bytes_;
};

}  // namespace headrace
