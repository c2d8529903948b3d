// Any bytes as a safetensors file: opening refuses or gives tensors that tile the body and can be read and
// decoded.
#include <algorithm>
#include <cstdlib>
#include <vector>

#include "formats/safetensors.h"
#include "tensor/dequantize.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace headrace;
  const auto bytes = std::as_bytes(std::span(data, size));
  const auto file = SafetensorsFile::open({open_memory(bytes, "file", {})});
  if (!file.ok()) {
    if (file.status().message().empty() || file.status().place().empty()) std::abort();
    return 0;
  }
  constexpr uint64_t kMaxBytes = 16 * 1024;
  uint64_t total = 0;
  for (const TensorEntry& entry : (*file)->tensors()) {
    if ((*file)->find(entry.name) != &entry) std::abort();
    total += entry.bytes;
    const uint64_t element_bytes = static_cast<uint64_t>(dtype_info(entry.dtype).block_bytes);
    const uint64_t count = std::min(entry.bytes, kMaxBytes) / element_bytes;
    std::vector<std::byte> raw(count * element_bytes);
    std::vector<float> values(count);
    if (!(*file)->read(entry, entry.bytes - raw.size(), raw).ok()) std::abort();
    if (!dequantize_row(entry.dtype, raw.data(), values.data(), static_cast<int64_t>(count)).ok()) std::abort();
  }
  // The tensors and the header are the whole file.
  uint64_t header = 0;
  std::copy_n(data, sizeof header, reinterpret_cast<uint8_t*>(&header));
  if (total != (*file)->total_bytes() || total + header + sizeof header != size) std::abort();
  return 0;
}
