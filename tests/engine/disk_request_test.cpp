// Requests whose cached values went to disk and come back: with less memory than they need, after a restart, from damaged
// folders, cancelled on the way, of every kind of cache; parked sessions; and requests that leave nothing behind.
#include <catch2/catch.hpp>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>

#include <unistd.h>

#include "engine/real_requests.h"
#include "engine/toy_engine.h"
#include "kv/block_tier.h"

namespace fs = std::filesystem;
using namespace headrace;
using namespace headrace::engine;

namespace {

// A folder that is gone with it.
struct TemporaryFolder {
  fs::path path = fs::temp_directory_path() / ("headrace_disk_" + std::to_string(::getpid()));
  TemporaryFolder() { fs::remove_all(path); }
  ~TemporaryFolder() { fs::remove_all(path); }
};

size_t num_files(const fs::path& path) {
  return static_cast<size_t>(std::distance(fs::directory_iterator(path), fs::directory_iterator()));
}

std::vector<std::vector<int32_t>> toy_prompts() {
  std::vector<std::vector<int32_t>> prompts;
  for (uint64_t seed = 0; seed < 8; ++seed) prompts.push_back(toy::prompt_of(70 + seed, seed));
  return prompts;
}

// One after the other; the outputs are the definition's.
void run_each(Scheduler& scheduler, const std::vector<std::vector<int32_t>>& prompts, int64_t cached_at_least = 0) {
  for (const auto& prompt : prompts) {
    const toy::Output out = toy::run_one(scheduler, toy::request(prompt, 6)).only();
    CHECK(out.tokens == toy::greedy(toy::endless_logits, prompt, 6));
    CHECK(out.usage.cached_tokens >= cached_at_least);
  }
}

}  // namespace

TEST_CASE("Rows that the disk holds are not computed again, in a small pool or a new process") {
  for (const bool compressed : {false, true}) {
    if (compressed && !kv::has_codec(kv::BlockCodec::kZstd)) continue;
    const TemporaryFolder folder;
    toy::Toy world;
    world.options.kv_max_tokens = 16 * 6;  // one prompt at a time
    world.options.kv_disk_path = folder.path.string();
    world.options.kv_load = schedule::LoadChoice::kAlways;
    if (compressed) world.options.kv_disk_codec = kv::BlockCodec::kZstd;
    const auto prompts = toy_prompts();
    {
      const auto cache = world.cache();
      const auto scheduler = world.scheduler(cache);
      run_each(*scheduler, prompts);
      const auto first = scheduler->report();
      CHECK(first.metrics.disk_tokens == 0);
      run_each(*scheduler, prompts, 64);
      const auto second = scheduler->report();
      CHECK(second.metrics.reused_tokens == 8 * 64);
      CHECK(second.metrics.disk_tokens >= 7 * 64);
      uint64_t tails = 0;  // rows behind a prompt's last full block
      for (const auto& prompt : prompts) tails += prompt.size() % 16;
      CHECK(second.metrics.computed_tokens + second.metrics.decode_tokens -
                (first.metrics.computed_tokens + first.metrics.decode_tokens) ==
            tails + 8 * 5);
      CHECK(second.kv.disk.missing_files + second.kv.disk.damaged_files + second.kv.disk.foreign_files == 0);
      cache->flush_disk();
    }
    const auto scheduler = world.scheduler();
    run_each(*scheduler, prompts, 64);
    CHECK(scheduler->report().metrics.disk_tokens == 8 * 64);
  }
}

TEST_CASE("Many at once in a pool for one come to the definition's outputs by way of the disk or of memory") {
  const bool on_disk = GENERATE(true, false);
  const TemporaryFolder folder;
  toy::Toy world;
  world.options.kv_max_tokens = 16 * 8;
  if (on_disk) world.options.kv_disk_path = folder.path.string();
  if (!on_disk) world.options.kv_host_bytes = 1 << 20;
  world.options.kv_load = schedule::LoadChoice::kAlways;
  world.options.max_num_seqs = 4;
  const auto scheduler = world.scheduler();
  const auto prompts = toy_prompts();
  std::map<uint64_t, std::vector<int32_t>> asked;
  for (int round = 0; round < 3; ++round) {
    for (const auto& prompt : prompts) asked[toy::submit(*scheduler, toy::request(prompt, 30))] = prompt;
  }
  for (const auto& [id, outcome] : toy::run_all(*scheduler)) {
    CHECK(outcome.only().tokens == toy::greedy(toy::endless_logits, asked[id], 30));
  }
  CHECK(scheduler->report().metrics.disk_tokens > 0);
  CHECK(scheduler->report().metrics.forgone_loads == 0);
  CHECK((scheduler->kv_cache()->stats().host.read_copies > 0) == !on_disk);
}

TEST_CASE("Preempted sequences go on with what was moved out of the pool, or compute it again, as the option says") {
  using schedule::LoadChoice;
  const auto rows_computed = [](LoadChoice choice) {
    toy::Toy world;
    world.options.kv_max_tokens = 16 * 12;  // each of four grows to ten blocks
    world.options.kv_host_bytes = 1 << 20;
    world.options.kv_load = choice;
    world.options.max_num_seqs = 4;
    const auto scheduler = world.scheduler();
    std::map<uint64_t, std::vector<int32_t>> asked;
    for (uint64_t seed = 0; seed < 8; ++seed) {
      const auto prompt = toy::prompt_of(20, seed);
      asked[toy::submit(*scheduler, toy::request(prompt, 130))] = prompt;
    }
    for (const auto& [id, outcome] : toy::run_all(*scheduler)) {
      CHECK(outcome.only().tokens == toy::greedy(toy::endless_logits, asked[id], 130));
    }
    const schedule::SchedulerMetrics metrics = scheduler->report().metrics;
    CHECK(metrics.preemptions > 8);
    CHECK((metrics.disk_tokens > 0) == (choice == LoadChoice::kAlways));
    return metrics.computed_tokens;
  };
  const uint64_t moved = rows_computed(LoadChoice::kAlways), again = rows_computed(LoadChoice::kNever);
  CHECK(moved >= 8 * 20);
  CHECK(moved - 8 * 20 < (again - 8 * 20) / 2);
}

TEST_CASE("Values are read where that is sooner than computing them, or as the option says") {
  using schedule::LoadChoice;
  // A row takes 1000 ns; a block of 16 is read in so many.
  const auto tokens_read = [](LoadChoice choice, int64_t read_ns, uint64_t* forgone) {
    toy::Toy world;
    world.options.kv_max_tokens = 16 * 6;  // one prompt at a time
    world.options.kv_load = choice;
    world.executor->cost = [](const Batch& batch) { return 1000 * batch.num_tokens(); };
    auto now = std::make_shared<std::atomic<int64_t>>(0);
    kv::BlockTierConfig config;
    config.host_bytes = 1 << 20;
    config.threaded = false;
    config.clock_ns = [now, read_ns] { return *now += read_ns; };
    auto cache = KvCache::create(world.cache()->config(), kv::BlockTier::open(nullptr, config).take());
    REQUIRE(cache.ok());
    const auto scheduler = world.scheduler(*cache);
    for (int round = 0; round < 4; ++round) {
      for (const auto& prompt : toy_prompts()) {
        const uint64_t id = toy::submit(*scheduler, toy::request(prompt, 6));
        std::vector<int32_t> tokens;
        for (bool ended = false; !ended;) {
          while ((*cache)->block_tier()->run_one()) {
          }
          REQUIRE(scheduler->step().ok());
          while (const auto event = scheduler->next_event()) {
            CHECK(event->request_id == id);
            tokens.insert(tokens.end(), event->tokens.begin(), event->tokens.end());
            ended = ended || event->is_last;
          }
        }
        CHECK(tokens == toy::greedy(toy::endless_logits, prompt, 6));
      }
    }
    *forgone = scheduler->report().metrics.forgone_loads;
    return scheduler->report().metrics.disk_tokens;
  };
  uint64_t forgone = 0;
  const uint64_t all = tokens_read(LoadChoice::kAlways, 1'000'000, &forgone);
  CHECK(all >= 3 * 7 * 64);
  CHECK(forgone == 0);
  CHECK(tokens_read(LoadChoice::kNever, 1, &forgone) == 0);
  CHECK(forgone == 0);
  CHECK(tokens_read(LoadChoice::kAuto, 1'000, &forgone) == all);
  CHECK(forgone == 0);
  const uint64_t few = tokens_read(LoadChoice::kAuto, 1'000'000, &forgone);
  CHECK(few > 0);  // to know how long it takes
  CHECK(few < all / 4);
  CHECK(forgone > 10);
}

TEST_CASE("A damaged folder costs computing and no request") {
  const TemporaryFolder folder;
  toy::Toy world;
  world.options.kv_max_tokens = 16 * 6;
  world.options.kv_disk_path = folder.path.string();
  world.options.kv_load = schedule::LoadChoice::kAlways;
  const auto prompts = toy_prompts();
  const auto fill = [&] {
    const auto cache = world.cache();
    run_each(*world.scheduler(cache), prompts);
    cache->flush_disk();
  };
  fill();
  size_t at = 0;
  for (const auto& entry : fs::directory_iterator(folder.path)) {
    const auto size = entry.file_size();
    if (at % 4 == 0) fs::resize_file(entry.path(), size / 2);
    if (at % 4 == 1) {
      std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(static_cast<std::streamoff>(size - 1));
      file.put('\x7f');
    }
    if (at % 4 == 2) std::ofstream(entry.path(), std::ios::binary) << std::string(300, 'x');
    ++at;
  }
  REQUIRE(at > 20);
  const auto scheduler = world.scheduler();
  run_each(*scheduler, prompts);
  const KvDiskStats disk = scheduler->kv_cache()->stats().disk;
  CHECK(disk.truncated_files + disk.damaged_files + disk.foreign_files > 0);
  // A prompt finds one damaged file at a time, and replaces it.
  for (int round = 0; round < 5; ++round) run_each(*scheduler, prompts);
  run_each(*scheduler, prompts, 64);
}

TEST_CASE("Requests may be cancelled while their values are on their way") {
  const TemporaryFolder folder;
  toy::Toy world;
  world.options.kv_max_tokens = 16 * 24;
  world.options.kv_disk_path = folder.path.string();
  world.options.kv_load = schedule::LoadChoice::kAlways;
  const auto prompts = toy_prompts();
  {
    const auto cache = world.cache();
    run_each(*world.scheduler(cache), prompts);
    cache->flush_disk();
  }
  for (int round = 0; round < 30; ++round) {
    const auto cache = world.cache();
    const auto scheduler = world.scheduler(cache);
    std::vector<uint64_t> ids;
    for (const auto& prompt : prompts) ids.push_back(toy::submit(*scheduler, toy::request(prompt, 4)));
    for (int step = 0; step < round % 3; ++step) toy::step(*scheduler);
    for (size_t i = 0; i < ids.size(); i += 2) (void)scheduler->cancel(ids[i]);
    const auto results = toy::run_all(*scheduler);
    for (size_t i = 1; i < ids.size(); i += 2) {
      CHECK(results.at(ids[i]).only().tokens == toy::greedy(toy::endless_logits, prompts[i], 4));
    }
    CHECK(cache->stats().free_blocks == cache->stats().num_blocks);
  }
}

TEST_CASE("Options that contradict each other, and paths that are no folder, are refused by name") {
  const TemporaryFolder folder;
  toy::Toy world;
  world.options.kv_disk_path = folder.path.string();
  world.options.kv_load = schedule::LoadChoice::kAlways;
  world.options.kv_prefix_index = false;
  CHECK(make_kv_cache(*world.model, world.options).status().place() == "kv.disk_path");
  world.options.kv_prefix_index = true;
  world.options.kv_disk_path = (folder.path / "missing" / "tier").string();
  const Status refused = make_kv_cache(*world.model, world.options).status();
  CHECK(refused.code() == StatusCode::kIo);
  CHECK(refused.place().find("kv.disk_path") != std::string::npos);
}

// ---- sessions ----

TEST_CASE("A parked session holds no block, and goes on where it was, here and in another process") {
  const TemporaryFolder folder;
  fs::create_directories(folder.path);
  const std::string path = (folder.path / "session").string();
  toy::Toy world;
  const auto prompt = toy::prompt_of(100, 1), next = toy::prompt_of(9, 2);
  std::vector<int32_t> all = prompt;
  all.insert(all.end(), next.begin(), next.end());
  const auto expected = toy::greedy(toy::endless_logits, all, 5);
  const auto continue_with = [&](const std::shared_ptr<KvCache>& cache, const std::shared_ptr<Session>& session) {
    const auto scheduler = world.scheduler(cache);
    RequestParams params = toy::request(next, 5);
    params.session = session;
    const toy::Output out = toy::run_one(*scheduler, std::move(params)).only();
    CHECK(out.tokens == expected);
    return out.usage.cached_tokens;
  };
  {
    const auto cache = world.cache();
    const auto session = world.session(cache);
    REQUIRE(session->evaluate(prompt, nullptr).ok());
    REQUIRE(session->park(path).ok());
    CHECK(cache->stats().free_blocks == cache->stats().num_blocks);
    cache->clear_prefix_index();
    auto forked = session->fork();
    REQUIRE(forked.ok());
    CHECK(continue_with(cache, session) == 100);
    CHECK(continue_with(cache, *forked) == 100);  // from the file too
  }
  {
    const auto cache = world.cache();
    const auto source = open_path(path);
    REQUIRE(source.ok());
    const auto session = Session::restore(world.model, cache, world.options, *source);
    REQUIRE(session.ok());
    CHECK(continue_with(cache, *session) == 100);
  }
  // A file that is gone, or another one by now, costs computing.
  for (const bool gone : {true, false}) {
    const auto cache = world.cache();
    const auto session = world.session(cache);
    REQUIRE(session->evaluate(prompt, nullptr).ok());
    REQUIRE(session->park(path).ok());
    cache->clear_prefix_index();
    if (gone) fs::remove(path);
    if (!gone) std::ofstream(path) << "something else";
    CHECK(continue_with(cache, session) == 0);
  }
}

TEST_CASE("A parked session that goes back gives the logits of the same tokens again") {
  const TemporaryFolder folder;
  fs::create_directories(folder.path);
  toy::Toy world;
  const auto prompt = toy::prompt_of(100, 1);
  const std::span<const int32_t> front = std::span(prompt).first(50), back = std::span(prompt).last(50);
  std::vector<float> expected(back.size() * toy::kVocabSize), logits(expected.size(), -1.0f);
  {
    const auto session = world.session(world.cache());
    REQUIRE(session->evaluate(front, nullptr).ok());
    REQUIRE(session->evaluate(back, expected.data()).ok());
  }
  const auto cache = world.cache();
  const auto session = world.session(cache);
  REQUIRE(session->evaluate(prompt, nullptr).ok());
  REQUIRE(session->park((folder.path / "session").string()).ok());
  cache->clear_prefix_index();
  REQUIRE(session->rewind(50).ok());
  REQUIRE(session->evaluate(back, logits.data()).ok());
  CHECK(logits == expected);
}

TEST_CASE(
    "With zero retention nothing of a prompt stays in the pool or reaches the folder, and sessions are not saved") {
  const TemporaryFolder folder;
  toy::Toy world;
  world.options.kv_max_tokens = 16 * 6;
  world.options.kv_disk_path = folder.path.string();
  world.options.kv_load = schedule::LoadChoice::kAlways;
  // The toy's cache holds the tokens themselves.
  const auto pool_is_blank = [](KvCache& cache) {
    const size_t bytes = cache.config().layers[0].block_bytes() * static_cast<size_t>(cache.config().num_blocks);
    const std::byte* data = cache.layer_data(0);
    return std::all_of(data, data + bytes, [](std::byte b) { return b == std::byte{0}; });
  };
  const auto prompts = toy_prompts();
  for (const bool of_all : {false, true}) {
    world.options.zero_retention = of_all;
    const auto cache = world.cache();
    const auto scheduler = world.scheduler(cache);
    for (int round = 0; round < 2; ++round) {
      for (const auto& prompt : prompts) {
        RequestParams params = toy::request(prompt, 6);
        params.zero_retention = !of_all;
        params.n = 2;
        const uint64_t id = toy::submit(*scheduler, params);
        toy::step(*scheduler);
        CHECK_FALSE(pool_is_blank(*cache));
        const toy::Outcome out = toy::run_all(*scheduler)[id];
        CHECK(out.samples.at(0).usage.cached_tokens == 0);
        CHECK(pool_is_blank(*cache));
      }
    }
    cache->flush_disk();
    CHECK(num_files(folder.path) == 0);
    const auto session = world.session(cache);
    RequestParams params = toy::request(prompts[0], 2);
    params.session = session;
    params.zero_retention = true;
    const auto submitted = scheduler->submit(params);
    CHECK(submitted.ok() == of_all);
    if (!of_all) {
      CHECK(submitted.status().place() == "zero_retention");
      continue;
    }
    toy::run_all(*scheduler);
    const Status saved = session->save((folder.path / "session").string());
    CHECK(saved.code() == StatusCode::kFailedPrecondition);
    CHECK(saved.place() == "kv.zero_retention");
    CHECK_FALSE(session->park((folder.path / "session").string()).ok());
    CHECK(num_files(folder.path) == 0);
    REQUIRE(session->rewind(0).ok());
    CHECK(pool_is_blank(*cache));
  }
}

// ---- real models ----

TEST_CASE("Every kind of cache gives the same bits by way of the disk or of memory") {
  // Windows, sinks, latent rows, indexer keys, rows of runs, recurrent states.
  for (const char* name : {"qwen2", "gemma3_text", "gpt_oss", "deepseek_v3", "deepseek_v32", "deepseek_v4", "mamba2",
                           "qwen3_next", "falcon_h1"}) {
    if (!real::have_model(name)) return;
    INFO(name);
    const auto model = real::load_golden(name, 1);
    EngineOptions options;
    options.kv_max_tokens = 16 * 7;
    options.kv_snapshot_interval = 32;
    std::vector<std::vector<int32_t>> prompts;
    for (uint64_t seed = 0; seed < 3; ++seed) prompts.push_back(real::seeded_tokens(70, seed, 8, 80));
    const auto run = [&](Scheduler& scheduler, std::vector<int64_t>* cached) {
      std::vector<std::vector<float>> scores;
      for (const auto& prompt : prompts) {
        RequestParams params;
        params.prompt = prompt;
        params.max_tokens = 8;
        params.ignore_eos = true;
        params.num_logprobs = 5;
        auto& out = scores.emplace_back();
        real::run_requests(scheduler, {params}, [&](const Event& event) {
          real::add_logprobs(out, event);
          if (cached != nullptr && event.type == EventType::kFinished) cached->push_back(event.usage.cached_tokens);
        });
      }
      return scores;
    };
    const auto expected = run(*real::scheduler_of(model, options), nullptr);
    options.kv_load = schedule::LoadChoice::kAlways;
    options.kv_host_bytes = 1 << 26;
    {
      const auto scheduler = real::scheduler_of(model, options);
      run(*scheduler, nullptr);
      std::vector<int64_t> cached;
      const auto warm = run(*scheduler, &cached);
      for (size_t i = 0; i < prompts.size(); ++i) {
        CHECK(real::equal_bits(warm[i], expected[i]));
        CHECK(cached[i] == 64);
      }
      CHECK(scheduler->kv_cache()->stats().host.read_copies > 0);
    }
    options.kv_host_bytes = 0;
    const TemporaryFolder folder;
    options.kv_disk_path = folder.path.string();
    if (kv::has_codec(kv::BlockCodec::kZstd)) options.kv_disk_codec = kv::BlockCodec::kZstd;
    {
      auto cache = make_kv_cache(*model, options);
      REQUIRE(cache.ok());
      const auto scheduler = real::scheduler_of(model, options, *cache);
      const auto cold = run(*scheduler, nullptr);
      std::vector<int64_t> cached;
      const auto warm = run(*scheduler, &cached);
      for (size_t i = 0; i < prompts.size(); ++i) {
        CHECK(real::equal_bits(cold[i], expected[i]));
        CHECK(real::equal_bits(warm[i], expected[i]));
        CHECK(cached[i] == 64);
      }
      CHECK((*cache)->stats().disk_tokens > 0);
      (*cache)->flush_disk();
    }
    const auto scheduler = real::scheduler_of(model, options);
    std::vector<int64_t> cached;
    const auto later = run(*scheduler, &cached);
    for (size_t i = 0; i < prompts.size(); ++i) {
      CHECK(real::equal_bits(later[i], expected[i]));
      CHECK(cached[i] == 64);
    }
  }
}
