#include "model/quantization/module_parts.h"

#include <algorithm>
#include <cmath>

#include "base/format_full.h"
#include "formats/text_quote.h"
#include "tensor/dequantize.h"

namespace headrace {

std::vector<std::string> QuantizedModules::with(std::string_view suffix) const {
  std::vector<std::string> out;
  for (const TensorEntry& entry : file->tensors()) {
    if (entry.name.ends_with(suffix)) out.push_back(entry.name.substr(0, entry.name.size() - suffix.size()));
  }
  return out;
}

Result<const TensorEntry*> QuantizedModules::need(const std::string& name, std::initializer_list<DType> dtypes) const {
  const TensorEntry* entry = file->find(name);
  if (entry == nullptr) return not_found(quote_name(name), "the file has no such tensor");
  if (std::find(dtypes.begin(), dtypes.end(), entry->dtype) == dtypes.end()) {
    return malformed(quote_name(name), "{} is not the type of such a part", dtype_name(entry->dtype));
  }
  return entry;
}

void QuantizedModules::add(const std::string& module, DType dtype, std::vector<uint64_t> shape,
                           std::initializer_list<std::string_view> suffixes, std::unique_ptr<const DerivedRows> rows,
                           ColumnOrder column_order) {
  DerivedTensor tensor;
  tensor.entry.name = module + ".weight";
  tensor.entry.dtype = dtype;
  tensor.entry.shape = std::move(shape);
  tensor.entry.column_order = std::move(column_order);
  for (const std::string_view suffix : suffixes) tensor.parts.push_back(module + std::string(suffix));
  tensor.rows = std::move(rows);
  derived.push_back(std::move(tensor));
}

void QuantizedModules::hide(std::span<const std::string_view> suffixes) {
  for (const std::string_view suffix : suffixes) {
    for (const std::string& module : with(suffix)) hidden.push_back(module + std::string(suffix));
  }
}

Status expect_shape(const TensorEntry& entry, const std::vector<uint64_t>& shape) {
  if (entry.shape == shape) return {};
  return malformed(quote_name(entry.name), "shape [{}], expected [{}]", fmt::join(entry.shape, ", "),
                   fmt::join(shape, ", "));
}

Result<std::vector<float>> read_floats(const TensorFile& file, const TensorEntry& entry, uint64_t first,
                                       uint64_t count) {
  const auto size = static_cast<uint64_t>(dtype_info(entry.dtype).block_bytes);
  std::vector<std::byte> bytes(count * size);
  HEADRACE_RETURN_IF_ERROR(file.read(entry, first * size, bytes));
  std::vector<float> out(count);
  HEADRACE_RETURN_IF_ERROR(dequantize_row(entry.dtype, bytes.data(), out.data(), static_cast<int64_t>(count)));
  for (size_t i = 0; i < out.size(); ++i) {
    if (!std::isfinite(out[i])) return malformed(quote_name(entry.name), "element {} is not finite", first + i);
  }
  return out;
}

Result<std::vector<float>> read_floats(const TensorFile& file, const TensorEntry& entry) {
  return read_floats(file, entry, 0, *num_elements(entry.shape));
}

Result<std::vector<int32_t>> read_group_index(const QuantizedModules& modules, const std::string& name, uint64_t cols,
                                              uint64_t num_groups) {
  HEADRACE_ASSIGN_OR_RETURN(const TensorEntry* entry, modules.need(name, {DType::kI32}));
  HEADRACE_RETURN_IF_ERROR(expect_shape(*entry, {cols}));
  HEADRACE_ASSIGN_OR_RETURN(auto groups, read_elements<int32_t>(*modules.file, *entry, 0, cols));
  for (size_t k = 0; k < groups.size(); ++k) {
    if (groups[k] >= 0 && static_cast<uint64_t>(groups[k]) < num_groups) continue;
    return malformed(quote_name(name), "element {} is {}, and there are {} groups", k, groups[k], num_groups);
  }
  return groups;
}

}  // namespace headrace
