// Files of cached blocks: their form, the folder they are in, and a cache that loses blocks to them and gets them back.
#include "kv/block_tier.h"

#include <catch2/catch.hpp>

#include <filesystem>
#include <fstream>
#include <numeric>

#include <unistd.h>

#include "kv/kv_cache.h"
#include "unit/memory_tier.h"

using namespace headrace;
using namespace headrace::kv;
namespace fs = std::filesystem;

namespace {

TierRecord record_of(int32_t seed, uint64_t raw_bytes = 64) {
  TierRecord record;
  record.key = {{1, 2}, {static_cast<uint64_t>(seed), 4}, TierKind::kBlock};
  record.chain = {5, static_cast<uint64_t>(seed)};
  record.token_ids.resize(16);
  std::iota(record.token_ids.begin(), record.token_ids.end(), seed);
  record.raw_bytes = raw_bytes;
  return record;
}

std::vector<std::byte> bytes_of(size_t size, uint64_t seed) {
  std::vector<std::byte> out(size);
  for (size_t i = 0; i < size; ++i) out[i] = static_cast<std::byte>(seed + i / 4);
  return out;
}

// A folder that is gone with it.
struct TemporaryFolder {
  fs::path path = fs::temp_directory_path() / ("headrace_tier_" + std::to_string(::getpid()));
  TemporaryFolder() { fs::remove_all(path); }
  ~TemporaryFolder() { fs::remove_all(path); }
};

std::unique_ptr<BlockTier> open_folder(const fs::path& path, BlockTierConfig config = {}) {
  auto files = open_tier_folder(path.string());
  INFO(files.status().to_string());
  REQUIRE(files.ok());
  auto tier = BlockTier::open(files.take(), std::move(config));
  REQUIRE(tier.ok());
  return tier.take();
}

// What a tier gives for a record; nothing where it does not.
std::vector<std::byte> fetch_one(BlockTier& tier, const TierRecord& record) {
  std::vector<std::byte> got;
  auto fetch = std::make_shared<BlockFetch>(
      std::vector{record}, [&](size_t, std::span<const std::byte> raw) { got.assign(raw.begin(), raw.end()); });
  tier.fetch(fetch);
  if (!tier.threaded()) tier.drain();
  while (!fetch->done()) fetch->wait(std::chrono::seconds(1));
  return got;
}

const std::vector<BlockCodec> kCodecs =
    has_codec(BlockCodec::kZstd) ? std::vector{BlockCodec::kNone, BlockCodec::kZstd} : std::vector{BlockCodec::kNone};

}  // namespace

TEST_CASE("A record comes back whole, and no damaged one does") {
  for (const BlockCodec codec : kCodecs) {
    const TierRecord record = record_of(3, 300);
    const auto raw = bytes_of(300, 9);
    auto file = write_tier_record(record, raw, codec, 2);
    CHECK(file.size() <= largest_tier_record(record));
    std::vector<std::byte> got(300);
    REQUIRE(read_tier_record(file, record, got) == TierFault::kNone);
    CHECK(got == raw);
    for (size_t size = 0; size < file.size(); ++size) {
      CHECK(read_tier_record(std::span(file).first(size), record, got) != TierFault::kNone);
    }
    CHECK(read_tier_record(std::span(file).first(file.size() - 1), record, got) == TierFault::kTruncated);
    for (size_t bit = 0; bit < 8 * file.size(); ++bit) {
      file[bit / 8] ^= std::byte{1} << (bit % 8);
      // A codec may have bits that mean nothing.
      const TierFault fault = read_tier_record(file, record, got);
      REQUIRE((fault != TierFault::kNone || (codec != BlockCodec::kNone && got == raw)));
      file[bit / 8] ^= std::byte{1} << (bit % 8);
    }
    for (const int field : {0, 1, 2, 3, 4}) {
      TierRecord other = record;
      if (field == 0) ++other.key.tag.low;
      if (field == 1) ++other.key.key.high;
      if (field == 2) ++other.chain.low;
      if (field == 3) ++other.token_ids[7];
      if (field == 4) other.key.kind = TierKind::kState;
      CHECK(read_tier_record(file, other, got) == TierFault::kForeign);
    }
  }
}

TEST_CASE("A codec loses nothing, whatever the bytes are") {
  for (const BlockCodec codec : kCodecs) {
    for (const size_t size : {size_t{1}, size_t{7}, size_t{64}, size_t{4099}}) {
      for (const size_t element : {size_t{1}, size_t{2}, size_t{4}}) {
        const auto raw = bytes_of(size, element);
        const auto stored = compress_block(codec, element, raw);
        std::vector<std::byte> got(size);
        if (stored) {
          CHECK(stored->size() < size);
          REQUIRE(decompress_block(codec, element, *stored, got));
          CHECK(got == raw);
        }
      }
    }
  }
}

TEST_CASE("Names of files are those of keys, and other names are none") {
  const TierKey key{{0x0123456789abcdef, 0xfedcba9876543210}, {7, 8}, TierKind::kState};
  const std::string name = tier_file_name(key);
  CHECK(parse_tier_file_name(name) == key);
  for (const std::string& other : {std::string("notes.txt"), name + "x", "x" + name, name.substr(1), std::string()}) {
    CHECK_FALSE(parse_tier_file_name(other));
  }
  std::string upper = name;
  upper[0] = 'F';
  CHECK_FALSE(parse_tier_file_name(upper));
}

TEST_CASE("A folder's files serve the next tier, within their bytes, and no others are touched") {
  const TemporaryFolder folder;
  {
    const auto tier = open_folder(folder.path);
    for (int32_t i = 0; i < 8; ++i) tier->put({record_of(i), bytes_of(64, static_cast<uint64_t>(i))});
    tier->drain();
    CHECK(tier->stats().files == 8);
    CHECK(tier->stats().written_files == 8);
  }
  std::ofstream(folder.path / "notes.txt") << "mine";
  const uint64_t one = largest_tier_record(record_of(0));
  {
    const auto tier = open_folder(folder.path);
    CHECK(tier->stats().files == 8);
    CHECK(tier->stats().bytes == 8 * one);
    for (int32_t i = 0; i < 8; ++i) CHECK(fetch_one(*tier, record_of(i)) == bytes_of(64, static_cast<uint64_t>(i)));
    fetch_one(*tier, record_of(0));  // the least recently used no more
    CHECK(tier->stats().read_files == 9);
  }
  BlockTierConfig small;
  small.max_bytes = 3 * one;
  const auto tier = open_folder(folder.path, small);
  CHECK(tier->stats().files == 3);
  CHECK(tier->stats().evicted_files == 5);
  CHECK(tier->contains(record_of(0).key));
  for (int32_t i = 8; i < 20; ++i) {
    tier->put({record_of(i), bytes_of(64, static_cast<uint64_t>(i))});
    tier->drain();
    CHECK(tier->stats().bytes <= small.max_bytes);
  }
  uint64_t on_disk = 0;
  for (const auto& entry : fs::directory_iterator(folder.path)) {
    if (entry.path().extension() == ".kv") on_disk += entry.file_size();
  }
  CHECK(on_disk == tier->stats().bytes);
  CHECK(fs::exists(folder.path / "notes.txt"));
  tier->clear({1, 2});
  CHECK(tier->stats().files == 0);
  CHECK(fs::exists(folder.path / "notes.txt"));
}

TEST_CASE("A folder that is none is refused by its path") {
  const TemporaryFolder folder;
  CHECK(open_tier_folder((folder.path / "missing" / "tier").string()).status().code() == StatusCode::kIo);
  std::ofstream(folder.path.string()) << "a file";
  const auto refused = open_tier_folder(folder.path.string());
  CHECK(refused.status().code() == StatusCode::kIo);
  CHECK(refused.status().place() == folder.path.string());
}

TEST_CASE("What two tiers write to one folder stays within its bytes") {
  const TemporaryFolder folder;
  BlockTierConfig config;
  config.max_bytes = 64 * largest_tier_record(record_of(0));
  const auto a = open_folder(folder.path, config), b = open_folder(folder.path, config);
  for (int32_t i = 0; i < 200; ++i) {
    (i % 2 == 0 ? a : b)->put({record_of(i), bytes_of(64, 1)});
    a->drain();
    b->drain();
    uint64_t on_disk = 0;
    for (const auto& entry : fs::directory_iterator(folder.path)) on_disk += entry.file_size();
    REQUIRE(on_disk <= config.max_bytes + config.max_bytes / 8);
  }
  CHECK(a->stats().failed_writes + b->stats().failed_writes == 0);
}

TEST_CASE("Each fault of a file is counted by its name, and costs the file") {
  using Fault = MemoryFolder::ReadFault;
  auto folder = std::make_shared<MemoryFolder>();
  BlockTierConfig config;
  config.threaded = false;
  const auto tier = open_memory_tier(folder, config);
  const auto write = [&] {
    for (const int32_t i : {1, 2}) tier->put({record_of(i), bytes_of(64, static_cast<uint64_t>(i))});
    tier->drain();
    REQUIRE(tier->stats().files == 2);
  };
  for (const Fault fault : {Fault::kError, Fault::kShort, Fault::kFlip, Fault::kOther}) {
    write();
    folder->read_fault = fault;
    folder->fail_reads = 1;
    folder->flip = fault == Fault::kFlip ? 8 * 180 : 150;
    CHECK(fetch_one(*tier, record_of(1)).empty());
    CHECK_FALSE(tier->contains(record_of(1).key));
    CHECK(folder->files.size() == 1);
    CHECK(fetch_one(*tier, record_of(2)) == bytes_of(64, 2));
  }
  write();
  folder->files.clear();
  CHECK(fetch_one(*tier, record_of(1)).empty());
  CHECK(fetch_one(*tier, record_of(2)).empty());
  const KvDiskStats stats = tier->stats();
  CHECK(stats.unreadable_files == 1);
  CHECK(stats.truncated_files == 1);
  CHECK(stats.damaged_files == 1);
  CHECK(stats.foreign_files == 1);
  CHECK(stats.missing_files == 2);
  CHECK(stats.files == 0);

  folder->fail_writes = 1;
  tier->put({record_of(3), bytes_of(64, 3)});
  CHECK(tier->contains(record_of(3).key));
  CHECK(fetch_one(*tier, record_of(3)) == bytes_of(64, 3));  // from the copy that waits
  tier->drain();
  CHECK_FALSE(tier->contains(record_of(3).key));
  CHECK(tier->stats().failed_writes == 1);
}

TEST_CASE("Copies in memory need no folder, and the least recently used go") {
  BlockTierConfig config;
  config.host_bytes = 3 * 64;
  config.threaded = false;
  auto opened = BlockTier::open(nullptr, config);
  REQUIRE(opened.ok());
  const auto tier = opened.take();
  for (int32_t i = 0; i < 3; ++i) {
    REQUIRE(tier->lacks(record_of(i).key));
    REQUIRE(tier->has_room(64));
    tier->put({record_of(i), bytes_of(64, static_cast<uint64_t>(i))});
    CHECK_FALSE(tier->lacks(record_of(i).key));
  }
  CHECK(fetch_one(*tier, record_of(0)) == bytes_of(64, 0));
  tier->put({record_of(3), bytes_of(64, 3)});
  CHECK_FALSE(tier->contains(record_of(1).key));
  CHECK(fetch_one(*tier, record_of(1)).empty());
  for (const int32_t i : {0, 2, 3}) CHECK(fetch_one(*tier, record_of(i)) == bytes_of(64, static_cast<uint64_t>(i)));
  CHECK_FALSE(tier->has_room(3 * 64 + 1));

  // Of other tokens under the same key.
  TierRecord other = record_of(2);
  ++other.token_ids[7];
  CHECK(fetch_one(*tier, other).empty());
  CHECK_FALSE(tier->contains(record_of(2).key));

  const KvHostStats host = tier->host_stats();
  CHECK(host.max_bytes == 3 * 64);
  CHECK(host.bytes == 2 * 64);
  CHECK(host.copies == 2);
  CHECK(host.kept_copies == 4);
  CHECK(host.evicted_copies == 1);
  CHECK(host.read_copies == 4);
  CHECK(host.read_bytes == 4 * 64);
  CHECK(tier->stats().max_bytes == 0);
  CHECK(tier->stats().written_files + tier->stats().files == 0);
  CHECK(tier->stats().foreign_files == 1);
  tier->clear({1, 2});
  CHECK(tier->host_stats().bytes == 0);
  CHECK_FALSE(tier->contains(record_of(0).key));
}

TEST_CASE("A copy in memory and a file of the same are each read without the other") {
  auto folder = std::make_shared<MemoryFolder>();
  BlockTierConfig config;
  config.host_bytes = 2 * 64;
  config.max_queued_bytes = 64;
  config.threaded = false;
  const auto tier = open_memory_tier(folder, config);
  for (int32_t i = 0; i < 4; ++i) {
    tier->put({record_of(i), bytes_of(64, static_cast<uint64_t>(i))});
    tier->drain();
  }
  for (int32_t i = 0; i < 4; ++i) {
    CHECK(fetch_one(*tier, record_of(i)) == bytes_of(64, static_cast<uint64_t>(i)));
    // What only the disk has is kept again when it leaves the pool.
    CHECK(tier->lacks(record_of(i).key) == (i < 2));
  }
  CHECK(tier->stats().read_files == 2);
  CHECK(tier->host_stats().read_copies == 2);
  tier->put({record_of(0), bytes_of(64, 0)});
  CHECK(tier->stats().written_files == 4);
  folder->files.clear();
  CHECK(fetch_one(*tier, record_of(0)) == bytes_of(64, 0));
  CHECK(fetch_one(*tier, record_of(1)).empty());

  // What the disk does not take, memory still has.
  folder->fail_writes = 1;
  tier->put({record_of(5), bytes_of(64, 5)});
  tier->drain();
  CHECK(tier->stats().failed_writes == 1);
  CHECK(fetch_one(*tier, record_of(5)) == bytes_of(64, 5));
  for (const int32_t i : {6, 7}) tier->put({record_of(i), bytes_of(64, static_cast<uint64_t>(i))});
  CHECK(tier->stats().dropped_writes == 1);
  tier->drain();
  CHECK_FALSE(folder->files.contains(tier_file_name(record_of(7).key)));
  CHECK(fetch_one(*tier, record_of(7)) == bytes_of(64, 7));
}

TEST_CASE("Reads are predicted by those before, and what was not worth its time is tried again some time") {
  auto folder = std::make_shared<MemoryFolder>();
  BlockTierConfig config;
  config.threaded = false;
  int64_t now = 0, per_look = 0;
  config.clock_ns = [&] { return now += per_look; };
  const auto tier = open_memory_tier(folder, config);
  std::vector<TierRecord> records;
  for (int32_t i = 0; i < 4; ++i) {
    records.push_back(record_of(i));
    tier->put({record_of(i), bytes_of(64, 1)});
  }
  tier->drain();
  CHECK(tier->predict_ns(records) == 0.0);
  per_look = 1000;
  fetch_one(*tier, records[0]);
  CHECK(tier->predict_ns(records) == Approx(4000.0));
  tier->fetch(std::make_shared<BlockFetch>(std::vector{records[0], records[1]}, [](size_t, auto) {}));
  CHECK(tier->predict_ns(records) == Approx(6000.0));
  tier->fetch(std::make_shared<BlockFetch>(std::vector{records[0], records[1]}, [](size_t, auto) {}));
  CHECK(tier->predict_ns(std::span(records).first(1)) == Approx(3000.0));
  tier->drain();
  per_look = 9000;
  fetch_one(*tier, records[0]);
  CHECK(tier->predict_ns(records) == Approx(8000.0));
  for (int i = 0; i < 8; ++i) tier->forgo();
  CHECK(tier->predict_ns(records) < 4000.0);
}

// ---- a cache with a tier ----

namespace {

KvCacheConfig cache_config(int64_t num_blocks, uint64_t state_floats = 0) {
  KvCacheConfig config;
  config.layers = {KvLayout{KvDType::kF32, 1, 2, 16}, KvLayout{KvDType::kF32, 2, 4, 16}};
  config.num_blocks = num_blocks;
  config.identity = {1, 2};
  config.state_floats = state_floats;
  if (state_floats > 0) {
    config.num_states = 4;
    config.max_snapshots = 4;
    config.snapshot_interval = 32;
  }
  return config;
}

std::shared_ptr<KvCache> cache_on(const std::shared_ptr<MemoryFolder>& folder, KvCacheConfig config) {
  BlockTierConfig tier;
  tier.threaded = false;
  auto cache = KvCache::create(std::move(config), open_memory_tier(folder, tier));
  REQUIRE(cache.ok());
  return cache.take();
}

std::vector<int32_t> range(int32_t first, int32_t count) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

// Every byte of a block is a function of all tokens up to its end.
std::byte content(std::span<const int32_t> tokens, int64_t block, int32_t layer) {
  return static_cast<std::byte>(
      hash64(tokens.data(), static_cast<size_t>(block + 1) * 16 * sizeof(int32_t), static_cast<uint64_t>(layer)));
}

// Stands for forward passes up to the end of tokens; the state is the number of tokens before.
void compute(KvCache& cache, KvSequence& sequence, std::span<const int32_t> tokens) {
  const auto end = static_cast<int64_t>(tokens.size());
  REQUIRE(cache.reserve(sequence, end).ok());
  std::vector<KvStateSnapshot> snapshots;
  if (float* state = cache.open_state(sequence, end, snapshots)) {
    CHECK(state[0] == static_cast<float>(sequence.num_tokens()));
    state[0] = static_cast<float>(end);
    for (const KvStateSnapshot& snapshot : snapshots) snapshot.state[0] = static_cast<float>(snapshot.position);
  }
  for (int64_t block = sequence.num_tokens() / 16; (block + 1) * 16 <= end; ++block) {
    for (int32_t layer = 0; layer < 2; ++layer) {
      const size_t bytes = cache.config().layers[static_cast<size_t>(layer)].block_bytes();
      const auto id = static_cast<size_t>(sequence.block_ids()[static_cast<size_t>(block)]);
      std::memset(cache.layer_data(layer) + id * bytes, static_cast<int>(content(tokens, block, layer)), bytes);
    }
  }
  REQUIRE(cache.commit(sequence, tokens, end).ok());
}

bool holds(KvCache& cache, const KvSequence& sequence, std::span<const int32_t> tokens) {
  for (int64_t block = 0; (block + 1) * 16 <= sequence.num_tokens(); ++block) {
    for (int32_t layer = 0; layer < 2; ++layer) {
      const size_t bytes = cache.config().layers[static_cast<size_t>(layer)].block_bytes();
      const auto id = static_cast<size_t>(sequence.block_ids()[static_cast<size_t>(block)]);
      const std::byte* data = cache.layer_data(layer) + id * bytes;
      if (!std::all_of(data, data + bytes, [&](std::byte b) { return b == content(tokens, block, layer); }))
        return false;
    }
  }
  return true;
}

int64_t found(KvCache& cache, KvSequence& sequence, std::span<const int32_t> tokens) {
  const auto stored = cache.match_and_fetch(sequence, tokens, static_cast<int64_t>(tokens.size()));
  const Status law = cache.check_invariants();
  INFO(law.to_string());
  CHECK(law.ok());
  CHECK(holds(cache, sequence, tokens));
  return stored;
}

}  // namespace

TEST_CASE("Blocks that lost their place come back from disk, each to its salt and model alone") {
  for (const uint64_t hash_mask : {~uint64_t{0}, uint64_t{0}}) {
    auto folder = std::make_shared<MemoryFolder>();
    KvCacheConfig config = cache_config(6);
    config.hash_mask = hash_mask;
    const auto a = range(0, 80), b = range(1000, 80);
    {
      const auto cache = cache_on(folder, config);
      for (const auto* tokens : {&a, &b, &a, &b}) {
        KvSequence sequence = cache->new_sequence("tenant");
        const int64_t stored = found(*cache, sequence, *tokens);
        CHECK(stored == (cache->stats().evictions > 5 ? 80 : 0));
        compute(*cache, sequence, *tokens);
      }
      CHECK(cache->stats().disk_tokens > 0);
      KvSequence other = cache->new_sequence("another");
      CHECK(found(*cache, other, a) == 0);
      cache->flush_disk();
    }
    // The same in the next process, and nothing to another model.
    const auto cache = cache_on(folder, config);
    for (const auto* tokens : {&a, &b}) {
      KvSequence sequence = cache->new_sequence("tenant");
      CHECK(found(*cache, sequence, *tokens) == 80);
    }
    KvSequence middle = cache->new_sequence("tenant");
    CHECK(found(*cache, middle, std::span(a).subspan(16)) == 0);
    config.identity = {1, 3};
    const auto stranger = cache_on(folder, config);
    KvSequence sequence = stranger->new_sequence("tenant");
    CHECK(found(*stranger, sequence, a) == 0);
    CHECK(stranger->stats().disk.foreign_files == 0);
  }
}

TEST_CASE("Blocks that lost their place come back from memory") {
  for (const uint64_t state_floats : {uint64_t{0}, uint64_t{4}}) {
    BlockTierConfig config;
    config.host_bytes = 1 << 16;
    config.threaded = false;
    auto tier = BlockTier::open(nullptr, config);
    REQUIRE(tier.ok());
    auto made = KvCache::create(cache_config(6, state_floats), tier.take());
    REQUIRE(made.ok());
    const auto cache = made.take();
    const int64_t reusable = state_floats > 0 ? 64 : 80;  // up to the last snapshot
    const auto a = range(0, 80), b = range(1000, 80);
    for (int round = 0; round < 4; ++round) {
      for (const auto* tokens : {&a, &b}) {
        KvSequence sequence = cache->new_sequence();
        CHECK(found(*cache, sequence, *tokens) == (round == 0 ? 0 : reusable));
        if (sequence.num_tokens() < 80) compute(*cache, sequence, *tokens);
        cache->release(sequence);
        cache->block_tier()->drain();
      }
    }
    CHECK(cache->stats().disk_tokens > 3 * 64);
    CHECK(cache->stats().host.read_copies > 3 * 4);
    cache->clear_prefix_index();
    CHECK(cache->stats().host.bytes == 0);
    KvSequence sequence = cache->new_sequence();
    CHECK(found(*cache, sequence, a) == 0);
  }
}

TEST_CASE("A recurrent state comes back with the blocks before it") {
  auto folder = std::make_shared<MemoryFolder>();
  const auto tokens = range(0, 90);
  {
    const auto cache = cache_on(folder, cache_config(8, 4));
    KvSequence sequence = cache->new_sequence();
    compute(*cache, sequence, tokens);
    cache->release(sequence);
    cache->flush_disk();
  }
  const auto cache = cache_on(folder, cache_config(8, 4));
  KvSequence sequence = cache->new_sequence();
  CHECK(found(*cache, sequence, tokens) == 64);  // the last snapshot's place
  compute(*cache, sequence, tokens);             // checks the state too
  KvSequence again = cache->new_sequence();
  CHECK(found(*cache, again, tokens) == 64);  // in memory now
  CHECK(cache->stats().disk_tokens == 64);

  // Without its state's file none of the blocks is of use.
  std::erase_if(folder->files, [](const auto& file) { return file.first.ends_with(".state"); });
  const auto next = cache_on(folder, cache_config(8, 4));
  KvSequence third = next->new_sequence();
  CHECK(found(*next, third, tokens) == 0);
  compute(*next, third, tokens);
}

TEST_CASE("A damaged file in the middle leaves what lies before it") {
  auto folder = std::make_shared<MemoryFolder>();
  const auto tokens = range(0, 80);
  {
    const auto cache = cache_on(folder, cache_config(6));
    KvSequence sequence = cache->new_sequence();
    compute(*cache, sequence, tokens);
    cache->release(sequence);
    cache->flush_disk();
    REQUIRE(folder->files.size() == 5);
  }
  for (auto& [name, file] : folder->files) {
    // Token 32 is the first of the third block.
    int32_t first = 0;
    std::memcpy(&first, &file.bytes[112], sizeof first);
    if (first == 32) file.bytes[300] ^= std::byte{1};
  }
  const auto cache = cache_on(folder, cache_config(6));
  KvSequence sequence = cache->new_sequence();
  CHECK(found(*cache, sequence, tokens) == 32);
  CHECK(cache->stats().disk.damaged_files == 1);
  compute(*cache, sequence, tokens);
  CHECK(holds(*cache, sequence, tokens));
}

TEST_CASE("A fetch that is given up leaves the blocks to others") {
  auto folder = std::make_shared<MemoryFolder>();
  const auto tokens = range(0, 80);
  const auto cache = cache_on(folder, cache_config(6));
  {
    KvSequence sequence = cache->new_sequence();
    compute(*cache, sequence, tokens);
  }
  cache->flush_disk();
  {
    KvSequence other = cache->new_sequence();
    compute(*cache, other, range(500, 90));
  }
  KvSequence sequence = cache->new_sequence();
  cache->match_prefix(sequence, tokens, 80);
  REQUIRE(cache->begin_fetch(sequence, tokens, 80, nullptr) == 80);
  CHECK_FALSE(cache->commit(sequence, tokens, 80).ok());
  cache->block_tier()->run_one();
  cache->release(sequence);
  CHECK_FALSE(sequence.fetching());
  KvSequence other = cache->new_sequence();
  const auto others = range(700, 90);
  compute(*cache, other, others);
  cache->block_tier()->drain();
  CHECK(holds(*cache, other, others));
  CHECK(cache->stats().disk_tokens == 0);
}

TEST_CASE("A secret sequence leaves nothing, in memory or on disk") {
  auto folder = std::make_shared<MemoryFolder>();
  const auto cache = cache_on(folder, cache_config(6, 4));
  const auto tokens = range(0, 90);
  const auto wiped = [&] {
    for (int32_t layer = 0; layer < 2; ++layer) {
      const std::byte* data = cache->layer_data(layer);
      const size_t bytes = 6 * cache->config().layers[static_cast<size_t>(layer)].block_bytes();
      if (!std::all_of(data, data + bytes, [](std::byte b) { return b == std::byte{0}; })) return false;
    }
    return true;
  };
  {
    KvSequence sequence = cache->new_sequence({}, 0, true);
    compute(*cache, sequence, tokens);
    CHECK_FALSE(wiped());
    KvSequence copy = cache->fork(sequence);
    CHECK(copy.secret());
    cache->release(sequence);
    CHECK(holds(*cache, copy, tokens));
    const KvSequence* all[] = {&sequence, &copy};
    CHECK(cache->check_invariants(all).ok());
    KvSequence public_one = cache->new_sequence();
    CHECK(found(*cache, public_one, tokens) == 0);
  }
  CHECK(wiped());
  cache->flush_disk();
  CHECK(folder->files.empty());
  CHECK(cache->stats().disk.written_files == 0);
  CHECK(cache->stats().cached_blocks == 0);
}
