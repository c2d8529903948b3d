#include "formats/joined_file.h"

namespace headrace {

Result<std::shared_ptr<TensorFile>> JoinedFile::join(const std::vector<Part>& parts) {
  std::shared_ptr<JoinedFile> out(new JoinedFile());
  std::vector<std::shared_ptr<ByteSource>> sources;
  std::vector<TensorEntry> tensors;
  for (const Part& part : parts) {
    for (const TensorEntry& own : part.file->tensors()) {
      TensorEntry tensor = own;
      tensor.name = part.prefix + tensor.name;
      if (tensor.source_index == TensorEntry::kNoSource) {
        out->made_.emplace(tensor.name, Made{part.file, &own});
      } else {
        tensor.source_index += static_cast<uint32_t>(sources.size());
      }
      tensors.push_back(std::move(tensor));
    }
    sources.insert(sources.end(), part.file->sources().begin(), part.file->sources().end());
  }
  HEADRACE_RETURN_IF_ERROR(out->set_tensors(std::move(sources), std::move(tensors)));
  return std::shared_ptr<TensorFile>(std::move(out));
}

Status JoinedFile::read(const TensorEntry& entry, uint64_t byte_offset, std::span<std::byte> dst) const {
  const auto made = entry.source_index == TensorEntry::kNoSource ? made_.find(entry.name) : made_.end();
  if (made == made_.end()) return TensorFile::read(entry, byte_offset, dst);
  return made->second.file->read(*made->second.entry, byte_offset, dst);
}

}  // namespace headrace
