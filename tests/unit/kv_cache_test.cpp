#include "kv/kv_cache.h"

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <cstdio>
#include <cstring>
#include <random>
#include <thread>

namespace headrace {
namespace {

KvCacheConfig make_config(int64_t num_blocks, bool prefix_index = true) {
  KvCacheConfig config;
  config.layers = {KvLayout{KvDType::kF32, 1, 2, 16}, KvLayout{KvDType::kF32, 2, 4, 16}};
  config.num_blocks = num_blocks;
  config.prefix_index = prefix_index;
  config.identity = {1, 2};
  return config;
}

std::shared_ptr<KvCache> make_cache(const KvCacheConfig& config) {
  auto cache = KvCache::create(config);
  REQUIRE(cache.ok());
  return cache.take();
}

void require_ok(const Status& status) {
  INFO(status.to_string());
  REQUIRE(status.ok());
}

std::vector<int32_t> range(int32_t first, int32_t count) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int32_t i = 0; i < count; ++i) tokens[static_cast<size_t>(i)] = first + i;
  return tokens;
}

// A position's mark in its block: one float per layer, at the value row of the last head.
float& mark(KvCache& cache, size_t layer, int64_t slot) {
  const KvLayout& layout = cache.config().layers[layer];
  std::byte* block = cache.layer_data(static_cast<int32_t>(layer)) +
                     static_cast<size_t>(slot / layout.block_size) * layout.block_bytes();
  std::byte* values = block + layout.block_bytes() - layout.half_bytes();
  return reinterpret_cast<float*>(values)[(slot % layout.block_size) * layout.head_dim];
}

// Stands for a forward pass: a position's values are a function of all tokens up to it (and of the salt).
float content(const std::vector<int32_t>& tokens, int64_t position, size_t layer, int32_t salt) {
  const uint64_t hash = hash64(tokens.data(), static_cast<size_t>(position + 1) * sizeof(int32_t),
                               layer * 1000 + static_cast<uint64_t>(salt));
  return static_cast<float>(hash % 1000003);
}

void write_positions(KvCache& cache, const KvSequence& sequence, const std::vector<int32_t>& tokens, int64_t end,
                     int32_t salt = 0) {
  for (int64_t position = sequence.num_tokens(); position < end; ++position) {
    for (size_t layer = 0; layer < cache.config().layers.size(); ++layer) {
      mark(cache, layer, cache.slot(sequence, position)) = content(tokens, position, layer, salt);
    }
  }
}

bool holds(KvCache& cache, const KvSequence& sequence, const std::vector<int32_t>& tokens, int32_t salt = 0) {
  for (int64_t position = 0; position < sequence.num_tokens(); ++position) {
    for (size_t layer = 0; layer < cache.config().layers.size(); ++layer) {
      if (mark(cache, layer, cache.slot(sequence, position)) != content(tokens, position, layer, salt)) return false;
    }
  }
  return true;
}

// Reserve, write and commit up to the end of tokens.
void run_to(KvCache& cache, KvSequence& sequence, const std::vector<int32_t>& tokens) {
  const auto end = static_cast<int64_t>(tokens.size());
  require_ok(cache.reserve(sequence, end));
  write_positions(cache, sequence, tokens, end);
  require_ok(cache.commit(sequence, tokens, end));
}

TEST_CASE("A second sequence takes the full blocks of the first") {
  auto cache = make_cache(make_config(8));
  const auto tokens = range(100, 40);
  KvSequence first = cache->new_sequence();
  CHECK(cache->match_prefix(first, tokens, 40) == 0);
  run_to(*cache, first, tokens);
  CHECK(cache->stats().cached_blocks == 2);

  KvSequence second = cache->new_sequence();
  CHECK(cache->match_prefix(second, tokens, 39) == 32);
  CHECK(second.block_ids()[1] == first.block_ids()[1]);
  CHECK(holds(*cache, second, tokens));
  CHECK(cache->match_prefix(second, tokens, 39) == 0);  // no longer empty
  KvSequence third = cache->new_sequence();
  CHECK(cache->match_prefix(third, tokens, 31) == 16);
  auto other = tokens;
  other[17] = 5;
  KvSequence fourth = cache->new_sequence();
  CHECK(cache->match_prefix(fourth, other, 40) == 16);
  KvSequence fifth = cache->new_sequence();
  CHECK(cache->match_prefix(fifth, std::span(tokens).subspan(16), 24) == 0);  // the same tokens after another prefix
  const KvSequence* all[] = {&first, &second, &third, &fourth, &fifth};
  require_ok(cache->check_invariants(all));
  const auto stats = cache->stats();
  CHECK(stats.hit_tokens == 32 + 16 + 16);
  CHECK(stats.lookup_tokens == 40 + 39 + 31 + 40 + 24);
  CHECK(stats.free_blocks == 5);
}

TEST_CASE("Salts and identities keep blocks apart") {
  auto cache = make_cache(make_config(8));
  const auto tokens = range(0, 16);
  KvSequence a = cache->new_sequence("tenant a");
  run_to(*cache, a, tokens);
  KvSequence b = cache->new_sequence("tenant b");
  CHECK(cache->match_prefix(b, tokens, 16) == 0);
  KvSequence none = cache->new_sequence();
  CHECK(cache->match_prefix(none, tokens, 16) == 0);
  KvSequence again = cache->new_sequence("tenant a");
  CHECK(cache->match_prefix(again, tokens, 16) == 16);
}

TEST_CASE("Colliding hashes do not serve another block") {
  auto config = make_config(32);
  config.hash_mask = 0;  // every block has the same hash
  auto cache = make_cache(config);
  const auto tokens = range(0, 48);
  KvSequence first = cache->new_sequence("a");
  run_to(*cache, first, tokens);

  auto other = tokens;
  std::rotate(other.begin(), other.begin() + 16,
              other.end());  // block 1's tokens at the front, 2's after them
  KvSequence second = cache->new_sequence("a");
  CHECK(cache->match_prefix(second, other, 48) == 0);
  run_to(*cache, second, other);
  KvSequence tenant = cache->new_sequence("b");
  CHECK(cache->match_prefix(tenant, tokens, 48) == 0);
  run_to(*cache, tenant, tokens);
  CHECK(cache->stats().cached_blocks == 9);  // all live side by side

  KvSequence mixed = cache->new_sequence("a");
  auto path = range(0, 32);
  for (int i = 0; i < 16; ++i) path[static_cast<size_t>(16 + i)] = i;  // block 0 twice: known tokens, unknown chain
  CHECK(cache->match_prefix(mixed, path, 32) == 16);
  KvSequence third = cache->new_sequence("a");
  CHECK(cache->match_prefix(third, other, 48) == 48);
  CHECK(holds(*cache, third, other));
  const KvSequence* all[] = {&first, &second, &tenant, &mixed, &third};
  require_ok(cache->check_invariants(all));
}

TEST_CASE("The second sequence to publish a block takes the first one's") {
  auto cache = make_cache(make_config(8));
  const auto tokens = range(0, 20);
  KvSequence a = cache->new_sequence();
  KvSequence b = cache->new_sequence();
  require_ok(cache->reserve(a, 20));
  require_ok(cache->reserve(b, 20));
  CHECK(cache->stats().free_blocks == 4);
  write_positions(*cache, a, tokens, 20);
  write_positions(*cache, b, tokens, 20);
  require_ok(cache->commit(a, tokens, 20));
  require_ok(cache->commit(b, tokens, 20));
  CHECK(a.block_ids()[0] == b.block_ids()[0]);
  CHECK(a.block_ids()[1] != b.block_ids()[1]);
  CHECK(cache->stats().free_blocks == 5);
  CHECK(holds(*cache, b, tokens));
  const KvSequence* all[] = {&a, &b};
  require_ok(cache->check_invariants(all));
}

TEST_CASE("Shared and published blocks are copied before they are written") {
  auto cache = make_cache(make_config(8));
  auto tokens = range(0, 20);
  KvSequence a = cache->new_sequence();
  run_to(*cache, a, tokens);
  KvSequence b = cache->fork(a);
  CHECK(b.num_tokens() == 20);
  CHECK(b.block_ids() == a.block_ids());
  auto branch = tokens;
  branch.push_back(777);
  run_to(*cache, b, branch);
  CHECK(b.block_ids()[1] != a.block_ids()[1]);
  tokens.push_back(888);
  const auto own = a.block_ids();
  run_to(*cache, a, tokens);
  CHECK(a.block_ids() == own);  // nobody shares it any more
  CHECK(holds(*cache, a, tokens));
  CHECK(holds(*cache, b, branch));

  // Into the middle of a published block: the index keeps the original.
  const int32_t published = a.block_ids()[0];
  cache->rewind(a, 5);
  CHECK(a.block_ids() == std::vector<int32_t>{published});
  auto rewritten = range(0, 5);
  rewritten.resize(16, 9);
  run_to(*cache, a, rewritten);
  CHECK(a.block_ids()[0] != published);
  CHECK(holds(*cache, a, rewritten));
  CHECK(holds(*cache, b, branch));
  KvSequence c = cache->new_sequence();
  CHECK(cache->match_prefix(c, tokens, 20) == 16);
  CHECK(c.block_ids()[0] == published);
  const KvSequence* all[] = {&a, &b, &c};
  require_ok(cache->check_invariants(all));
}

TEST_CASE("Released blocks are evicted tail first, the oldest sequence first") {
  auto cache = make_cache(make_config(4));
  const auto old_tokens = range(0, 32);
  const auto new_tokens = range(1000, 32);
  {
    KvSequence a = cache->new_sequence();
    run_to(*cache, a, old_tokens);
  }
  {
    KvSequence b = cache->new_sequence();
    run_to(*cache, b, new_tokens);
  }
  CHECK(cache->stats().free_blocks == 4);
  CHECK(cache->stats().cached_blocks == 4);
  const auto matched = [&](const std::vector<int32_t>& tokens) {
    KvSequence probe = cache->new_sequence();
    return cache->match_prefix(probe, tokens, 32);
  };
  KvSequence c = cache->new_sequence();
  require_ok(cache->reserve(c, 1));
  CHECK(cache->stats().evictions == 1);
  CHECK(matched(old_tokens) == 16);  // its tail went; now it is the younger one
  require_ok(cache->check_invariants());
  require_ok(cache->reserve(c, 33));
  CHECK(matched(new_tokens) == 0);
  CHECK(matched(old_tokens) == 16);
  cache->clear_prefix_index();
  CHECK(matched(old_tokens) == 0);
  CHECK(cache->stats().cached_blocks == 0);
  CHECK(cache->stats().evictions == 3);
  require_ok(cache->check_invariants());
}

TEST_CASE("A pool that is too small changes nothing") {
  auto cache = make_cache(make_config(3));
  const auto tokens = range(0, 20);
  KvSequence a = cache->new_sequence();
  run_to(*cache, a, tokens);
  KvSequence b = cache->fork(a);
  const auto before = b.block_ids();
  CHECK(cache->reserve(b, 33).code() == StatusCode::kResourceExhausted);  // a copy and a block
  CHECK(cache->reserve(b, int64_t{1} << 62).code() == StatusCode::kResourceExhausted);
  CHECK(b.block_ids() == before);
  require_ok(cache->reserve(b, 32));
  KvSequence c = cache->new_sequence();
  CHECK(cache->reserve(c, 1).code() == StatusCode::kResourceExhausted);
  cache->release(b);
  require_ok(cache->reserve(c, 16));
  const KvSequence* all[] = {&a, &b, &c};
  require_ok(cache->check_invariants(all));
}

TEST_CASE("Commits that contradict the sequence are refused") {
  auto cache = make_cache(make_config(4));
  auto other = make_cache(make_config(4));
  const auto tokens = range(0, 40);
  KvSequence a = cache->new_sequence();
  CHECK(cache->commit(a, tokens, 1).code() == StatusCode::kInvalidArgument);  // no room
  run_to(*cache, a, range(0, 20));
  CHECK(cache->commit(a, tokens, 19).code() == StatusCode::kInvalidArgument);
  CHECK(cache->commit(a, std::span(tokens).first(20), 21).code() == StatusCode::kInvalidArgument);
  cache->rewind(a, 8);
  CHECK(cache->commit(a, range(5, 16), 16).code() == StatusCode::kInvalidArgument);  // written without a reserve
  CHECK(other->commit(a, tokens, 20).code() == StatusCode::kInvalidArgument);
  CHECK(other->reserve(a, 40).code() == StatusCode::kInvalidArgument);
  CHECK(other->match_prefix(a, tokens, 40) == 0);
  CHECK(other->fork(a).num_tokens() == 0);
  const KvSequence* all[] = {&a};
  require_ok(cache->check_invariants(all));
}

TEST_CASE("Sequences move, and outlive their maker's handle") {
  auto cache = make_cache(make_config(4));
  const auto tokens = range(0, 20);
  KvSequence a = cache->new_sequence();
  run_to(*cache, a, tokens);
  KvSequence b = std::move(a);
  CHECK(b.num_tokens() == 20);
  KvSequence c = cache->new_sequence();
  run_to(*cache, c, range(50, 20));
  CHECK(cache->stats().free_blocks == 0);
  c = std::move(b);
  CHECK(cache->stats().free_blocks == 2);
  CHECK(holds(*cache, c, tokens));
  const std::weak_ptr<KvCache> weak = cache;
  cache.reset();
  CHECK_FALSE(weak.expired());
  c = KvSequence();
  CHECK(weak.expired());
}

TEST_CASE("Configurations that cannot hold a token are refused") {
  const auto code = [](auto change) {
    auto config = make_config(4);
    change(config);
    const auto cache = KvCache::create(config);
    return cache.ok() ? StatusCode::kOk : cache.status().code();
  };
  const auto bad = StatusCode::kInvalidArgument;
  CHECK(code([](KvCacheConfig&) {}) == StatusCode::kOk);
  CHECK(code([](KvCacheConfig& c) { c.layers.clear(); }) == bad);
  CHECK(code([](KvCacheConfig& c) { c.num_blocks = 0; }) == bad);
  CHECK(code([](KvCacheConfig& c) { c.num_blocks = -1; }) == bad);
  CHECK(code([](KvCacheConfig& c) { c.num_blocks = int64_t{1} << 31; }) == bad);
  CHECK(code([](KvCacheConfig& c) { c.layers[0].block_size = 0; }) == bad);
  CHECK(code([](KvCacheConfig& c) { c.layers[0].block_size = c.layers[1].block_size = 24; }) == bad);
  CHECK(code([](KvCacheConfig& c) { c.layers[1].block_size = 32; }) == bad);
  CHECK(code([](KvCacheConfig& c) { c.layers[1].dtype = KvDType::kF16; }) == bad);
  CHECK(code([](KvCacheConfig& c) { c.layers[0].dtype = c.layers[1].dtype = static_cast<KvDType>(9); }) == bad);
  CHECK(code([](KvCacheConfig& c) { c.layers[1].head_dim = 0; }) == bad);
  CHECK(code([](KvCacheConfig& c) { c.layers[1].num_kv_heads = -3; }) == bad);
  CHECK(code([](KvCacheConfig& c) {
          c.layers[0].num_kv_heads = c.layers[0].head_dim = 1 << 16;
          c.layers[0].block_size = c.layers[1].block_size = 1 << 15;
          c.num_blocks = 1 << 20;
        }) == bad);  // 2^70 bytes
  CHECK(code([](KvCacheConfig& c) {
          c.layers[0].num_kv_heads = c.layers[0].head_dim = 1 << 16;
          c.num_blocks = 1 << 17;
        }) == StatusCode::kOutOfMemory);  // 2^56 bytes, more than there are addresses
}

TEST_CASE("A large pool costs no memory before it is used") {
  auto config = make_config(1 << 16);
  config.layers = {KvLayout{KvDType::kF16, 8, 128, 16}};  // 4 GiB
  const auto resident_pages = [] {
    long total = 0;
    long resident = 0;
    FILE* file = std::fopen("/proc/self/statm", "r");
    REQUIRE(file != nullptr);
    const int fields = std::fscanf(file, "%ld %ld", &total, &resident);
    std::fclose(file);
    REQUIRE(fields == 2);
    return resident;
  };
  const long before = resident_pages();
  auto cache = make_cache(config);
  CHECK(cache->stats().pool_bytes == uint64_t{4} << 30);
  CHECK((resident_pages() - before) * 4096 < 64 << 20);  // the index: 16 tokens and a node per block
  CHECK(reinterpret_cast<uintptr_t>(cache->layer_data(0)) % 64 == 0);
}

// Random operations in any order against what each sequence must contain.
void run_random(uint32_t seed, const KvCacheConfig& config, int steps) {
  std::mt19937 random(seed);
  const auto below = [&](uint64_t n) { return static_cast<int64_t>(random() % n); };
  auto cache = make_cache(config);
  struct Model {
    KvSequence sequence;
    std::vector<int32_t> tokens;  // stored ones
    int32_t salt = 0;
  };
  std::vector<std::unique_ptr<Model>> models;
  int64_t exhausted = 0;
  int64_t hits = 0;
  // Few different tokens in runs of whole blocks, so that sequences meet again.
  const auto extend = [&](std::vector<int32_t> tokens, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      const auto position = static_cast<int64_t>(tokens.size());
      const bool fresh = position % config.layers[0].block_size == 0;
      tokens.push_back(fresh ? static_cast<int32_t>(below(2)) : below(64) == 0 ? 7 : tokens.back());
    }
    return tokens;
  };
  for (int step = 0; step < steps; ++step) {
    const int64_t action = below(10);
    if (models.empty() || (action == 0 && models.size() < 12)) {
      auto model = std::make_unique<Model>();
      model->salt = static_cast<int32_t>(below(3)) / 2;
      model->sequence = cache->new_sequence(model->salt == 0 ? "" : "other");
      models.push_back(std::move(model));
    }
    Model& model = *models[static_cast<size_t>(below(models.size()))];
    switch (action) {
      case 1:
        if (models.size() < 12) {
          auto copy = std::make_unique<Model>();
          copy->sequence = cache->fork(model.sequence);
          copy->tokens = model.tokens;
          copy->salt = model.salt;
          models.push_back(std::move(copy));
        }
        break;
      case 2: {
        const int64_t keep = below(model.tokens.size() + 1);
        cache->rewind(model.sequence, keep);
        model.tokens.resize(static_cast<size_t>(keep));
        break;
      }
      case 3:
        cache->release(model.sequence);
        model.tokens.clear();
        break;
      case 4: models.erase(std::ranges::find_if(models, [&](const auto& m) { return m.get() == &model; })); break;
      case 5: {  // room that is not used
        const Status status = cache->reserve(model.sequence, model.sequence.num_tokens() + below(40));
        if (!status.ok()) REQUIRE(status.code() == StatusCode::kResourceExhausted);
        break;
      }
      case 6:
        if (below(20) == 0) cache->clear_prefix_index();
        break;
      default: {
        auto tokens = extend(model.tokens, 1 + below(50));
        if (model.tokens.empty()) {
          const int64_t found = cache->match_prefix(model.sequence, tokens, static_cast<int64_t>(tokens.size()) - 1);
          hits += found;
          REQUIRE(found == model.sequence.num_tokens());
          model.tokens.assign(tokens.begin(), tokens.begin() + found);
        }
        const auto before = model.sequence.block_ids();
        const Status status = cache->reserve(model.sequence, static_cast<int64_t>(tokens.size()));
        if (!status.ok()) {
          REQUIRE(status.code() == StatusCode::kResourceExhausted);
          REQUIRE(model.sequence.block_ids() == before);
          ++exhausted;
          break;
        }
        const auto end =
            model.sequence.num_tokens() + below(tokens.size() - static_cast<size_t>(model.sequence.num_tokens()) + 1);
        write_positions(*cache, model.sequence, tokens, end, model.salt);
        require_ok(cache->commit(model.sequence, tokens, end));
        tokens.resize(static_cast<size_t>(end));
        model.tokens = std::move(tokens);
      }
    }
    std::vector<const KvSequence*> all;
    for (const auto& m : models) all.push_back(&m->sequence);
    require_ok(cache->check_invariants(all));
    for (const auto& m : models) {
      if (m->sequence.num_tokens() != static_cast<int64_t>(m->tokens.size()) ||
          !holds(*cache, m->sequence, m->tokens, m->salt)) {
        FAIL("seed " << seed << " step " << step << ": a sequence lost its contents");
      }
    }
  }
  // The walk went through what it is for.
  CHECK(exhausted > 0);
  if (config.prefix_index) {
    CHECK(hits > 0);
    CHECK(cache->stats().evictions > 0);
  }
  models.clear();
  require_ok(cache->check_invariants());
  CHECK(cache->stats().free_blocks == config.num_blocks);
  cache->clear_prefix_index();
  CHECK(cache->stats().cached_blocks == 0);
  require_ok(cache->check_invariants());
}

TEST_CASE("Any order of operations keeps every sequence's contents") {
  for (uint32_t seed = 1; seed <= 6; ++seed) run_random(seed, make_config(24), 1500);
  run_random(10, make_config(24, false), 1500);
  auto colliding = make_config(24);
  colliding.hash_mask = 0;
  run_random(11, colliding, 1500);
  colliding.hash_mask = 3;
  run_random(12, colliding, 1500);
}

TEST_CASE("Threads may use sequences of one cache side by side") {
  auto cache = make_cache(make_config(64));
  std::atomic<int> failures{0};
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      for (int round = 0; round < 300; ++round) {
        const auto tokens = range(static_cast<int32_t>(random() % 3), 1 + static_cast<int32_t>(random() % 60));
        const auto end = static_cast<int64_t>(tokens.size());
        KvSequence sequence = cache->new_sequence();
        cache->match_prefix(sequence, tokens, end - 1);
        if (!cache->reserve(sequence, end).ok()) continue;
        write_positions(*cache, sequence, tokens, end);
        if (!cache->commit(sequence, tokens, end).ok() || !holds(*cache, sequence, tokens)) ++failures;
        KvSequence copy = cache->fork(sequence);
        cache->rewind(sequence, end / 2);
        if (!holds(*cache, copy, tokens) || !cache->check_invariants().ok()) ++failures;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(failures == 0);
  require_ok(cache->check_invariants());
  CHECK(cache->stats().free_blocks == 64);
}

}  // namespace
}  // namespace headrace
