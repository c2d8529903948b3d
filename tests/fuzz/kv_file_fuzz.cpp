// Restores bytes as a saved sequence. The first byte chooses: odd inputs get right checksums and sizes first,
// so that the numbers behind them are reached.
#include <cstdlib>
#include <cstring>
#include <vector>

#include "kv/kv_cache.h"

using headrace::KvCache;
using headrace::KvCacheConfig;
using headrace::KvDType;
using headrace::KvLayout;
using headrace::KvSequence;

namespace {

void require(bool law) {
  if (!law) std::abort();
}

void put(std::vector<std::byte>& file, size_t offset, uint64_t value) {
  std::memcpy(&file[offset], &value, sizeof(value));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  std::vector<std::byte> file(bytes + 1, bytes + size);
  if ((data[0] & 1) != 0 && file.size() >= 80) {
    put(file, 56, file.size());
    put(file, 64, headrace::hash64(file.data(), 64));
    put(file, file.size() - 8, headrace::hash64(file.data(), file.size() - 8));
  }
  KvCacheConfig config;
  config.layers = {KvLayout{KvDType::kQ8, 1, 2, 16}, KvLayout{KvDType::kQ8, 1, 4, 16}};
  config.num_blocks = 3;
  config.identity = {1, 2};
  auto cache = KvCache::create(config);
  require(cache.ok());
  const auto source = headrace::open_memory(file, "input", {});
  auto restored = (*cache)->restore(*source);
  if (!restored.ok()) {
    require((*cache)->check_invariants().ok());
    require((*cache)->stats().free_blocks == 3);
    return 0;
  }
  const KvSequence* all[] = {&restored->sequence};
  require((*cache)->check_invariants(all).ok());
  std::vector<std::byte> again;
  const auto write = [&](std::span<const std::byte> part) {
    again.insert(again.end(), part.begin(), part.end());
    return headrace::Status();
  };
  require((*cache)->save(restored->sequence, restored->token_ids, write).ok());
  // A forged file may have something behind the last token; what is before comes back as it was.
  require(again.size() == file.size());
  const size_t head = 72 + 2 * 8 + 4 * restored->token_ids.size();
  require(std::memcmp(again.data(), file.data(), head) == 0);
  return 0;
}
