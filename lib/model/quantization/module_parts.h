// What the readers of quantized checkpoints share: finding a module's tensors, and reading them with their shapes checked.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "model/quantization/derived_file.h"

namespace headrace {

// One checkpoint being read: its tensors, and the weights made of them so far.
class QuantizedModules {
 public:
  explicit QuantizedModules(std::shared_ptr<const TensorFile> checkpoint)
      : file(std::move(checkpoint)), whole(std::make_shared<WholeTensors>()) {}

  // Names of modules that have a tensor NAME + suffix, in the file's order.
  std::vector<std::string> with(std::string_view suffix) const;
  const TensorEntry* find(const std::string& name) const { return file->find(name); }
  // kNotFound where it is absent, kMalformed for a type that is not among `dtypes`.
  Result<const TensorEntry*> need(const std::string& name, std::initializer_list<DType> dtypes) const;
  // Adds NAME.weight; suffixes of the parts, of which absent ones do not matter.
  void add(const std::string& module, DType dtype, std::vector<uint64_t> shape,
           std::initializer_list<std::string_view> suffixes, std::unique_ptr<const DerivedRows> rows,
           ColumnOrder column_order = nullptr);

  // Hides every tensor whose name ends in one of these, for the computation does without.
  void hide(std::span<const std::string_view> suffixes);

  std::shared_ptr<const TensorFile> file;
  std::shared_ptr<WholeTensors> whole;
  std::vector<DerivedTensor> derived;
  std::vector<std::string> hidden;
};

constexpr std::initializer_list<DType> kScaleTypes = {DType::kF32, DType::kF16, DType::kBF16};

// kMalformed, naming the tensor, unless its shape is this one.
Status expect_shape(const TensorEntry& entry, const std::vector<uint64_t>& shape);

// The group of each of `cols` columns: tensor `name`, I32 [cols]. kMalformed for one that is no number of a group.
Result<std::vector<int32_t>> read_group_index(const QuantizedModules& modules, const std::string& name, uint64_t cols,
                                              uint64_t num_groups);

// `count` elements from `first` on as floats. kMalformed for one that is not finite.
Result<std::vector<float>> read_floats(const TensorFile& file, const TensorEntry& entry, uint64_t first,
                                       uint64_t count);
Result<std::vector<float>> read_floats(const TensorFile& file, const TensorEntry& entry);
// `count` elements of a whole-number type of sizeof(T) bytes.
template <class T>
Result<std::vector<T>> read_elements(const TensorFile& file, const TensorEntry& entry, uint64_t first, uint64_t count) {
  std::vector<T> out(count);
  HEADRACE_RETURN_IF_ERROR(file.read(entry, first * sizeof(T), std::as_writable_bytes(std::span(out))));
  return out;
}

}  // namespace headrace
