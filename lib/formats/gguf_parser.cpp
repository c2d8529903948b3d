#include "formats/gguf_parser.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string_view>
#include <unordered_set>

#include "base/checked.h"
#include "base/format_full.h"
#include "formats/text_quote.h"

namespace headrace {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF numbers are copied as they lie in the file");

constexpr uint64_t kWindowBytes = 256 * 1024;
// Ten times the largest vocabularies. It bounds the memory that a huge (perhaps sparse) file can make a
// header take.
constexpr uint64_t kMaxHeaderBytes = 256 << 20;
constexpr uint64_t kMaxNameBytes = 65535;  // the specification's limit for keys; no writer's tensor names come near
constexpr uint64_t kMaxDimensions = 8;     // writers use four
constexpr uint64_t kDefaultAlignment = 32;
constexpr uint64_t kMaxAlignment = 1 << 20;
constexpr std::string_view kAlignmentKey = "general.alignment";
// The fewest bytes an item can take: a bound on counts before anything is allocated for them.
constexpr uint64_t kMinKeyBytes = 8 + 1 + 4 + 1;
constexpr uint64_t kMinTensorBytes = 8 + 1 + 4 + 8 + 4 + 8;

// Bytes of a number; 0 for strings, arrays and unknown types.
uint64_t number_bytes(GgufType type) {
  switch (type) {
    case GgufType::kU8:
    case GgufType::kI8:
    case GgufType::kBool: return 1;
    case GgufType::kU16:
    case GgufType::kI16: return 2;
    case GgufType::kU32:
    case GgufType::kI32:
    case GgufType::kF32: return 4;
    case GgufType::kU64:
    case GgufType::kI64:
    case GgufType::kF64: return 8;
    default: return 0;
  }
}

std::string shape_text(const std::vector<uint64_t>& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

}  // namespace

GgufParser::GgufParser(ByteSource& source) : source_(source), limit_(std::min(source.size(), kMaxHeaderBytes)) {}

Status GgufParser::read_bytes(void* destination, uint64_t size) {
  if (size > remaining()) {
    return malformed("", "{} bytes are needed at byte {}, where {} are left{}", size, position_, remaining(),
                     limit_ < source_.size() ? " of the longest header that is read" : "");
  }
  char* out = static_cast<char*>(destination);
  while (size > 0) {
    const uint64_t window_end = window_start_ + window_.size();
    if (position_ < window_start_ || position_ >= window_end) {
      const uint64_t next = std::min(kWindowBytes, remaining());
      window_.resize(next);
      window_start_ = position_;
      HEADRACE_RETURN_IF_ERROR(source_.read(position_, std::as_writable_bytes(std::span(window_))));
      continue;
    }
    const uint64_t part = std::min(size, window_end - position_);
    std::memcpy(out, window_.data() + (position_ - window_start_), part);
    out += part;
    position_ += part;
    size -= part;
  }
  return Status();
}

template <class Container>
Status GgufParser::append_string(Container* out, uint64_t max_bytes) {
  uint64_t length = 0;
  HEADRACE_RETURN_IF_ERROR(read_number(&length));
  if (length > remaining()) {
    return malformed("", "a string of {} bytes at byte {} is longer than the {} bytes left", length, position_,
                     remaining());
  }
  if (length > max_bytes) return malformed("", "a name of {} bytes is longer than {}", length, max_bytes);
  const size_t start = out->size();
  out->resize(start + length);
  return read_bytes(out->data() + start, length);
}

Status GgufParser::read_elements(GgufType type, uint64_t count, GgufValue* value) {
  value->element_type_ = type;
  value->count_ = count;
  if (type == GgufType::kString) {
    // Each string takes at least its length field.
    if (count > remaining() / sizeof(uint64_t)) {
      return malformed("", "{} strings cannot fit in the {} bytes left", count, remaining());
    }
    std::vector<size_t> ends;
    ends.reserve(count);
    for (uint64_t i = 0; i < count; ++i) {
      HEADRACE_RETURN_IF_ERROR(append_string(&value->bytes_, UINT64_MAX));
      ends.push_back(value->bytes_.size());
    }
    value->bytes_.shrink_to_fit();
    value->strings_.reserve(count);
    size_t start = 0;
    for (const size_t end : ends) {
      value->strings_.emplace_back(value->bytes_.data() + start, end - start);
      start = end;
    }
    return Status();
  }
  const uint64_t width = number_bytes(type);
  if (width == 0) return malformed("", "element type {} is unknown", static_cast<uint32_t>(type));
  if (count > remaining() / width) {
    return malformed("", "{} elements of {} bytes cannot fit in the {} bytes left", count, width, remaining());
  }
  value->bytes_.resize(count * width);
  HEADRACE_RETURN_IF_ERROR(read_bytes(value->bytes_.data(), count * width));
  if (type == GgufType::kBool) {
    for (const char byte : value->bytes_) {
      if (byte != 0 && byte != 1) return malformed("", "a bool is stored as {}", static_cast<uint8_t>(byte));
    }
  }
  return Status();
}

Status GgufParser::read_value(GgufValue* value) {
  uint32_t type = 0;
  HEADRACE_RETURN_IF_ERROR(read_number(&type));
  if (type > static_cast<uint32_t>(GgufType::kF64)) return malformed("", "value type {} is unknown", type);
  value->type_ = static_cast<GgufType>(type);
  if (value->type_ != GgufType::kArray) return read_elements(value->type_, 1, value);
  uint32_t element_type = 0;
  uint64_t count = 0;
  HEADRACE_RETURN_IF_ERROR(read_number(&element_type));
  HEADRACE_RETURN_IF_ERROR(read_number(&count));
  if (element_type == static_cast<uint32_t>(GgufType::kArray)) {
    return malformed("", "an array of arrays is not read: no model uses one");
  }
  if (element_type > static_cast<uint32_t>(GgufType::kF64)) {
    return malformed("", "element type {} is unknown", element_type);
  }
  return read_elements(static_cast<GgufType>(element_type), count, value);
}

Status GgufParser::read_metadata(uint64_t count, GgufFile::Metadata* metadata) {
  for (uint64_t i = 0; i < count; ++i) {
    std::string key;
    const Status key_status = append_string(&key, kMaxNameBytes);
    if (!key_status.ok()) return key_status.within(fmt::format("key {} of {}", i + 1, count));
    if (key.empty()) return malformed(fmt::format("key {} of {}", i + 1, count), "is empty");
    GgufValue value;
    const Status value_status = read_value(&value);
    if (!value_status.ok()) return value_status.within(quote_name(key));
    if (metadata->contains(key)) return malformed(quote_name(key), "occurs twice in the metadata");
    metadata->emplace(std::move(key), std::move(value));
  }
  return Status();
}

Status GgufParser::read_tensor(TensorEntry* entry) {
  uint32_t dimensions = 0;
  HEADRACE_RETURN_IF_ERROR(read_number(&dimensions));
  if (dimensions == 0 || dimensions > kMaxDimensions) {
    return malformed("", "has {} dimensions; 1 to {} are read", dimensions, kMaxDimensions);
  }
  entry->shape.resize(dimensions);
  HEADRACE_RETURN_IF_ERROR(read_bytes(entry->shape.data(), dimensions * sizeof(uint64_t)));
  std::reverse(entry->shape.begin(), entry->shape.end());  // files have the innermost dimension first
  uint32_t type = 0;
  HEADRACE_RETURN_IF_ERROR(read_number(&type));
  HEADRACE_RETURN_IF_ERROR(read_number(&entry->offset));

  for (const uint64_t dimension : entry->shape) {
    if (dimension == 0) return malformed("", "shape {} has a dimension of zero", shape_text(entry->shape));
  }
  const auto elements = num_elements(entry->shape);
  if (!elements) return malformed("", "shape {} has more than 2^63 elements", shape_text(entry->shape));
  const auto dtype = dtype_from_ggml(type);
  if (!dtype) return unsupported("", "element type {} is not known", type);
  entry->dtype = *dtype;
  const DTypeInfo& info = dtype_info(*dtype);
  if (entry->shape.back() % static_cast<uint64_t>(info.block_size) != 0) {
    return malformed("", "rows of {} elements are no whole number of {}'s blocks of {}", entry->shape.back(), info.name,
                     info.block_size);
  }
  const auto bytes = row_bytes(*dtype, *elements);
  if (!bytes) return malformed("", "shape {} of {} does not fit in 64 bits", shape_text(entry->shape), info.name);
  entry->bytes = *bytes;
  return Status();
}

Status GgufParser::place_tensors(uint64_t alignment, std::vector<TensorEntry>* tensors) {
  std::unordered_set<std::string_view> names;
  for (const TensorEntry& entry : *tensors) {
    // Before the overlap, which two descriptions of one tensor have as well.
    if (!names.insert(entry.name).second) return malformed(quote_name(entry.name), "is the name of two tensors");
  }
  const auto data_start = checked_align(position_, alignment);
  if (!data_start) return malformed("header", "the data's start does not fit in 64 bits");
  for (TensorEntry& entry : *tensors) {
    const std::string place = quote_name(entry.name);
    if (entry.offset % alignment != 0) {
      return malformed(place, "offset {} is no multiple of the alignment {}", entry.offset, alignment);
    }
    const auto start = checked_add(*data_start, entry.offset);
    const auto end = start ? checked_add(*start, entry.bytes) : std::nullopt;
    if (!end || *end > source_.size()) {
      return malformed(place, "needs {} bytes from data offset {} on: beyond the file's {} bytes", entry.bytes,
                       entry.offset, source_.size());
    }
    entry.offset = *start;
  }
  std::vector<const TensorEntry*> sorted;
  sorted.reserve(tensors->size());
  for (const TensorEntry& entry : *tensors) sorted.push_back(&entry);
  std::sort(sorted.begin(), sorted.end(),
            [](const TensorEntry* a, const TensorEntry* b) { return a->offset < b->offset; });
  for (size_t i = 1; i < sorted.size(); ++i) {
    if (sorted[i]->offset < sorted[i - 1]->offset + sorted[i - 1]->bytes) {
      return malformed(quote_name(sorted[i]->name), "overlaps the bytes of {}", quote_name(sorted[i - 1]->name));
    }
  }
  return Status();
}

Result<GgufHeader> GgufParser::parse() {
  char magic[4] = {};
  uint32_t version = 0;
  uint64_t tensor_count = 0;
  uint64_t key_count = 0;
  const auto read_counts = [&]() -> Status {
    HEADRACE_RETURN_IF_ERROR(read_bytes(magic, sizeof magic));
    if (std::memcmp(magic, "GGUF", 4) != 0) return malformed("", "is no GGUF file: it does not start with 'GGUF'");
    HEADRACE_RETURN_IF_ERROR(read_number(&version));
    if ((version & 0xffff) == 0 && version != 0) {
      return unsupported("", "is a big-endian GGUF file; only little-endian ones are read");
    }
    if (version != 2 && version != 3) return unsupported("", "GGUF version {}; versions 2 and 3 are read", version);
    HEADRACE_RETURN_IF_ERROR(read_number(&tensor_count));
    HEADRACE_RETURN_IF_ERROR(read_number(&key_count));
    if (key_count > remaining() / kMinKeyBytes) {
      return malformed("", "{} metadata keys cannot fit in the {} bytes left", key_count, remaining());
    }
    if (tensor_count > remaining() / kMinTensorBytes) {
      return malformed("", "{} tensors cannot fit in the {} bytes left", tensor_count, remaining());
    }
    return Status();
  };
  if (const Status status = read_counts(); !status.ok()) return status.within("header");

  GgufHeader header;
  header.version = version;
  HEADRACE_RETURN_IF_ERROR(read_metadata(key_count, &header.metadata));

  uint64_t alignment = kDefaultAlignment;
  if (const auto it = header.metadata.find(kAlignmentKey); it != header.metadata.end()) {
    const GgufValue& value = it->second;
    const auto number = value.type() == GgufType::kU32 ? value.as_u64() : std::nullopt;
    if (!number) {
      return malformed(std::string(kAlignmentKey), "is a {}; it must be a u32", gguf_type_name(value.type()));
    }
    if (!std::has_single_bit(*number) || *number > kMaxAlignment) {
      return malformed(std::string(kAlignmentKey), "is {}: not a power of two from 1 to {}", *number, kMaxAlignment);
    }
    alignment = *number;
  }

  for (uint64_t i = 0; i < tensor_count; ++i) {
    TensorEntry entry;
    const Status name_status = append_string(&entry.name, kMaxNameBytes);
    if (!name_status.ok()) return name_status.within(fmt::format("tensor {} of {}", i + 1, tensor_count));
    if (entry.name.empty()) return malformed(fmt::format("tensor {} of {}", i + 1, tensor_count), "has no name");
    const Status status = read_tensor(&entry);
    if (!status.ok()) return status.within(quote_name(entry.name));
    header.tensors.push_back(std::move(entry));
  }
  HEADRACE_RETURN_IF_ERROR(place_tensors(alignment, &header.tensors));
  return header;
}

}  // namespace headrace
