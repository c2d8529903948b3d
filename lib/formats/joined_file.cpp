#include "formats/joined_file.h"

namespace headrace {

Result<std::shared_ptr<TensorFile>> JoinedFile::join(const std::vector<Part>& parts) {
  std::shared_ptr<JoinedFile> out(new JoinedFile());
  std::vector<std::shared_ptr<ByteSource>> sources;
  std::vector<TensorEntry> tensors;
  for (const Part& part : parts) {
    for (TensorEntry tensor : part.file->tensors()) {
      tensor.name = part.prefix + tensor.name;
      tensor.source_index += static_cast<uint32_t>(sources.size());
      tensors.push_back(std::move(tensor));
    }
    sources.insert(sources.end(), part.file->sources().begin(), part.file->sources().end());
  }
  HEADRACE_RETURN_IF_ERROR(out->set_tensors(std::move(sources), std::move(tensors)));
  return std::shared_ptr<TensorFile>(std::move(out));
}

}  // namespace headrace
