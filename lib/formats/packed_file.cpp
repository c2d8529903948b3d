#include "formats/packed_file.h"

#include <array>
#include <bit>
#include <cstring>
#include <new>
#include <optional>
#include <string_view>
#include <unordered_set>

#include "base/checked.h"

namespace headrace {
namespace {

static_assert(std::endian::native == std::endian::little, "packed weights are written as they lie in memory");

constexpr char kMagic[8] = {'H', 'R', 'P', 'A', 'C', 'K', 'E', 'D'};
constexpr uint64_t kPreludeBytes = 64;
constexpr uint64_t kHashedPreludeBytes = 56;
constexpr uint64_t kAlignment = 64;  // of the kernels' loads
constexpr uint64_t kFewestTensorBytes = 4 + 4 + 5 * 8;

template <class T>
void append(std::vector<std::byte>& out, T value) {
  const auto bytes = std::bit_cast<std::array<std::byte, sizeof(T)>>(value);
  out.insert(out.end(), bytes.begin(), bytes.end());
}

void append_name(std::vector<std::byte>& out, std::string_view name) {
  append(out, static_cast<uint32_t>(name.size()));
  const auto bytes = std::as_bytes(std::span(name));
  out.insert(out.end(), bytes.begin(), bytes.end());
}

// Takes numbers and names from the front of the table. Once one is not all there, nothing more is.
class TableReader {
 public:
  explicit TableReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <class T>
  std::optional<T> number() {
    if (!has(sizeof(T))) return std::nullopt;
    T value;
    std::memcpy(&value, bytes_.data(), sizeof value);
    bytes_ = bytes_.subspan(sizeof value);
    return value;
  }
  std::optional<std::string> name() {
    const auto size = number<uint32_t>();
    if (!size || !has(*size)) return std::nullopt;
    std::string text(reinterpret_cast<const char*>(bytes_.data()), *size);
    bytes_ = bytes_.subspan(*size);
    return text;
  }
  bool done() const { return bytes_.empty() && !failed_; }

 private:
  bool has(uint64_t size) {
    failed_ = failed_ || size > bytes_.size();
    return !failed_;
  }

  std::span<const std::byte> bytes_;
  bool failed_ = false;
};

std::optional<PackedTensor> read_tensor(TableReader& table) {
  auto name = table.name();
  const auto dtype = table.number<uint32_t>();
  const auto rows = table.number<uint64_t>(), cols = table.number<uint64_t>();
  const auto offset = table.number<uint64_t>(), bytes = table.number<uint64_t>();
  const auto checksum = table.number<uint64_t>();
  if (!checksum) return std::nullopt;  // or anything before it
  return PackedTensor{std::move(*name), static_cast<DType>(*dtype), *rows, *cols, *offset, *bytes, *checksum};
}

std::vector<std::byte> table_of(const PackedFileHeader& header) {
  std::vector<std::byte> table;
  append_name(table, header.layout);
  for (const PackedTensor& tensor : header.tensors) {
    append_name(table, tensor.name);
    append(table, static_cast<uint32_t>(tensor.dtype));
    for (const uint64_t number : {tensor.rows, tensor.cols, tensor.offset, tensor.bytes, tensor.checksum}) {
      append(table, number);
    }
  }
  return table;
}

uint64_t aligned(uint64_t offset) { return (offset + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

bool is_packed_file(ByteSource& source) {
  std::array<std::byte, sizeof kMagic> magic;
  return source.size() >= magic.size() && source.read(0, magic).ok() &&
         std::memcmp(magic.data(), kMagic, sizeof kMagic) == 0;
}

Result<PackedFileHeader> read_packed_header(ByteSource& source) {
  const std::string& name = source.name();
  if (!is_packed_file(source)) return malformed(name, "is no file of packed weights");
  std::array<std::byte, kPreludeBytes> prelude;
  if (source.size() < prelude.size()) return malformed(name, "{} bytes hold no header", source.size());
  HEADRACE_RETURN_IF_ERROR(source.read(0, prelude));
  const auto number = [&](size_t offset) {
    uint64_t value;
    std::memcpy(&value, &prelude[offset], sizeof value);
    return value;
  };
  if (number(56) != hash64(prelude.data(), kHashedPreludeBytes)) return malformed(name, "the header is damaged");
  const auto version = static_cast<uint32_t>(number(8)), count = static_cast<uint32_t>(number(8) >> 32);
  if (version != kPackedFileVersion) {
    return failed_precondition(name, "format version {} is not {}", version, kPackedFileVersion);
  }
  if (number(32) != source.size()) {
    return malformed(name, "has {} bytes, its header says {}", source.size(), number(32));
  }
  const uint64_t table_bytes = number(40);
  if (table_bytes > source.size() - kPreludeBytes || count > table_bytes / kFewestTensorBytes) {
    return malformed(name, "a table of {} bytes for {} tensors does not fit", table_bytes, count);
  }
  PackedFileHeader header;
  header.identity = {number(16), number(24)};
  try {
    std::vector<std::byte> bytes(static_cast<size_t>(table_bytes));
    HEADRACE_RETURN_IF_ERROR(source.read(kPreludeBytes, bytes));
    if (hash64(bytes.data(), bytes.size()) != number(48)) return malformed(name, "the table is damaged");
    TableReader table(bytes);
    auto layout = table.name();
    if (!layout) return malformed(name, "the table names no layout");
    header.layout = std::move(*layout);
    header.tensors.reserve(count);
    std::unordered_set<std::string_view> names;
    for (uint32_t i = 0; i < count; ++i) {
      auto tensor = read_tensor(table);
      if (!tensor) return malformed(name, "the table ends in tensor {} of {}", i, count);
      if (tensor->offset % kAlignment != 0 || tensor->offset > source.size() ||
          tensor->bytes > source.size() - tensor->offset) {
        return malformed(name, "tensor {} has {} bytes at {} in a file of {}", i, tensor->bytes, tensor->offset,
                         source.size());
      }
      header.tensors.push_back(std::move(*tensor));
      if (!names.insert(header.tensors.back().name).second) return malformed(name, "tensor {} has another's name", i);
    }
    if (!table.done()) return malformed(name, "the table has more than its {} tensors", count);
  } catch (const std::bad_alloc&) {
    return out_of_memory(name, "no memory for a table of {} bytes", table_bytes);
  }
  return header;
}

Status write_packed_file(PackedFileHeader& header, std::span<const std::span<const std::byte>> contents,
                         const WriteBytes& write) {
  if (contents.size() != header.tensors.size()) {
    return internal_error("packed file", "bytes of {} tensors for {}", contents.size(), header.tensors.size());
  }
  // The table's size does not depend on the numbers in it.
  uint64_t offset = kPreludeBytes + table_of(header).size();
  for (size_t i = 0; i < contents.size(); ++i) {
    PackedTensor& tensor = header.tensors[i];
    tensor.offset = aligned(offset);
    tensor.bytes = contents[i].size();
    tensor.checksum = hash64(contents[i].data(), contents[i].size());
    offset = tensor.offset + tensor.bytes;
  }
  const std::vector<std::byte> table = table_of(header);
  std::vector<std::byte> prelude;
  const auto magic = std::as_bytes(std::span(kMagic));
  prelude.insert(prelude.end(), magic.begin(), magic.end());
  append(prelude, kPackedFileVersion);
  append(prelude, static_cast<uint32_t>(contents.size()));
  append(prelude, header.identity.low);
  append(prelude, header.identity.high);
  append(prelude, aligned(offset));
  append<uint64_t>(prelude, table.size());
  append(prelude, hash64(table.data(), table.size()));
  append(prelude, hash64(prelude.data(), prelude.size()));
  uint64_t written = prelude.size() + table.size();
  const auto fill_up = [&]() -> Status {
    constexpr std::array<std::byte, kAlignment> kZeros = {};
    const uint64_t missing = aligned(written) - written;
    written += missing;
    return missing == 0 ? Status() : write(std::span(kZeros).first(static_cast<size_t>(missing)));
  };
  HEADRACE_RETURN_IF_ERROR(write(prelude));
  HEADRACE_RETURN_IF_ERROR(write(table));
  HEADRACE_RETURN_IF_ERROR(fill_up());
  for (const std::span<const std::byte> bytes : contents) {
    HEADRACE_RETURN_IF_ERROR(write(bytes));
    written += bytes.size();
    HEADRACE_RETURN_IF_ERROR(fill_up());
  }
  return Status();
}

}  // namespace headrace
