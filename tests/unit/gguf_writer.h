// Writes GGUF files byte by byte, right or wrong as a test wants them.
#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
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

using GgufMetaValue = std::variant<uint32_t, float, bool, std::string, std::vector<uint32_t>, std::vector<bool>>;
using GgufMeta = std::map<std::string, GgufMetaValue>;

// Of F32 values; shape outermost first, as configs have it.
struct GgufTensor {
  std::string name;
  std::vector<uint64_t> shape;
  std::vector<float> values;
};

// A whole file, right in every respect.
inline std::string gguf_text(const GgufMeta& meta, const std::vector<GgufTensor>& tensors) {
  Bytes out = gguf_header(tensors.size(), meta.size());
  for (const auto& [key, value] : meta) {
    if (const auto* number = std::get_if<uint32_t>(&value)) {
      out.key_u32(key, *number);
    } else if (const auto* real = std::get_if<float>(&value)) {
      out.string(key).type(GgufType::kF32).number(*real);
    } else if (const auto* flag = std::get_if<bool>(&value)) {
      out.string(key).type(GgufType::kBool).number(static_cast<uint8_t>(*flag));
    } else if (const auto* numbers = std::get_if<std::vector<uint32_t>>(&value)) {
      out.key_array(key, GgufType::kU32, numbers->size());
      for (const uint32_t each : *numbers) out.u32(each);
    } else if (const auto* flags = std::get_if<std::vector<bool>>(&value)) {
      out.key_array(key, GgufType::kBool, flags->size());
      for (const bool each : *flags) out.number(static_cast<uint8_t>(each));
    } else {
      out.key_string(key, std::get<std::string>(value));
    }
  }
  uint64_t offset = 0;
  for (const GgufTensor& tensor : tensors) {
    out.tensor(tensor.name, {tensor.shape.rbegin(), tensor.shape.rend()}, 0, offset);
    offset = (offset + tensor.values.size() * 4 + 31) / 32 * 32;
  }
  for (const GgufTensor& tensor : tensors) {
    out.pad().raw({reinterpret_cast<const char*>(tensor.values.data()), tensor.values.size() * 4});
  }
  return out.pad().text();
}

// The text as a source that owns it.
inline std::shared_ptr<ByteSource> source_of(std::string text, std::string name = "test") {
  auto owned = std::make_shared<std::string>(std::move(text));
  const std::span<const char> bytes(*owned);
  return open_memory(std::as_bytes(bytes), std::move(name), [owned] {});
}

}  // namespace headrace
