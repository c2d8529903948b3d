// Reads bytes as the header of a file of packed weights. The first byte chooses: odd inputs get a right magic, size and
// checksums first, so that the numbers behind them are reached.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "formats/packed_file.h"

using namespace headrace;

namespace {

void require(bool law) {
  if (!law) std::abort();
}

void put(std::vector<std::byte>& file, size_t offset, uint64_t value) {
  std::memcpy(&file[offset], &value, sizeof value);
}

void seal(std::vector<std::byte>& file) {
  std::memcpy(file.data(), "HRPACKED", 8);
  put(file, 32, file.size());
  uint64_t table_bytes = 0;
  std::memcpy(&table_bytes, &file[40], sizeof table_bytes);
  if (table_bytes <= file.size() - 64) put(file, 48, hash64(file.data() + 64, table_bytes));
  put(file, 56, hash64(file.data(), 56));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  std::vector<std::byte> file(bytes + 1, bytes + size);
  if ((data[0] & 1) != 0 && file.size() >= 64) seal(file);
  const auto source = open_memory(file, "input", {});
  auto header = read_packed_header(*source);
  if (!header.ok()) return 0;
  std::vector<std::span<const std::byte>> contents;
  size_t total = 0;
  for (const PackedTensor& tensor : header->tensors) {
    require(tensor.offset % 64 == 0 && tensor.offset <= file.size() && tensor.bytes <= file.size() - tensor.offset);
    contents.push_back(std::span(file).subspan(tensor.offset, tensor.bytes));
    total += tensor.bytes;
  }
  if (total > 1 << 20) return 0;  // tensors that overlap can be many times the file
  // What was read can be written, and is read again as it was.
  std::vector<std::byte> again;
  const auto write = [&](std::span<const std::byte> part) {
    again.insert(again.end(), part.begin(), part.end());
    return Status();
  };
  require(write_packed_file(*header, contents, write).ok());
  const auto second = open_memory(again, "again", {});
  const auto read = read_packed_header(*second);
  require(read.ok() && read->identity == header->identity && read->layout == header->layout);
  require(read->tensors.size() == header->tensors.size());
  for (size_t i = 0; i < contents.size(); ++i) {
    const PackedTensor& tensor = read->tensors[i];
    require(tensor.name == header->tensors[i].name && tensor.bytes == contents[i].size());
    require(tensor.checksum == hash64(contents[i].data(), contents[i].size()));
    require(std::equal(contents[i].begin(), contents[i].end(), again.begin() + static_cast<ptrdiff_t>(tensor.offset)));
  }
  return 0;
}
