// One GGUF file's header: metadata and tensor descriptions, every number checked before it is used.
#pragma once

#include "formats/gguf.h"

namespace headrace {

// What one file says about itself.
struct GgufHeader {
  uint32_t version = 0;
  GgufFile::Metadata metadata;
  std::vector<TensorEntry> tensors;  // offsets from the start of the file; source_index 0
};

// Reads the header of `source` in windows, never more than its size. Places: the key, the tensor, or
// "header", without the source's name.
class GgufParser {
 public:
  explicit GgufParser(ByteSource& source);
  Result<GgufHeader> parse();

 private:
  Status read_bytes(void* destination, uint64_t size);
  template <class T>
  Status read_number(T* value) {
    return read_bytes(value, sizeof *value);
  }
  // A length-prefixed string of at most max_bytes, appended to `out`.
  template <class Container>
  Status append_string(Container* out, uint64_t max_bytes);
  Status read_value(GgufValue* value);
  Status read_elements(GgufType type, uint64_t count, GgufValue* value);
  Status read_metadata(uint64_t count, GgufFile::Metadata* metadata);
  Status read_tensor(TensorEntry* entry);
  Status place_tensors(uint64_t alignment, std::vector<TensorEntry>* tensors);
  uint64_t remaining() const { return limit_ - position_; }

  ByteSource& source_;
  const uint64_t limit_;   // bytes that the header may take
  uint64_t position_ = 0;  // of the next byte to parse
  std::vector<char> window_;
  uint64_t window_start_ = 0;
};

}  // namespace headrace
