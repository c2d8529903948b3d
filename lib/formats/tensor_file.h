// The named tensors of a model file, whatever its kind: where each lies and how its bytes are read.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/byte_source.h"
#include "base/status.h"
#include "tensor/column_order.h"
#include "tensor/dtype.h"

namespace headrace {

struct TensorEntry {
  std::string name;
  DType dtype = DType::kF32;
  // Row-major, outermost dimension first, for both file kinds: a linear weight is [out_features,
  // in_features]. Empty means one element.
  std::vector<uint64_t> shape;
  uint64_t offset = 0;        // bytes from the start of its source
  uint64_t bytes = 0;         // exactly what shape and dtype need; offset + bytes lies inside the source
  uint32_t source_index = 0;  // which of the file's sources (shards)
  ColumnOrder column_order;   // of the elements of its rows; null in most files

  // source_index of a tensor that is made of others and lies nowhere itself.
  static constexpr uint32_t kNoSource = UINT32_MAX;
};

// Elements of a shape, or nothing when the product does not fit in 63 bits.
std::optional<uint64_t> num_elements(std::span<const uint64_t> shape);

// Tensors over one or several byte sources. Immutable once opened, so every function may be called from any
// thread at any time. The file keeps its sources alive.
class TensorFile {
 public:
  virtual ~TensorFile();
  TensorFile(const TensorFile&) = delete;
  TensorFile& operator=(const TensorFile&) = delete;

  // In file order, shard after shard. References stay valid for the file's life.
  virtual const std::vector<TensorEntry>& tensors() const { return tensors_; }
  // Null when there is no tensor of that name.
  const TensorEntry* find(std::string_view name) const;

  // Fills dst with the tensor's bytes from byte_offset. A range that leaves the tensor is kInvalidArgument; a
  // source that cannot deliver is kIo. The place of either names the tensor.
  virtual Status read(const TensorEntry& entry, uint64_t byte_offset, std::span<std::byte> dst) const;
  // The tensor's bytes in memory (no alignment promised), or null unless its source is mapped.
  virtual const std::byte* mapped(const TensorEntry& entry) const;

  // Bytes of all tensors together, without headers and padding.
  uint64_t total_bytes() const { return total_bytes_; }
  // By source_index.
  std::span<const std::shared_ptr<ByteSource>> sources() const { return sources_; }
  // The sources' names, by source_index.
  const std::string& source_name(uint32_t source_index) const;

 protected:
  TensorFile() = default;
  // Takes the entries over and indexes them. Two tensors of one name, and entries that leave their source,
  // are kMalformed with the tensor as place.
  Status set_tensors(std::vector<std::shared_ptr<ByteSource>> sources, std::vector<TensorEntry> tensors);

 private:
  Status check_place(const TensorEntry& entry) const;

  std::vector<std::shared_ptr<ByteSource>> sources_;
  std::vector<TensorEntry> tensors_;
  std::unordered_map<std::string_view, size_t> index_;  // views into tensors_
  uint64_t total_bytes_ = 0;
};

}  // namespace headrace
