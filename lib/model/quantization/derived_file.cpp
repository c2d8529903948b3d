#include "model/quantization/derived_file.h"

#include <cstring>
#include <new>
#include <stdexcept>
#include <unordered_set>

#include "base/format_full.h"
#include "formats/text_quote.h"

namespace headrace {

Result<std::shared_ptr<DerivedFile>> DerivedFile::create(std::shared_ptr<const TensorFile> file,
                                                         std::vector<DerivedTensor> derived,
                                                         std::span<const std::string> hidden) {
  std::shared_ptr<DerivedFile> out(new DerivedFile());
  out->file_ = std::move(file);
  out->derived_ = std::move(derived);
  std::unordered_set<std::string_view> parts(hidden.begin(), hidden.end());
  for (const DerivedTensor& tensor : out->derived_) parts.insert(tensor.parts.begin(), tensor.parts.end());
  std::vector<TensorEntry> entries;
  for (const TensorEntry& entry : out->file_->tensors()) {
    if (!parts.contains(entry.name)) entries.push_back(entry);
  }
  for (DerivedTensor& tensor : out->derived_) {
    TensorEntry& entry = tensor.entry;
    entry.source_index = TensorEntry::kNoSource;
    const auto elements = num_elements(entry.shape);
    const auto bytes = elements ? row_bytes(entry.dtype, *elements) : std::nullopt;
    if (!bytes || *elements == 0) {
      return malformed(quote_name(entry.name), "shape [{}] is not possible", fmt::join(entry.shape, ", "));
    }
    entry.bytes = *bytes;
    entries.push_back(entry);
    out->by_name_.emplace(entry.name, &tensor);
  }
  const auto sources = out->file_->sources();
  HEADRACE_RETURN_IF_ERROR(out->set_tensors({sources.begin(), sources.end()}, std::move(entries)));
  return out;
}

Status DerivedFile::read(const TensorEntry& entry, uint64_t byte_offset, std::span<std::byte> dst) const {
  if (entry.source_index != TensorEntry::kNoSource) return file_->read(entry, byte_offset, dst);
  const auto found = by_name_.find(entry.name);
  if (found == by_name_.end()) return invalid_argument(quote_name(entry.name), "is no tensor of this file");
  if (byte_offset > entry.bytes || dst.size() > entry.bytes - byte_offset) {
    return invalid_argument(quote_name(entry.name), "{} bytes from {} on leave the tensor's {}", dst.size(),
                            byte_offset, entry.bytes);
  }
  if (dst.empty()) return {};
  try {
    return read_derived(*found->second, byte_offset, dst);
  } catch (const std::bad_alloc&) {  // on a worker's thread, where nothing may be thrown
    return out_of_memory(quote_name(entry.name), "not enough memory to read its parts");
  } catch (const std::length_error&) {
    return out_of_memory(quote_name(entry.name), "its parts do not fit into memory");
  }
}

Status DerivedFile::read_derived(const DerivedTensor& tensor, uint64_t byte_offset, std::span<std::byte> dst) {
  const uint64_t row = *row_bytes(tensor.entry.dtype, tensor.entry.shape.back());  // checked by create
  const uint64_t first = byte_offset / row, end = (byte_offset + dst.size() + row - 1) / row;
  const DerivedRows& rows = *tensor.rows;
  if (byte_offset % row == 0 && dst.size() % row == 0) return rows.read(first, end - first, dst.data());
  std::vector<std::byte> whole((end - first) * row);
  HEADRACE_RETURN_IF_ERROR(rows.read(first, end - first, whole.data()));
  std::memcpy(dst.data(), whole.data() + (byte_offset - first * row), dst.size());
  return {};
}

Result<std::vector<WholeTensors::Bytes>> WholeTensors::get(const TensorFile& file,
                                                           const std::vector<const TensorEntry*>& entries) {
  std::lock_guard lock(mutex_);
  if (entries == entries_) return bytes_;
  entries_.clear();
  bytes_.clear();
  std::vector<Bytes> read;
  for (const TensorEntry* entry : entries) {
    auto bytes = std::make_shared<std::vector<std::byte>>(entry->bytes);
    HEADRACE_RETURN_IF_ERROR(file.read(*entry, 0, *bytes));
    read.push_back(std::move(bytes));
  }
  entries_ = entries;
  bytes_ = std::move(read);
  return bytes_;
}

}  // namespace headrace
