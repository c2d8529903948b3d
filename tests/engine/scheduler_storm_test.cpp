// Random programs of several threads on one scheduler, as scheduler_program.h has them of one: submits, cancels, sessions, limits
// and faults while another thread steps and a third writes to disk. Meaningful above all under ThreadSanitizer (preset tsan);
// the environment's HEADRACE_STORM_SECONDS makes it last so long.
#include <catch2/catch.hpp>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <thread>

#include "engine/toy_engine.h"
#include "unit/memory_tier.h"

using namespace headrace;
using namespace headrace::engine;
using namespace headrace::engine::toy;

namespace {

class Storm {
 public:
  explicit Storm(uint64_t seed) : random_(seed) {
    toy_.executor->cost = [](const Batch& batch) { return 1'000'000 + 100'000 * batch.num_tokens(); };
    toy_.options.kv_max_tokens = 16 * pick(random_, 8, 24);
    toy_.options.max_num_seqs = static_cast<int32_t>(pick(random_, 1, 8));
    toy_.options.max_num_batched_tokens = static_cast<int32_t>(pick(random_, 8, 64));
    toy_.options.schedule_mode = static_cast<ScheduleMode>(pick(random_, 0, 2));
    toy_.options.max_events = static_cast<int32_t>(pick(random_, 1, 12));
    toy_.options.max_tenants = 4;
    cache_ = toy_.cache();
    if (pick(random_, 0, 2) != 0) {
      kv::BlockTierConfig config;
      config.max_bytes = static_cast<uint64_t>(pick(random_, 2, 40)) * 512;  // a block's file has 432 bytes
      config.max_queued_bytes = static_cast<uint64_t>(pick(random_, 1, 40)) * 256;
      cache_ = KvCache::create(cache_->config(), kv::open_memory_tier(folder_, config)).take();
    }
    scheduler_ = toy_.scheduler(cache_);
  }

  // What did not hold.
  std::set<std::string> run() {
    std::atomic<int> asking{kAsking};
    std::vector<std::thread> threads;
    for (int t = 0; t < kAsking; ++t) {
      threads.emplace_back([this, &asking, seed = random_()] {
        ask(seed);
        --asking;
      });
    }
    threads.emplace_back([&] {
      for (bool more = true; more;) {
        const bool all_asked = asking == 0;  // before the step, which then sees all
        const auto stepped = scheduler_->step();
        more = !all_asked || (stepped.ok() && *stepped);
        check(stepped.status());
        check(scheduler_->check_invariants());
        if (all_asked) hear();
        toy_.executor->now_ns += 20'000'000;  // for those whose rate is limited
      }
    });
    for (std::thread& thread : threads) thread.join();
    hear();
    compare();
    scheduler_.reset();
    check(cache_->check_invariants());
    const KvCacheStats stats = cache_->stats();
    check(stats.free_blocks == stats.num_blocks, "all blocks are free");
    return wrong_;
  }

  size_t num_asked() const { return asked_.size(); }
  size_t num_whole() const { return num_whole_; }

 private:
  static constexpr int kAsking = 3;
  struct Asked {
    std::vector<int32_t> prompt;
    int64_t max_tokens = 0;
    uint32_t n = 1;
  };

  static int64_t pick(std::mt19937_64& random, int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  }
  void check(bool law, const std::string& what) {
    if (law) return;
    const std::lock_guard lock(mutex_);
    wrong_.insert(what);
  }
  void check(const Status& status) { check(status.ok(), status.to_string()); }
  // What is busy, full or pinned may refuse.
  void check_allowed(const Status& status) {
    const StatusCode code = status.code();
    check(status.ok() || code == StatusCode::kFailedPrecondition || code == StatusCode::kResourceExhausted,
          status.to_string());
  }

  // One assertion of Catch2 at a time.
  std::shared_ptr<Session> new_session() {
    const std::lock_guard lock(mutex_);
    return toy_.session(cache_);
  }

  void hear() {
    const std::lock_guard lock(mutex_);  // events of one request stay in order
    while (const auto event = scheduler_->next_event()) told_[event->request_id].add(*event);
  }

  void ask(uint64_t seed) {
    std::mt19937_64 random(seed);
    std::vector<std::shared_ptr<Session>> sessions = {new_session()};
    std::vector<uint64_t> ids;
    for (int i = 0; i < 80; ++i) {
      const size_t at = random() % sessions.size();
      switch (pick(random, 0, 15)) {
        case 0: toy_.executor->fail_runs = pick(random, 0, 3) == 0 ? 1 : 0; break;
        case 1: break_disk(random); break;
        case 2: check_allowed(sessions[at]->rewind(0)); break;
        case 3: {
          auto forked = sessions[at]->fork();
          check_allowed(forked.status());
          if (forked.ok()) sessions[at] = forked.take();
          break;
        }
        case 4: sessions[at]->set_pinned(pick(random, 0, 3) == 0); break;
        case 5: {
          // The model may have been told to fail.
          const Status status = sessions[at]->evaluate(prompt_of(3, random() % 4), nullptr);
          if (status.code() != StatusCode::kInternal) check_allowed(status);
          break;
        }
        case 6: sessions.push_back(new_session()); break;
        case 7: {
          schedule::TenantLimits limits;
          limits.weight = static_cast<double>(pick(random, 1, 4));
          limits.max_num_seqs = pick(random, 0, 3);
          limits.tokens_per_second = pick(random, 0, 3) == 0 ? 20000.0 : 0.0;
          check_allowed(scheduler_->set_tenant(tenant(random), limits));
          break;
        }
        case 8: pick(random, 0, 3) == 0 ? cache_->clear_prefix_index() : (void)cache_->stats(); break;
        case 9: (void)scheduler_->report(); break;
        case 10:
        case 11:
          if (!ids.empty()) (void)scheduler_->cancel(ids[random() % ids.size()]);
          break;
        default: submit(random, pick(random, 0, 3) == 0 ? sessions[at] : nullptr, ids);
      }
      if (pick(random, 0, 2) == 0) hear();
    }
    for (const auto& session : sessions) session->set_pinned(false);
  }

  static std::string describe(const Outcome& told, uint32_t n) {
    std::string text = "of " + std::to_string(n) + " samples there are " + std::to_string(told.samples.size()) + ":";
    for (const Event& event : told.all) {
      text += " " + std::to_string(static_cast<int>(event.type)) + "/" + std::to_string(event.index) +
              (event.is_last ? "!" : "");
    }
    return text;
  }

  static std::string tenant(std::mt19937_64& random) {
    return std::string(1, static_cast<char>('a' + pick(random, 0, 2)));
  }

  void break_disk(std::mt19937_64& random) {
    const std::lock_guard lock(folder_->mutex);
    folder_->fail_writes = static_cast<int>(pick(random, 0, 2));
    folder_->fail_reads = static_cast<int>(pick(random, 0, 2));
    folder_->read_fault = static_cast<kv::MemoryFolder::ReadFault>(pick(random, 1, 4));
    folder_->flip = random();
    if (pick(random, 0, 3) == 0) folder_->files.clear();
  }

  void submit(std::mt19937_64& random, const std::shared_ptr<Session>& session, std::vector<uint64_t>& ids) {
    // Few seeds, so that prompts share their fronts.
    RequestParams params = of_tenant(tenant(random), prompt_of(static_cast<size_t>(pick(random, 1, 70)), random() % 4),
                                     pick(random, 1, 24));
    params.n = session ? 1 : static_cast<uint32_t>(pick(random, 1, std::min(3, toy_.options.max_num_seqs)));
    params.priority = static_cast<int32_t>(pick(random, 0, 2));
    if (!session && pick(random, 0, 7) == 0) params.zero_retention = true;
    if (pick(random, 0, 15) == 0) params.deadline_ms = 1;
    params.session = session;
    Asked asked{params.prompt, params.max_tokens, params.n};
    const bool busy = session && session->busy();
    if (session) {
      const std::vector<int32_t> before = session->tokens();
      asked.prompt.insert(asked.prompt.begin(), before.begin(), before.end());
    }
    const auto id = scheduler_->submit(std::move(params));
    check_allowed(id.status());
    if (!id.ok()) return;
    ids.push_back(*id);
    if (busy) asked.prompt.clear();  // its output came between
    const std::lock_guard lock(mutex_);
    asked_[*id] = std::move(asked);
  }

  // Each request ended once, with the definition's output as far as it got.
  void compare() {
    for (const auto& [id, asked] : asked_) {
      const Outcome& told = told_[id];
      check(told.num_last == 1 && !told.after_last, "one last event");
      if (!told.failure.ok() || asked.prompt.empty()) continue;
      check(told.samples.size() == asked.n, describe(told, asked.n));
      const auto expected = greedy(endless_logits, asked.prompt, static_cast<size_t>(asked.max_tokens));
      for (const auto& [index, output] : told.samples) {
        check(output.tokens.size() <= expected.size() &&
                  std::equal(output.tokens.begin(), output.tokens.end(), expected.begin()),
              "an output is the definition's");
        if (output.tokens.size() == expected.size()) ++num_whole_;
      }
    }
  }

  std::mt19937_64 random_;
  Toy toy_;
  std::shared_ptr<kv::MemoryFolder> folder_ = std::make_shared<kv::MemoryFolder>();
  std::shared_ptr<KvCache> cache_;
  std::shared_ptr<Scheduler> scheduler_;

  std::mutex mutex_;  // guards what follows
  std::map<uint64_t, Asked> asked_;
  std::map<uint64_t, Outcome> told_;
  std::set<std::string> wrong_;
  size_t num_whole_ = 0;
};

}  // namespace

TEST_CASE("random programs of three threads beside one that steps hold every law") {
  const char* const seconds = std::getenv("HEADRACE_STORM_SECONDS");
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds == nullptr ? 0 : std::atoi(seconds));
  size_t asked = 0, whole = 0;
  for (uint64_t seed = 0; seed < 40 || std::chrono::steady_clock::now() < end; ++seed) {
    Storm storm(seed);
    const std::set<std::string> wrong = storm.run();
    INFO("seed " << seed << ": " << (wrong.empty() ? "" : *wrong.begin()));
    REQUIRE(wrong.empty());
    asked += storm.num_asked();
    whole += storm.num_whole();
  }
  CHECK(asked > 1000);
  CHECK(whole > 100);
}
