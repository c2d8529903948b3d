// Writes GGUF files byte by byte, right or wrong as a test wants them.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/byte_source.h"
#include "formats/gguf.h"

namespace headrace {

// Bytes put down one after the other, little-endian.
class Bytes {
 public:
  Bytes& raw(std::string_view text) {
    data_ += text;
    return *this;
  }
  template <class T>
  Bytes& number(T value) {
    data_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  Bytes& u32(uint32_t value) { return number(value); }
  Bytes& u64(uint64_t value) { return number(value); }
  Bytes& string(std::string_view text) { return u64(text.size()).raw(text); }
  Bytes& type(GgufType type) { return u32(static_cast<uint32_t>(type)); }
  // Metadata entries.
  Bytes& key_u32(std::string_view key, uint32_t value) { return string(key).type(GgufType::kU32).u32(value); }
  Bytes& key_string(std::string_view key, std::string_view value) {
    return string(key).type(GgufType::kString).string(value);
  }
  Bytes& key_array(std::string_view key, GgufType element, uint64_t count) {
    return string(key).type(GgufType::kArray).type(element).u64(count);
  }
  // A tensor's description; dimensions innermost first, as files have them.
  Bytes& tensor(std::string_view name, const std::vector<uint64_t>& dimensions, uint32_t ggml_type, uint64_t offset) {
    string(name).u32(static_cast<uint32_t>(dimensions.size()));
    for (const uint64_t dimension : dimensions) u64(dimension);
    return u32(ggml_type).u64(offset);
  }
  Bytes& pad(size_t alignment = 32) {
    while (data_.size() % alignment != 0) data_ += '\0';
    return *this;
  }
  Bytes& zeros(size_t count) {
    data_.append(count, '\0');
    return *this;
  }
  const std::string& text() const { return data_; }

 private:
  std::string data_;
};

inline Bytes gguf_header(uint64_t tensors, uint64_t keys, uint32_t version = 3) {
  return Bytes().raw("GGUF").u32(version).u64(tensors).u64(keys);
}

// The text as a source that owns it.
inline std::shared_ptr<ByteSource> source_of(std::string text, std::string name = "test") {
  auto owned = std::make_shared<std::string>(std::move(text));
  const std::span<const char> bytes(*owned);
  return open_memory(std::as_bytes(bytes), std::move(name), [owned] {});
}

}  // namespace headrace
