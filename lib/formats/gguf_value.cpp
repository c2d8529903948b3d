#include <cmath>
#include <cstring>
#include <limits>

#include "formats/gguf.h"
#include "formats/text_quote.h"

namespace headrace {
namespace {

template <class T>
T stored(const std::vector<char>& bytes, uint64_t i) {
  T value;
  std::memcpy(&value, bytes.data() + i * sizeof value, sizeof value);
  return value;
}

// An integer as sign and magnitude, so that one range check serves every width.
struct Integer {
  bool negative = false;
  uint64_t magnitude = 0;
};

template <class T>
Integer integer_of(T value) {
  if (value < 0) return {true, uint64_t{0} - static_cast<uint64_t>(value)};
  return {false, static_cast<uint64_t>(value)};
}

std::optional<Integer> integer_at(GgufType type, const std::vector<char>& bytes, uint64_t i) {
  switch (type) {
    case GgufType::kU8: return integer_of(stored<uint8_t>(bytes, i));
    case GgufType::kI8: return integer_of(stored<int8_t>(bytes, i));
    case GgufType::kU16: return integer_of(stored<uint16_t>(bytes, i));
    case GgufType::kI16: return integer_of(stored<int16_t>(bytes, i));
    case GgufType::kU32: return integer_of(stored<uint32_t>(bytes, i));
    case GgufType::kI32: return integer_of(stored<int32_t>(bytes, i));
    case GgufType::kU64: return integer_of(stored<uint64_t>(bytes, i));
    case GgufType::kI64: return integer_of(stored<int64_t>(bytes, i));
    default: return std::nullopt;
  }
}

}  // namespace

std::string_view gguf_type_name(GgufType type) {
  switch (type) {
    case GgufType::kU8: return "u8";
    case GgufType::kI8: return "i8";
    case GgufType::kU16: return "u16";
    case GgufType::kI16: return "i16";
    case GgufType::kU32: return "u32";
    case GgufType::kI32: return "i32";
    case GgufType::kF32: return "f32";
    case GgufType::kBool: return "bool";
    case GgufType::kString: return "string";
    case GgufType::kArray: return "array";
    case GgufType::kU64: return "u64";
    case GgufType::kI64: return "i64";
    case GgufType::kF64: return "f64";
  }
  return "unknown";
}

std::optional<uint64_t> GgufValue::as_u64(uint64_t i) const {
  if (i >= count_) return std::nullopt;
  const auto integer = integer_at(element_type_, bytes_, i);
  if (!integer || integer->negative) return std::nullopt;
  return integer->magnitude;
}

std::optional<int64_t> GgufValue::as_i64(uint64_t i) const {
  if (i >= count_) return std::nullopt;
  const auto integer = integer_at(element_type_, bytes_, i);
  if (!integer) return std::nullopt;
  if (integer->negative) return static_cast<int64_t>(uint64_t{0} - integer->magnitude);
  if (integer->magnitude > static_cast<uint64_t>(INT64_MAX)) return std::nullopt;
  return static_cast<int64_t>(integer->magnitude);
}

std::optional<double> GgufValue::as_f64(uint64_t i) const {
  if (i >= count_) return std::nullopt;
  if (element_type_ == GgufType::kF32) return stored<float>(bytes_, i);
  if (element_type_ == GgufType::kF64) return stored<double>(bytes_, i);
  const auto integer = integer_at(element_type_, bytes_, i);
  if (!integer || integer->magnitude > (uint64_t{1} << 53)) return std::nullopt;
  const double magnitude = static_cast<double>(integer->magnitude);
  return integer->negative ? -magnitude : magnitude;
}

std::optional<bool> GgufValue::as_bool(uint64_t i) const {
  if (i >= count_ || element_type_ != GgufType::kBool) return std::nullopt;
  return bytes_[i] != 0;
}

std::optional<std::string_view> GgufValue::as_string(uint64_t i) const {
  if (i >= strings_.size()) return std::nullopt;
  return strings_[i];
}

std::string GgufValue::to_display() const {
  constexpr uint64_t kMaxElements = 8;
  const auto element = [this](uint64_t i) -> std::string {
    if (const auto text = as_string(i)) return "'" + quote_name(*text) + "'";
    if (const auto boolean = as_bool(i)) return *boolean ? "true" : "false";
    if (element_type_ == GgufType::kF32) return fmt::format("{}", stored<float>(bytes_, i));
    if (element_type_ == GgufType::kF64) return fmt::format("{}", stored<double>(bytes_, i));
    if (const auto number = as_i64(i)) return fmt::format("{}", *number);
    if (const auto number = as_u64(i)) return fmt::format("{}", *number);
    return "?";
  };
  if (!is_array()) return element(0);
  std::string out = "[";
  for (uint64_t i = 0; i < count_ && i < kMaxElements; ++i) out += (i ? ", " : "") + element(i);
  if (count_ > kMaxElements) out += fmt::format(", ... {} in all", count_);
  return out + "]";
}

bool GgufValue::operator==(const GgufValue& other) const {
  return type_ == other.type_ && element_type_ == other.element_type_ && count_ == other.count_ &&
         bytes_ == other.bytes_ && strings_ == other.strings_;
}

}  // namespace headrace
