#include "model/packed_cache.h"

#include <sys/mman.h>

namespace headrace {
namespace {

// Fewer address translations for weights that are streamed once per token; only a hint, which few file systems take.
void advise_huge_pages(const ByteSource& file) {
  static_cast<void>(::madvise(const_cast<std::byte*>(file.mapped()), file.size(), MADV_HUGEPAGE));
}

}  // namespace

PackedCache::PackedCache(std::string path, const Hash128& identity, std::string_view layout, uint32_t new_mode,
                         LogSink log)
    : path_(std::move(path)), identity_(identity), layout_(layout), new_mode_(new_mode), log_(std::move(log)) {
  open();
}

void PackedCache::open() {
  const auto refuse = [&](const Status& reason, bool may_write) {
    may_write_ = may_write;
    log_line(log_, LogLevel::kWarning, "model",
             fmt::format("packed weights are not taken from {}; the file is {}", reason.to_string(),
                         may_write ? "written anew" : "left as it is"));
  };
  auto file = open_path(path_, /*use_mmap=*/true);
  if (!file.ok()) {
    if (file.status().code() != StatusCode::kNotFound) refuse(file.status(), false);
    return;
  }
  // What the option names by mistake, such as the model itself, is not written over.
  if (!is_packed_file(**file) && (*file)->size() > 0) {
    return refuse(malformed(path_, "is no file of packed weights"), false);
  }
  auto header = read_packed_header(**file);
  if (!header.ok()) return refuse(header.status(), true);
  if (header->layout != layout_) {
    return refuse(failed_precondition(path_, "has the layout {}, not {}", header->layout, layout_), true);
  }
  if (header->identity != identity_) {
    return refuse(failed_precondition(path_, "is of another model, or of other options"), true);
  }
  for (PackedTensor& tensor : header->tensors) tensors_.emplace(tensor.name, tensor);
  file_ = file.take();
  advise_huge_pages(*file_);
}

void PackedCache::distrust(const Status& reason) {
  if (!damaged_) {
    log_line(log_, LogLevel::kWarning, "model",
             fmt::format("{}: the file is damaged: {}; what is damaged is packed again", path_, reason.to_string()));
  }
  damaged_ = true;
}

std::unique_ptr<PackedWeight> PackedCache::find(const std::string& name, const WeightSource& source,
                                                const PackOptions& options, Backend& backend) {
  const auto it = tensors_.find(name);
  if (it == tensors_.end()) return nullptr;
  const PackedTensor& tensor = it->second;
  if (tensor.dtype != source.dtype || tensor.rows != static_cast<uint64_t>(source.rows) ||
      tensor.cols != static_cast<uint64_t>(source.cols)) {
    distrust(malformed(name, "has another type or shape"));
    return nullptr;
  }
  const std::byte* bytes = file_->mapped() + tensor.offset;
  if (hash64(bytes, static_cast<size_t>(tensor.bytes)) != tensor.checksum) {
    distrust(malformed(name, "its checksum is wrong"));
    return nullptr;
  }
  WeightSource packed = source;
  packed.packed = SharedBytes(file_, bytes, tensor.bytes);
  auto weight = packed.packed.empty() ? Result<std::unique_ptr<PackedWeight>>(malformed(name, "has no bytes"))
                                      : backend.pack(packed, options);
  if (!weight.ok()) {
    distrust(weight.status());
    return nullptr;
  }
  ++num_found_;
  return weight.take();
}

void PackedCache::add(std::string name, const PackedWeight& weight) { weights_.emplace_back(std::move(name), &weight); }

void PackedCache::finish() {
  if (num_found_ == weights_.size()) {
    log_line(log_, LogLevel::kInfo, "model", fmt::format("packed weights are mapped from {}", path_));
    return;
  }
  if (!may_write_) return;
  PackedFileHeader header{identity_, layout_, {}};
  std::vector<std::span<const std::byte>> contents;
  for (const auto& [name, weight] : weights_) {
    header.tensors.push_back(
        {name, weight->dtype(), static_cast<uint64_t>(weight->rows()), static_cast<uint64_t>(weight->cols())});
    contents.push_back(weight->packed());
  }
  const Status status = replace_file(
      path_, [&](const WriteBytes& write) { return write_packed_file(header, contents, write); }, new_mode_);
  if (status.ok()) {
    log_line(log_, LogLevel::kInfo, "model", fmt::format("packed weights are written to {}", path_));
  } else {
    log_line(log_, LogLevel::kWarning, "model",
             fmt::format("packed weights are not written to {}", status.to_string()));
  }
}

}  // namespace headrace
