// GGUF files (versions 2 and 3, little-endian), split over several files or not.
// Format: the GGUF specification of the ggml project; what is refused is listed in docs/formats.md.
#pragma once

#include <map>
#include <vector>

#include "formats/tensor_file.h"

namespace headrace {

// Numbers of the type field of metadata.
enum class GgufType : uint32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12,
};
std::string_view gguf_type_name(GgufType type);  // "u32", "array"

// One metadata value. Move-only: strings() points into the value's own storage.
class GgufValue {
 public:
  GgufValue() = default;
  GgufValue(GgufValue&&) = default;
  GgufValue& operator=(GgufValue&&) = default;

  GgufType type() const { return type_; }
  bool is_array() const { return type_ == GgufType::kArray; }
  // Of an array's elements; the value's own type otherwise.
  GgufType element_type() const { return element_type_; }
  // Elements of an array, 1 otherwise.
  uint64_t count() const { return count_; }

  // Each gives element i (0 for a scalar; i < count()), or nothing when the stored type is another kind or
  // the number does not fit. Integers of any width are accepted as integers, and also as f64 when the double
  // holds them exactly.
  std::optional<uint64_t> as_u64(uint64_t i = 0) const;
  std::optional<int64_t> as_i64(uint64_t i = 0) const;
  std::optional<double> as_f64(uint64_t i = 0) const;
  std::optional<bool> as_bool(uint64_t i = 0) const;
  std::optional<std::string_view> as_string(uint64_t i = 0) const;
  // All strings of an array of strings (or the one of a string), without a copy; empty for other types.
  std::span<const std::string_view> strings() const { return strings_; }

  // For people: 'llama', 4096, [0.5, 1, ...]; long arrays and strings are cut.
  std::string to_display() const;
  bool operator==(const GgufValue& other) const;

 private:
  friend class GgufParser;
  GgufType type_ = GgufType::kU8;
  GgufType element_type_ = GgufType::kU8;
  uint64_t count_ = 1;
  std::vector<char> bytes_;                // the numbers as stored, or the strings' characters one after the other
  std::vector<std::string_view> strings_;  // into bytes_
};

class GgufFile : public TensorFile {
 public:
  using Metadata = std::map<std::string, GgufValue, std::less<>>;

  // One source, or all shards of a split model in any order. kMalformed with the key, the tensor or "header"
  // as place (under the source's name), kUnsupported for versions, byte orders and tensor types that are not
  // read.
  static Result<std::shared_ptr<GgufFile>> open(std::vector<std::shared_ptr<ByteSource>> sources);
  // A path; of a split model the path of any shard (NAME-00002-of-00005.gguf): the others are found beside
  // it.
  static Result<std::shared_ptr<GgufFile>> open_path(const std::string& path, bool use_mmap = false);

  // All shards' keys, sorted (for a split model the first shard's split.* keys).
  const Metadata& metadata() const { return metadata_; }
  // Null when absent.
  const GgufValue* find_metadata(std::string_view key) const;

  // Typed access: kNotFound when the key is absent, kMalformed when its value is of another kind or out of
  // range; the place is the key. The _or forms give `fallback` when the key is absent, and still fail on a
  // wrong kind.
  Result<std::string> get_string(std::string_view key) const;
  Result<uint64_t> get_u64(std::string_view key) const;
  Result<int64_t> get_i64(std::string_view key) const;
  Result<double> get_f64(std::string_view key) const;
  Result<bool> get_bool(std::string_view key) const;
  Result<std::string> get_string_or(std::string_view key, std::string fallback) const;
  Result<uint64_t> get_u64_or(std::string_view key, uint64_t fallback) const;
  Result<int64_t> get_i64_or(std::string_view key, int64_t fallback) const;
  Result<double> get_f64_or(std::string_view key, double fallback) const;
  Result<bool> get_bool_or(std::string_view key, bool fallback) const;
  // Views into the file object, valid for its life.
  Result<std::span<const std::string_view>> get_string_array(std::string_view key) const;
  // Integers of any stored width (booleans are not integers).
  Result<std::vector<int32_t>> get_i32_array(std::string_view key) const;
  Result<std::vector<uint64_t>> get_u64_array(std::string_view key) const;
  // f32 or f64 (rounded to nearest).
  Result<std::vector<float>> get_f32_array(std::string_view key) const;
  Result<std::vector<uint8_t>> get_bool_array(std::string_view key) const;  // 0 or 1

  uint32_t version() const { return version_; }
  // Number of files.
  uint32_t shard_count() const { return shard_count_; }

 private:
  GgufFile() = default;
  Metadata metadata_;
  uint32_t version_ = 0;
  uint32_t shard_count_ = 1;
};

}  // namespace headrace
