// Bytes read as a program for a scheduler on the toy model: submits, cancels, sessions, faults, limits and steps, with every
// law checked after each step and every output compared with the definition's. Run by a fuzzer and by a test.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/guessing_drafter.h"
#include "engine/toy_engine.h"
#include "unit/memory_tier.h"

namespace headrace::engine::toy {

class SchedulerProgram {
 public:
  SchedulerProgram(const uint8_t* data, size_t size) : data_(data), size_(size) {}

  // Guesses that were accepted, once it was run.
  uint64_t num_accepted() const { return num_accepted_; }
  // What became of the disk's files.
  const KvDiskStats& disk() const { return disk_; }

  // Ends the process where a law does not hold; what happened otherwise.
  schedule::SchedulerMetrics run() {
    set_up();
    while (size_ > 0) move();
    return finish();
  }

 private:
  // What was asked, to compare with what comes.
  struct Asked {
    std::vector<int32_t> prompt;  // a session's tokens first
    int64_t max_tokens = 0;
    uint32_t n = 1;
    bool cancelled = false;
    bool may_expire = false;
    std::shared_ptr<Session> session;
  };
  struct Told {
    std::map<uint32_t, std::vector<int32_t>> tokens;
    std::map<uint32_t, FinishReason> reasons;
    int num_last = 0;
    bool failed = false;
  };

  static void require(bool law, const std::string& what) {
    if (law) return;
    std::fprintf(stderr, "broken law: %s\n", what.c_str());
    std::abort();
  }
  static void require(const Status& status) { require(status.ok(), status.to_string()); }

  uint8_t byte() {
    if (size_ == 0) return 0;
    --size_;
    return *data_++;
  }
  int64_t pick(int64_t low, int64_t high) { return low + byte() % (high - low + 1); }

  void set_up() {
    executor_ = std::make_shared<ToyExecutor>(endless_logits);
    executor_->cost = [](const Batch& batch) { return 1'000'000 + 100'000 * batch.num_tokens(); };
    auto model = std::make_shared<EngineModel>();
    model->executor = executor_;
    model->end_of_generation_ids = {kEos};
    model_ = model;
    options_.kv_max_tokens = 16 * pick(6, 24);
    options_.kv_prefix_index = pick(0, 7) != 0;
    options_.max_num_seqs = static_cast<int32_t>(pick(1, 8));
    options_.max_num_batched_tokens = static_cast<int32_t>(pick(4, 64));
    options_.schedule_mode = static_cast<ScheduleMode>(pick(0, 2));
    options_.prefix_window = static_cast<int32_t>(pick(1, 8));
    options_.max_overtakes = static_cast<int32_t>(pick(0, 4));
    options_.aging_ms = byte() % 2 == 0 ? 0 : 1;
    options_.max_events = static_cast<int32_t>(pick(0, 6));
    options_.max_tenants = static_cast<int32_t>(pick(2, 6));
    auto cache = make_kv_cache(*model_, options_);
    require(cache.status());
    cache_ = cache.take();
    options_.draft_always = byte() % 2 == 0;
    options_.max_draft_tokens = static_cast<int32_t>(pick(1, 12));
    if (options_.kv_prefix_index && pick(0, 2) != 0) put_tier();
    auto made = Scheduler::create(model_, cache_, options_, make_drafters());
    require(made.status());
    scheduler_ = made.take();
  }

  // Those whose guesses are right now and then.
  static std::vector<std::shared_ptr<speculation::Drafter>> make_drafters() {
    const auto oracle = [](std::span<const int32_t> context) {
      std::vector<float> row(kVocabSize);
      endless_logits(context, row);
      return static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin());
    };
    const auto drafters = speculation::guessing_drafters(kVocabSize, oracle);
    return {drafters.begin(), drafters.end()};
  }

  void move() {
    switch (byte() % 16) {
      case 0:
      case 1:
      case 2:
      case 3: return submit_request(nullptr);
      case 4: return cancel();
      case 5: {
        if (byte() % 8 == 0) executor_->fail_runs = 1;
        return;
      }
      case 6: return use_session();
      case 7: return change_sessions();
      case 8: {
        schedule::TenantLimits limits;
        limits.weight = static_cast<double>(pick(1, 4));
        limits.max_num_seqs = pick(0, 3);
        limits.max_queue = pick(0, 12);
        limits.tokens_per_second = byte() % 4 == 0 ? 20000.0 : 0.0;
        const Status status = scheduler_->set_tenant(tenant(), limits);
        require(status.ok() || status.code() == StatusCode::kResourceExhausted, status.to_string());
        return;
      }
      case 9: {
        if (byte() % 4 == 0) cache_->clear_prefix_index();
        return;
      }
      case 10: return change_tier();
      default: step();
    }
  }

  // The same cache with memory, a disk or both behind it, whose work is done when the program says so.
  void put_tier() {
    folder_ = std::make_shared<kv::MemoryFolder>();
    kv::BlockTierConfig config;
    config.threaded = false;
    const int64_t kind = pick(0, 2);
    if (kind > 0) config.host_bytes = static_cast<uint64_t>(pick(1, 40)) * 256;  // two blocks or more
    config.max_bytes = static_cast<uint64_t>(pick(1, 40)) * 512;                 // a block's file has 432 bytes
    config.max_queued_bytes = static_cast<uint64_t>(pick(1, 40)) * 256;
    auto cache = KvCache::create(cache_->config(), kind == 2 ? kv::BlockTier::open(nullptr, config).take()
                                                             : kv::open_memory_tier(folder_, config));
    require(cache.status());
    cache_ = cache.take();
  }

  // Faults of the disk, and work on it.
  void change_tier() {
    if (!folder_) return;
    switch (byte() % 8) {
      case 0: folder_->fail_writes = static_cast<int>(pick(0, 3)); return;
      case 1: {
        folder_->read_fault = static_cast<kv::MemoryFolder::ReadFault>(pick(1, 4));
        folder_->fail_reads = static_cast<int>(pick(1, 3));
        folder_->flip = static_cast<uint64_t>(byte()) * 37;
        return;
      }
      case 2: folder_->capacity = byte() % 2 == 0 ? ~uint64_t{0} : static_cast<uint64_t>(pick(0, 20)) * 512; return;
      case 3: {
        if (byte() % 4 == 0) folder_->files.clear();
        return;
      }
      case 4: {
        if (byte() % 8 == 0) cache_->flush_disk();
        return;
      }
      default: work_on_disk(pick(1, 6));
    }
  }

  void work_on_disk(int64_t pieces) {
    while (pieces-- > 0 && cache_->block_tier()->run_one()) {
    }
    const KvDiskStats disk = cache_->stats().disk;
    require(disk.bytes <= disk.max_bytes, "the files have more bytes than they may");
    const KvHostStats host = cache_->stats().host;
    require(host.bytes <= host.max_bytes, "the copies have more bytes than they may");
  }

  std::string tenant() { return std::string(1, static_cast<char>('a' + byte() % 4)); }

  void submit_request(const std::shared_ptr<Session>& session) {
    RequestParams params;
    // Few seeds, so that prompts share their fronts; the cut of 16 makes some share some blocks only.
    params.prompt = prompt_of(static_cast<size_t>(pick(1, 70)), byte() % 4);
    if (byte() % 3 == 0 && params.prompt.size() > 20) params.prompt[20] = static_cast<int32_t>(pick(1, kVocabSize - 1));
    params.max_tokens = pick(1, 24);
    params.n = session ? 1 : static_cast<uint32_t>(std::min<int64_t>(pick(1, 3), options_.max_num_seqs));
    params.priority = static_cast<int32_t>(pick(0, 2));
    params.tenant = tenant();
    if (!session && byte() % 6 == 0) params.cache_salt = "s";
    if (byte() % 8 == 0) params.num_prompt_logprobs = 1;
    if (byte() % 32 == 0) params.deadline_ms = 1;
    if (!session && byte() % 8 == 0) params.zero_retention = true;
    params.session = session;
    const char* const drafters[] = {"off", "g0", "g1", "g2", "g4", "g5", "g6", "g7,g1", "auto", "ngram,suffix"};
    params.drafter = drafters[byte() % std::size(drafters)];
    Asked asked;
    if (session) asked.prompt = session->tokens();
    asked.prompt.insert(asked.prompt.end(), params.prompt.begin(), params.prompt.end());
    asked.max_tokens = params.max_tokens;
    asked.n = params.n;
    asked.may_expire = params.deadline_ms > 0;
    asked.session = session;
    const auto id = scheduler_->submit(std::move(params));
    if (!id.ok()) {
      const StatusCode code = id.status().code();
      return require(code == StatusCode::kResourceExhausted || code == StatusCode::kFailedPrecondition,
                     id.status().to_string());
    }
    asked_[*id] = std::move(asked);
  }

  void cancel() {
    if (asked_.empty()) return;
    auto victim = asked_.begin();
    std::advance(victim, byte() % static_cast<int64_t>(asked_.size()));
    if (scheduler_->cancel(victim->first).ok()) victim->second.cancelled = true;
  }

  void use_session() {
    if (sessions_.size() < 4) {
      auto made = Session::create(model_, cache_, options_);
      require(made.status());
      sessions_.push_back(made.take());
    }
    submit_request(sessions_[byte() % sessions_.size()]);
  }

  void change_sessions() {
    if (sessions_.empty()) return;
    const size_t at = byte() % sessions_.size();
    const std::shared_ptr<Session> session = sessions_[at];
    const auto allowed = [](const Status& status) {
      require(status.ok() || status.code() == StatusCode::kFailedPrecondition ||
                  status.code() == StatusCode::kResourceExhausted,
              status.to_string());
    };
    switch (byte() % 6) {
      case 0: return allowed(session->rewind(byte() % (static_cast<int64_t>(session->tokens().size()) + 1)));
      case 1: {
        auto forked = session->fork();
        allowed(forked.status());
        if (forked.ok() && sessions_.size() < 6) sessions_.push_back(forked.take());
        return;
      }
      case 2: return session->set_pinned(byte() % 2 == 0);
      case 3: sessions_.erase(sessions_.begin() + static_cast<ptrdiff_t>(at)); return;
      case 4: return allowed(session->append_tokens(prompt_of(static_cast<size_t>(pick(1, 20)), byte() % 4)));
      default: {
        // What does not fit beside requests and pinned sessions is refused; nothing of it may stay.
        const std::vector<int32_t> before = session->tokens();
        const Status status = session->evaluate(prompt_of(static_cast<size_t>(pick(1, 20)), byte() % 4), nullptr);
        if (!status.ok() && !session->busy())
          require(session->tokens() == before, "a failed evaluation changed tokens");
        executor_->fail_runs = 0;
      }
    }
  }

  bool step() {
    executor_->now_ns += 500'000;
    if (folder_ && (size_ == 0 || byte() % 2 == 0)) work_on_disk(2);
    const auto more = scheduler_->step();
    require(more.status());
    require(scheduler_->check_invariants());
    // Now and then nobody reads, or only what one request has to say.
    if (size_ > 0 && byte() % 4 == 0) return *more;
    if (size_ > 0 && byte() % 4 == 0 && !asked_.empty()) {
      auto reader = asked_.begin();
      std::advance(reader, byte() % static_cast<int64_t>(asked_.size()));
      while (const auto event = scheduler_->next_event_of(reader->first)) hear(*event);
      return *more;
    }
    while (const auto event = scheduler_->next_event()) hear(*event);
    return *more;
  }

  void hear(const Event& event) {
    require(asked_.count(event.request_id) == 1, "an event of an unknown request");
    Told& told = told_[event.request_id];
    require(told.num_last == 0, "an event after the last one");
    told.num_last += event.is_last ? 1 : 0;
    if (event.type == EventType::kFailed) told.failed = true;
    if (event.type == EventType::kTokens) {
      auto& tokens = told.tokens[event.index];
      tokens.insert(tokens.end(), event.tokens.begin(), event.tokens.end());
    }
    if (event.type == EventType::kFinished) {
      require(told.reasons.emplace(event.index, event.finish_reason).second, "a sample that ended twice");
      require(event.usage.cached_tokens < event.usage.prompt_tokens, "the last token of a prompt is computed");
    }
    if (event.is_last) check(event.request_id, told);
  }

  void check(uint64_t id, const Told& told) {
    const Asked& asked = asked_.at(id);
    if (told.failed) return;
    require(told.reasons.size() == asked.n, "every sample ends");
    const auto expected = greedy(endless_logits, asked.prompt, static_cast<size_t>(asked.max_tokens));
    for (const auto& [index, reason] : told.reasons) {
      const auto found = told.tokens.find(index);
      const std::vector<int32_t> tokens = found == told.tokens.end() ? std::vector<int32_t>() : found->second;
      require(tokens.size() <= expected.size() && std::equal(tokens.begin(), tokens.end(), expected.begin()),
              "an output is the definition's");
      if (reason == FinishReason::kCancelled) require(asked.cancelled, "cancelled by nobody");
      if (reason == FinishReason::kDeadline) require(asked.may_expire, "late without a deadline");
      if (reason != FinishReason::kLength) continue;
      const bool context_full =
          static_cast<int64_t>(asked.prompt.size() + tokens.size()) >= context_limit(*model_, *cache_);
      require(tokens.size() == expected.size() || context_full, "an output ended early");
    }
  }

  schedule::SchedulerMetrics finish() {
    executor_->fail_runs = 0;
    int steps = 0;
    while (step()) {
      executor_->now_ns += 20'000'000;  // for those whose rate is limited
      require(++steps < 20000, "every request ends");
    }
    for (const auto& [id, asked] : asked_) require(told_[id].num_last == 1, "exactly one last event");
    const schedule::SchedulerMetrics metrics = scheduler_->report().metrics;
    num_accepted_ = scheduler_->report().speculation.accepted();
    require(metrics.num_waiting + metrics.num_running == 0, "nothing waits or runs");
    scheduler_.reset();
    asked_.clear();  // and with it sessions
    sessions_.clear();
    require(cache_->check_invariants());
    require(cache_->stats().free_blocks == cache_->stats().num_blocks, "all blocks are free");
    disk_ = cache_->stats().disk;
    return metrics;
  }

  const uint8_t* data_;
  size_t size_;
  std::shared_ptr<ToyExecutor> executor_;
  std::shared_ptr<const EngineModel> model_;
  EngineOptions options_;
  std::shared_ptr<KvCache> cache_;
  std::shared_ptr<kv::MemoryFolder> folder_;  // null: the cache has no disk
  KvDiskStats disk_;
  std::shared_ptr<Scheduler> scheduler_;
  std::vector<std::shared_ptr<Session>> sessions_;
  std::map<uint64_t, Asked> asked_;
  std::map<uint64_t, Told> told_;
  uint64_t num_accepted_ = 0;
};

}  // namespace headrace::engine::toy
