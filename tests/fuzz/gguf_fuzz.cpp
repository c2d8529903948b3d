// Any bytes as a GGUF file: opening refuses or gives tensors whose every byte can be read and decoded.
#include <algorithm>
#include <cstdlib>
#include <vector>

#include "formats/gguf.h"
#include "tensor/dequantize.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace headrace;
  // The first byte says where the input is cut into two parts of a split model (0: one file).
  if (size < 1) return 0;
  const size_t cut = data[0] == 0 ? 0 : (size - 1) * data[0] / 256;
  const auto bytes = std::as_bytes(std::span(data + 1, size - 1));
  std::vector<std::shared_ptr<ByteSource>> sources;
  if (cut > 0) sources.push_back(open_memory(bytes.first(cut), "first", {}));
  sources.push_back(open_memory(bytes.subspan(cut), "second", {}));
  const auto file = GgufFile::open(std::move(sources));
  if (!file.ok()) {
    if (file.status().message().empty() || file.status().place().empty()) std::abort();
    return 0;
  }
  for (const auto& [key, value] : (*file)->metadata()) {
    (void)value.to_display();
    (void)(*file)->get_string(key).ok();
    (void)(*file)->get_u64(key).ok();
    (void)(*file)->get_i64(key).ok();
    (void)(*file)->get_f64(key).ok();
    (void)(*file)->get_bool(key).ok();
    (void)(*file)->get_string_array(key).ok();
    (void)(*file)->get_i32_array(key).ok();
    (void)(*file)->get_u64_array(key).ok();
    (void)(*file)->get_f32_array(key).ok();
    (void)(*file)->get_bool_array(key).ok();
  }
  constexpr uint64_t kMaxBytes = 16 * 1024;
  uint64_t total = 0;
  for (const TensorEntry& entry : (*file)->tensors()) {
    if ((*file)->find(entry.name) != &entry) std::abort();
    total += entry.bytes;
    const DTypeInfo& info = dtype_info(entry.dtype);
    const uint64_t block_bytes = static_cast<uint64_t>(info.block_bytes);
    const uint64_t blocks = std::min(entry.bytes, kMaxBytes) / block_bytes;
    std::vector<std::byte> raw(blocks * block_bytes);
    std::vector<float> values(blocks * static_cast<uint64_t>(info.block_size));
    // The last blocks: their end is the tensor's.
    if (!(*file)->read(entry, entry.bytes - raw.size(), raw).ok()) std::abort();
    if (!dequantize_row(entry.dtype, raw.data(), values.data(), static_cast<int64_t>(values.size())).ok()) std::abort();
    const std::byte* mapped = (*file)->mapped(entry);
    if (!dequantize_row(entry.dtype, mapped, values.data(), static_cast<int64_t>(values.size())).ok()) std::abort();
  }
  if (total != (*file)->total_bytes() || total > size) std::abort();
  return 0;
}
