#include "kv/kv_file.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <random>

#include "kv/kv_cache.h"

namespace headrace {
namespace {

using Bytes = std::vector<std::byte>;

KvCacheConfig make_config(KvDType dtype = KvDType::kF16) {
  KvCacheConfig config;
  config.layers = {KvLayout{dtype, 2, 6, 32}, KvLayout{dtype, 1, 40, 32}};
  config.num_blocks = 4;
  config.identity = {0x1122334455667788, 0x99aabbccddeeff00};
  return config;
}

std::shared_ptr<KvCache> make_cache(const KvCacheConfig& config) {
  auto cache = KvCache::create(config);
  REQUIRE(cache.ok());
  return cache.take();
}

std::vector<int32_t> make_tokens(int32_t count) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int32_t i = 0; i < count; ++i) tokens[static_cast<size_t>(i)] = i * 31 % 997;
  return tokens;
}

void fill_random(KvCache& cache, const KvSequence& sequence, uint32_t seed) {
  std::mt19937 random(seed);
  for (size_t layer = 0; layer < cache.config().layers.size(); ++layer) {
    const size_t size = cache.config().layers[layer].block_bytes();
    for (const int32_t block : sequence.block_ids()) {
      std::byte* data = cache.layer_data(static_cast<int32_t>(layer)) + static_cast<size_t>(block) * size;
      for (size_t i = 0; i < size; ++i) data[i] = static_cast<std::byte>(1 + random() % 255);
    }
  }
}

KvSequence stored(KvCache& cache, const std::vector<int32_t>& tokens, uint32_t seed = 1) {
  KvSequence sequence = cache.new_sequence();
  REQUIRE(cache.reserve(sequence, static_cast<int64_t>(tokens.size())).ok());
  fill_random(cache, sequence, seed);
  REQUIRE(cache.commit(sequence, tokens, static_cast<int64_t>(tokens.size())).ok());
  return sequence;
}

Bytes save(const KvCache& cache, const KvSequence& sequence, const std::vector<int32_t>& tokens) {
  Bytes file;
  const Status status = cache.save(sequence, tokens, [&](std::span<const std::byte> bytes) {
    file.insert(file.end(), bytes.begin(), bytes.end());
    return Status();
  });
  REQUIRE(status.ok());
  return file;
}

Result<KvCache::Restored> restore(KvCache& cache, const Bytes& file, std::string salt = {}) {
  const auto source = open_memory(file, "file", {});
  return cache.restore(*source, std::move(salt));
}

StatusCode restore_code(KvCache& cache, const Bytes& file) {
  const auto restored = restore(cache, file);
  const StatusCode code = restored.ok() ? StatusCode::kOk : restored.status().code();
  CHECK(cache.check_invariants().ok());
  if (!restored.ok()) {
    CHECK(cache.stats().free_blocks == cache.stats().num_blocks);
    CHECK(cache.stats().cached_blocks == 0);
  }
  return code;
}

template <class T>
void put(Bytes& file, size_t offset, T value) {
  std::memcpy(&file[offset], &value, sizeof(value));
}

// Makes a changed file consistent again, as a forger would.
void seal(Bytes& file) {
  put<uint64_t>(file, 56, file.size());
  put<uint64_t>(file, 64, hash64(file.data(), 64));
  put<uint64_t>(file, file.size() - 8, hash64(file.data(), file.size() - 8));
}

TEST_CASE("A saved sequence comes back, in another cache too") {
  for (const KvDType dtype : {KvDType::kF32, KvDType::kF16, KvDType::kBF16, KvDType::kQ8}) {
    for (const int32_t count : {0, 1, 15, 31, 32, 33, 64, 90}) {
      const auto config = make_config(dtype);
      auto cache = make_cache(config);
      const auto tokens = make_tokens(count);
      const KvSequence sequence = stored(*cache, tokens);
      const Bytes file = save(*cache, sequence, tokens);

      auto other = make_cache(config);
      auto restored = restore(*other, file);
      INFO(restored.status().to_string());
      REQUIRE(restored.ok());
      CHECK(restored->token_ids == tokens);
      CHECK(restored->sequence.num_tokens() == count);
      CHECK(save(*other, restored->sequence, tokens) == file);
      const KvSequence* all[] = {&restored->sequence};
      CHECK(other->check_invariants(all).ok());
      // Full blocks are bit for bit the same, and other sequences find them.
      const int32_t full = count / 32;
      for (int32_t i = 0; i < full; ++i) {
        for (int32_t layer = 0; layer < 2; ++layer) {
          const size_t size = config.layers[static_cast<size_t>(layer)].block_bytes();
          const auto at = [&](KvCache& c, const KvSequence& s) {
            return c.layer_data(layer) + static_cast<size_t>(s.block_ids()[static_cast<size_t>(i)]) * size;
          };
          CHECK(std::memcmp(at(*cache, sequence), at(*other, restored->sequence), size) == 0);
        }
      }
      KvSequence matching = other->new_sequence();
      CHECK(other->match_prefix(matching, tokens, count) == 32 * full);
      KvSequence salted = other->new_sequence("x");
      CHECK(other->match_prefix(salted, tokens, count) == 0);
    }
  }
}

TEST_CASE("A file tells nothing of what was in the block before") {
  for (const KvDType dtype : {KvDType::kF32, KvDType::kQ8}) {
    auto cache = make_cache(make_config(dtype));
    const auto tokens = make_tokens(5);
    Bytes files[2];
    for (uint32_t seed = 0; seed < 2; ++seed) {
      KvSequence sequence = stored(*cache, tokens, seed);
      // The stored positions are the same, the rest of the block is not.
      for (size_t layer = 0; layer < 2; ++layer) {
        const KvLayout& layout = cache->config().layers[layer];
        std::byte* block = cache->layer_data(static_cast<int32_t>(layer)) +
                           static_cast<size_t>(sequence.block_ids()[0]) * layout.block_bytes();
        const Bytes before(block, block + layout.block_bytes());
        Bytes cut = before;
        kv::zero_block_tail(layout, cut, 5);
        for (size_t i = 0; i < cut.size(); ++i) {
          if (cut[i] != std::byte{0}) block[i] = std::byte{7};
        }
        // 5 of 32 positions stay, in codes and in scales.
        const auto kept =
            static_cast<size_t>(std::ranges::count_if(cut, [](std::byte b) { return b != std::byte{0}; }));
        CHECK(kept * 32 == cut.size() * 5);
      }
      files[seed] = save(*cache, sequence, tokens);
    }
    CHECK(files[0] == files[1]);
  }
}

TEST_CASE("Zeroing a tail touches the positions of the layout, key by key and value by value") {
  const KvLayout layout{KvDType::kF32, 2, 3, 32};
  std::vector<float> block(layout.block_bytes() / 4, 1.0f);
  kv::zero_block_tail(layout, std::as_writable_bytes(std::span(block)), 18);
  for (size_t head = 0; head < 2; ++head) {
    const float* keys = block.data() + head * layout.head_bytes() / 4;
    const float* values = keys + layout.half_bytes() / 4;
    for (size_t token = 0; token < 32; ++token) {
      for (size_t d = 0; d < 3; ++d) {
        const float expected = token < 18 ? 1.0f : 0.0f;
        CHECK(keys[token / 16 * 3 * 16 + d * 16 + token % 16] == expected);
        CHECK(values[token * 3 + d] == expected);
      }
    }
  }
}

TEST_CASE("Zeroing a tail touches keys alone, or rows alone, where the layout has no more") {
  for (const KvContent content : {KvContent::kKeys, KvContent::kRows}) {
    const KvLayout layout{KvDType::kF32, 2, 3, 32, content};
    CHECK(layout.block_bytes() == 2 * layout.half_bytes());
    std::vector<float> block(layout.block_bytes() / 4, 1.0f);
    kv::zero_block_tail(layout, std::as_writable_bytes(std::span(block)), 18);
    for (size_t head = 0; head < 2; ++head) {
      const float* values = block.data() + head * layout.head_bytes() / 4;
      for (size_t token = 0; token < 32; ++token) {
        for (size_t d = 0; d < 3; ++d) {
          const size_t at = content == KvContent::kKeys ? token / 16 * 3 * 16 + d * 16 + token % 16 : token * 3 + d;
          CHECK(values[at] == (token < 18 ? 1.0f : 0.0f));
        }
      }
    }
  }
}

TEST_CASE("Rows of runs are kept where their last token is among those used") {
  const auto rows = [](int32_t block_size, int32_t run, int64_t first_token, int64_t used) {
    return kv::used_rows({KvDType::kF32, 1, 3, block_size, KvContent::kRows, run}, first_token, used);
  };
  for (const int32_t run : {1, 3, 4, 16, 40, 128}) {
    for (int64_t block = 0; block < 20; ++block) {
      const int64_t first = block * 32;
      for (int64_t used = 0; used <= 32; ++used) {
        int32_t ended = 0;
        for (int64_t token = first; token < first + used; ++token) ended += (token + 1) % run == 0 ? 1 : 0;
        REQUIRE(rows(32, run, first, used) == ended);
      }
    }
  }
  const KvLayout layout{KvDType::kF32, 1, 3, 32, KvContent::kRows, 4};
  std::vector<float> block(layout.block_bytes() / 4, 1.0f);
  REQUIRE(block.size() == 8 * 3);
  kv::zero_block_tail(layout, std::as_writable_bytes(std::span(block)), 5);
  for (size_t i = 0; i < block.size(); ++i) CHECK(block[i] == (i < 5 * 3 ? 1.0f : 0.0f));
}

TEST_CASE("Every changed byte is noticed") {
  auto cache = make_cache(make_config());
  const auto tokens = make_tokens(40);
  Bytes file;
  {
    const KvSequence sequence = stored(*cache, tokens);
    file = save(*cache, sequence, tokens);
  }
  cache->clear_prefix_index();
  // Each byte of the head and of the end, and every 37th between.
  for (size_t i = 0; i < file.size(); i += i < 300 || i + 50 > file.size() ? 1 : 37) {
    for (const int bit : {0, 7}) {
      Bytes damaged = file;
      damaged[i] ^= static_cast<std::byte>(1 << bit);
      INFO("byte " << i << " bit " << bit);
      CHECK(restore_code(*cache, damaged) == StatusCode::kMalformed);
    }
  }
  CHECK(restore_code(*cache, file) == StatusCode::kOk);
}

TEST_CASE("Every truncation and every addition is noticed") {
  auto cache = make_cache(make_config());
  const auto tokens = make_tokens(3);
  Bytes file;
  {
    const KvSequence sequence = stored(*cache, tokens);
    file = save(*cache, sequence, tokens);
  }
  for (size_t size = 0; size < file.size(); size += size < 200 ? 1 : 101) {
    CHECK(restore_code(*cache, Bytes(file.begin(), file.begin() + static_cast<ptrdiff_t>(size))) ==
          StatusCode::kMalformed);
  }
  Bytes longer = file;
  longer.push_back(std::byte{0});
  CHECK(restore_code(*cache, longer) == StatusCode::kMalformed);
  seal(longer);
  CHECK(restore_code(*cache, longer) == StatusCode::kMalformed);
}

TEST_CASE("A file of another model, version or layout is refused as such") {
  auto cache = make_cache(make_config());
  const auto tokens = make_tokens(40);
  Bytes file;
  {
    const KvSequence sequence = stored(*cache, tokens);
    file = save(*cache, sequence, tokens);
  }
  cache->clear_prefix_index();
  const auto code_in = [&](auto change) {
    auto config = make_config();
    change(config);
    auto other = make_cache(config);
    return restore_code(*other, file);
  };
  const auto refused = StatusCode::kFailedPrecondition;
  CHECK(code_in([](KvCacheConfig& c) { c.identity.low ^= 1; }) == refused);
  CHECK(code_in([](KvCacheConfig& c) { c.identity.high ^= 1; }) == refused);
  CHECK(code_in([](KvCacheConfig& c) { c.layers[0].dtype = c.layers[1].dtype = KvDType::kBF16; }) == refused);
  CHECK(code_in([](KvCacheConfig& c) { c.layers[0].block_size = c.layers[1].block_size = 16; }) == refused);
  CHECK(code_in([](KvCacheConfig& c) { c.layers.pop_back(); }) == refused);
  CHECK(code_in([](KvCacheConfig& c) { c.layers[1].head_dim = 42; }) == StatusCode::kMalformed);  // same identity
  CHECK(code_in([](KvCacheConfig& c) { c.num_blocks = 1; }) == StatusCode::kResourceExhausted);

  const auto code_of = [&](size_t offset, auto value) {
    Bytes changed = file;
    put(changed, offset, value);
    seal(changed);
    return restore_code(*cache, changed);
  };
  CHECK(code_of(8, uint32_t{2}) == refused);
  CHECK(code_of(12, kKvLayoutVersion + 1) == refused);
  CHECK(code_of(40, uint32_t{99}) == StatusCode::kMalformed);
  CHECK(code_of(40, uint32_t{0xffffffff}) == StatusCode::kMalformed);
  CHECK(code_of(44, uint32_t{1}) == StatusCode::kMalformed);
  CHECK(code_of(32, uint32_t{0xffffffff}) == refused);
}

TEST_CASE("Numbers that overflow are refused before anything is allocated") {
  auto cache = make_cache(make_config());
  const auto tokens = make_tokens(3);
  Bytes file;
  {
    const KvSequence sequence = stored(*cache, tokens);
    file = save(*cache, sequence, tokens);
  }
  for (const uint64_t count :
       {uint64_t{0}, uint64_t{2}, uint64_t{4}, uint64_t{1} << 40, uint64_t{1} << 61, uint64_t{1} << 62,
        (uint64_t{1} << 62) + 3, uint64_t{1} << 63, ~uint64_t{0}, ~uint64_t{0} - 30}) {
    Bytes changed = file;
    put<uint64_t>(changed, 48, count);
    seal(changed);
    INFO(count);
    CHECK(restore_code(*cache, changed) == StatusCode::kMalformed);
  }
  Bytes negative = file;
  put<int32_t>(negative, 72 + 2 * 8, -1);
  seal(negative);
  CHECK(restore_code(*cache, negative) == StatusCode::kMalformed);
}

TEST_CASE("A source that fails or changes leaves nothing behind") {
  auto cache = make_cache(make_config());
  const auto tokens = make_tokens(40);
  Bytes file;
  {
    const KvSequence sequence = stored(*cache, tokens);
    file = save(*cache, sequence, tokens);
  }
  cache->clear_prefix_index();
  int reads = 0;
  const auto run = [&](int fail_at, int change_at) {
    reads = 0;
    const auto source = open_reader(file.size(),
                                    [&, fail_at, change_at](uint64_t offset, std::byte* destination, uint64_t size) {
                                      std::memcpy(destination, file.data() + offset, size);
                                      const int read = reads++;
                                      if (read == change_at) destination[size / 2] ^= std::byte{4};
                                      return read != fail_at;
                                    },
                                    "host", {});
    const auto restored = cache->restore(*source);
    return restored.ok() ? StatusCode::kOk : restored.status().code();
  };
  CHECK(run(-1, -1) == StatusCode::kOk);
  const int total = reads;
  cache->clear_prefix_index();
  for (int i = 0; i < total; ++i) {
    CHECK(run(i, -1) == StatusCode::kIo);
    CHECK(cache->stats().free_blocks == 4);
  }
  // The second reading of the payload differs from the first, which was verified.
  CHECK(run(-1, total - 1) == StatusCode::kMalformed);
  CHECK(cache->stats().free_blocks == 4);
  CHECK(cache->stats().cached_blocks == 0);
}

TEST_CASE("A failing writer ends the save") {
  auto cache = make_cache(make_config());
  const auto tokens = make_tokens(40);
  const KvSequence sequence = stored(*cache, tokens);
  for (int fail_at = 0; fail_at < 8; ++fail_at) {
    int writes = 0;
    const Status status = cache->save(sequence, tokens, [&](std::span<const std::byte>) {
      return writes++ == fail_at ? io_error("disk", "full") : Status();
    });
    CHECK(status.code() == StatusCode::kIo);
    CHECK(writes == fail_at + 1);
  }
  CHECK(cache->save(sequence, make_tokens(39), [](auto) { return Status(); }).code() == StatusCode::kInvalidArgument);
  auto other = make_cache(make_config());
  CHECK(other->save(sequence, tokens, [](auto) { return Status(); }).code() == StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace headrace
