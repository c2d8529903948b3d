#include "formats/tensor_file.h"

#include "base/checked.h"
#include "formats/text_quote.h"

namespace headrace {

std::optional<uint64_t> num_elements(std::span<const uint64_t> shape) {
  uint64_t product = 1;
  bool empty = false;
  for (const uint64_t dimension : shape) {
    // Zero dimensions are left out of the product, so that what does not fit is found in any order.
    if (dimension == 0) {
      empty = true;
      continue;
    }
    const auto next = checked_mul(product, dimension);
    if (!next || *next > static_cast<uint64_t>(INT64_MAX)) return std::nullopt;
    product = *next;
  }
  return empty ? 0 : product;
}

TensorFile::~TensorFile() = default;

const std::string& TensorFile::source_name(uint32_t source_index) const {
  static const std::string none = "the quantized tensors";
  return source_index < sources_.size() ? sources_[source_index]->name() : none;
}

const TensorEntry* TensorFile::find(std::string_view name) const {
  const auto it = index_.find(name);
  return it == index_.end() ? nullptr : &tensors()[it->second];
}

Status TensorFile::read(const TensorEntry& entry, uint64_t byte_offset, std::span<std::byte> dst) const {
  if (byte_offset > entry.bytes || dst.size() > entry.bytes - byte_offset) {
    return invalid_argument(quote_name(entry.name), "{} bytes from {} on leave the tensor's {}", dst.size(),
                            byte_offset, entry.bytes);
  }
  if (entry.source_index >= sources_.size()) {
    return invalid_argument(quote_name(entry.name), "is no tensor of this file");
  }
  const Status status = sources_[entry.source_index]->read(entry.offset + byte_offset, dst);
  return status.ok() ? status : status.within(quote_name(entry.name));
}

const std::byte* TensorFile::mapped(const TensorEntry& entry) const {
  if (entry.source_index >= sources_.size()) return nullptr;
  const std::byte* base = sources_[entry.source_index]->mapped();
  return base ? base + entry.offset : nullptr;
}

Status TensorFile::check_place(const TensorEntry& entry) const {
  if (entry.source_index == TensorEntry::kNoSource) return {};
  if (entry.source_index >= sources_.size()) {
    return internal_error(quote_name(entry.name), "lies in source {} of {}", entry.source_index, sources_.size());
  }
  const ByteSource& source = *sources_[entry.source_index];
  if (entry.offset <= source.size() && entry.bytes <= source.size() - entry.offset) return {};
  return malformed(quote_name(entry.name), "needs {} bytes from {} on, beyond the {} bytes of {}", entry.bytes,
                   entry.offset, source.size(), source.name());
}

Status TensorFile::set_tensors(std::vector<std::shared_ptr<ByteSource>> sources, std::vector<TensorEntry> tensors) {
  sources_ = std::move(sources);
  tensors_ = std::move(tensors);
  index_.clear();
  index_.reserve(tensors_.size());
  total_bytes_ = 0;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const TensorEntry& entry = tensors_[i];
    HEADRACE_RETURN_IF_ERROR(check_place(entry));
    const auto [it, inserted] = index_.emplace(entry.name, i);
    if (!inserted) {
      const TensorEntry& first = tensors_[it->second];
      return malformed(quote_name(entry.name), "is the name of two tensors, in {} and {}",
                       source_name(first.source_index), source_name(entry.source_index));
    }
    // Tensors of one source do not overlap, so the sum is at most the sources' sizes.
    const auto sum = checked_add(total_bytes_, entry.bytes);
    if (!sum) return malformed(quote_name(entry.name), "the tensors' sizes do not fit in 64 bits together");
    total_bytes_ = *sum;
  }
  return Status();
}

}  // namespace headrace
