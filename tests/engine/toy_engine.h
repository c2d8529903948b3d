// A model made of a function from tokens to logits. It keeps each token in the cache as a real model keeps keys and
// values, and reads the past only through block tables: a wrong block, slot, position or copy changes its logits.
#pragma once

#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "base/hash.h"
#include "engine/scheduler.h"
#include "engine/session.h"

namespace headrace::engine::toy {

using Logits = std::function<void(std::span<const int32_t> context, std::span<float> logits)>;

inline constexpr int32_t kVocabSize = 64;
inline constexpr int32_t kEos = 0;

// Logits that depend on every token so far and on their order.
inline void hashed_logits(std::span<const int32_t> context, std::span<float> logits) {
  uint64_t state = hash64(context.data(), context.size_bytes());
  for (float& x : logits) {
    state = hash64(&state, sizeof state);
    x = static_cast<float>(state >> 40) * 0x1p-22f;  // [0, 4)
  }
}

// The same, but the end token never comes.
inline void endless_logits(std::span<const int32_t> context, std::span<float> logits) {
  hashed_logits(context, logits);
  logits[kEos] = -10.0f;
}

// `output` after a prompt of prompt_size tokens, then the end token for ever.
inline Logits scripted(size_t prompt_size, std::vector<int32_t> output) {
  return [prompt_size, output = std::move(output)](std::span<const int32_t> context, std::span<float> logits) {
    std::fill(logits.begin(), logits.end(), 0.0f);
    const size_t next = context.size() - prompt_size;
    logits[static_cast<size_t>(context.size() >= prompt_size && next < output.size() ? output[next] : kEos)] = 20.0f;
  };
}

class ToyExecutor : public StepExecutor {
 public:
  explicit ToyExecutor(Logits logits, int64_t max_context = 1 << 20)
      : logits_(std::move(logits)), max_context_(max_context) {}

  int32_t vocab_size() const override { return kVocabSize; }
  int64_t max_context() const override { return max_context_; }
  std::vector<KvLayout> kv_layouts(KvDType, int32_t block_size) const override {
    return {{KvDType::kF32, 1, 2, block_size}};
  }
  Hash128 kv_identity() const override { return {identity, 7}; }

  Status run(const Batch& batch, KvCache& cache, float* logits) override {
    const std::lock_guard lock(mutex_);
    ++num_runs;
    max_rows = std::max(max_rows, batch.num_tokens());
    max_logits_rows = std::max(max_logits_rows, static_cast<int64_t>(batch.logits_rows.size()));
    rows_of_runs.push_back(batch.num_tokens());
    if (cost) {
      ns_of_runs.push_back(cost(batch));
      now_ns += ns_of_runs.back();
    }
    if (fail_runs.load() > 0) {
      --fail_runs;
      return internal_error("toy", "told to fail");
    }
    const int32_t block_size = cache.block_size();
    for (size_t row = 0; row < batch.token_ids.size(); ++row) {
      store(cache, batch.slots[row], {batch.token_ids[row], batch.positions[row]});
    }
    size_t wanted = 0;
    for (size_t s = 0; s < batch.block_tables.size(); ++s) {
      for (int32_t row = batch.query_start[s]; row < batch.query_start[s + 1]; ++row) {
        if (wanted == batch.logits_rows.size() || batch.logits_rows[wanted] != row) continue;
        std::vector<int32_t> context;
        for (int32_t p = 0; p <= batch.positions[static_cast<size_t>(row)]; ++p) {
          const int64_t slot = int64_t{batch.block_tables[s][p / block_size]} * block_size + p % block_size;
          const Cell cell = load(cache, slot);
          if (cell.position != p) return internal_error("toy", "position {} holds that of {}", p, cell.position);
          context.push_back(cell.token);
        }
        logits_(context, {logits + wanted * kVocabSize, kVocabSize});
        ++wanted;
      }
    }
    return wanted == batch.logits_rows.size() ? Status() : internal_error("toy", "rows are not ascending");
  }

  int64_t clock_ns() const override { return now_ns.load(); }

  uint64_t identity = 1;
  // What a pass takes on a clock of its own, which stands still otherwise; null: nothing.
  std::function<int64_t(const Batch&)> cost;
  std::atomic<int64_t> now_ns{1};
  std::vector<int64_t> ns_of_runs;
  std::atomic<int> fail_runs{0};
  int64_t num_runs = 0;
  int64_t max_rows = 0;
  int64_t max_logits_rows = 0;
  std::vector<int64_t> rows_of_runs;

 private:
  struct Cell {
    int32_t token;
    int32_t position;
  };
  // The token is the first dimension of the slot's key, the position the second: [tile][head_dim][16 tokens].
  static std::byte* at(KvCache& cache, int64_t slot, int64_t dim) {
    const KvLayout& layout = cache.config().layers[0];
    const int64_t offset = slot % layout.block_size;
    const int64_t element = (offset / kKvTile * layout.head_dim + dim) * kKvTile + offset % kKvTile;
    return cache.layer_data(0) + static_cast<size_t>(slot / layout.block_size) * layout.block_bytes() +
           static_cast<size_t>(element) * sizeof(float);
  }
  static void store(KvCache& cache, int64_t slot, Cell cell) {
    std::memcpy(at(cache, slot, 0), &cell.token, sizeof cell.token);
    std::memcpy(at(cache, slot, 1), &cell.position, sizeof cell.position);
  }
  static Cell load(KvCache& cache, int64_t slot) {
    Cell cell;
    std::memcpy(&cell.token, at(cache, slot, 0), sizeof cell.token);
    std::memcpy(&cell.position, at(cache, slot, 1), sizeof cell.position);
    return cell;
  }

  std::mutex mutex_;
  Logits logits_;
  int64_t max_context_;
};

// Ids: 0 <eos>, 1 <user>, 2 <bot> (special), then these spellings in order.
inline const std::vector<std::string>& spellings() {
  static const std::vector<std::string> all = [] {
    std::vector<std::string> out = {"<eos>", "<user>", "<bot>", "DEF", "G", "HI", "J", "DE"};
    // The halves of U+1F600 (F0 9F | 98 80) as byte-level vocabularies spell them.
    out.push_back("\u00f0\u0141");
    out.push_back("\u013a\u0122");
    for (char c = 'a'; c <= 'z'; ++c) out.push_back(std::string(1, c));
    return out;
  }();
  return all;
}

inline int32_t id_of(const std::string& spelling) {
  const auto& all = spellings();
  const auto found = std::find(all.begin(), all.end(), spelling);
  REQUIRE(found != all.end());
  return static_cast<int32_t>(found - all.begin());
}

inline std::shared_ptr<const text::Tokenizer> make_tokenizer() {
  nlohmann::json vocab = nlohmann::json::object();
  nlohmann::json added = nlohmann::json::array();
  for (size_t id = 0; id < spellings().size(); ++id) {
    if (id < 3) {
      added.push_back({{"id", id},
                       {"content", spellings()[id]},
                       {"special", true},
                       {"single_word", false},
                       {"lstrip", false},
                       {"rstrip", false},
                       {"normalized", false}});
    }
    vocab[spellings()[id]] = id;
  }
  const nlohmann::json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
  const nlohmann::json json = {{"version", "1.0"},
                               {"truncation", nullptr},
                               {"padding", nullptr},
                               {"added_tokens", added},
                               {"normalizer", nullptr},
                               {"pre_tokenizer", byte_level},
                               {"post_processor", nullptr},
                               {"decoder", byte_level},
                               {"model",
                                {{"type", "BPE"},
                                 {"dropout", nullptr},
                                 {"unk_token", nullptr},
                                 {"continuing_subword_prefix", nullptr},
                                 {"end_of_word_suffix", nullptr},
                                 {"fuse_unk", false},
                                 {"byte_fallback", false},
                                 {"ignore_merges", false},
                                 {"vocab", vocab},
                                 {"merges", nlohmann::json::array()}}}};
  auto made = text::Tokenizer::from_json(json.dump());
  INFO(made.status().to_string());
  REQUIRE(made.ok());
  return *made;
}

struct Toy {
  std::shared_ptr<ToyExecutor> executor;
  std::shared_ptr<const EngineModel> model;
  EngineOptions options;

  explicit Toy(Logits logits = endless_logits, int64_t max_context = 1 << 20, bool with_text = false)
      : executor(std::make_shared<ToyExecutor>(std::move(logits), max_context)) {
    auto made = std::make_shared<EngineModel>();
    made->executor = executor;
    if (with_text) made->tokenizer = make_tokenizer();
    made->end_of_generation_ids = {kEos};
    model = std::move(made);
    options.kv_max_tokens = 4096;
    options.schedule_mode = ScheduleMode::kThroughput;  // rows alone bound a step
  }

  std::shared_ptr<KvCache> cache() const {
    auto made = make_kv_cache(*model, options);
    INFO(made.status().to_string());
    REQUIRE(made.ok());
    return made.take();
  }
  std::shared_ptr<Scheduler> scheduler(std::shared_ptr<KvCache> kv_cache = nullptr) const {
    auto made = Scheduler::create(model, std::move(kv_cache), options);
    INFO(made.status().to_string());
    REQUIRE(made.ok());
    return made.take();
  }
  std::shared_ptr<Session> session(std::shared_ptr<KvCache> kv_cache = nullptr) const {
    auto made = Session::create(model, std::move(kv_cache), options);
    INFO(made.status().to_string());
    REQUIRE(made.ok());
    return made.take();
  }
};

// What one sample's events add up to.
struct Output {
  std::string text;
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  std::vector<TopLogprobs> top_logprobs;
  FinishReason reason = FinishReason::kNone;
  Usage usage;
  bool operator==(const Output& other) const {
    if (top_logprobs.size() != other.top_logprobs.size()) return false;
    for (size_t i = 0; i < top_logprobs.size(); ++i) {
      if (top_logprobs[i].token_ids != other.top_logprobs[i].token_ids ||
          top_logprobs[i].logprobs != other.top_logprobs[i].logprobs) {
        return false;
      }
    }
    return text == other.text && tokens == other.tokens && logprobs == other.logprobs && reason == other.reason;
  }
};

struct Outcome {
  std::map<uint32_t, Output> samples;
  std::vector<Event> prompts;
  Status failure;
  int num_last = 0;
  bool after_last = false;  // an event followed the terminal one
  std::vector<Event> all;

  void add(const Event& event) {
    after_last = after_last || num_last > 0;
    num_last += event.is_last ? 1 : 0;
    all.push_back(event);
    if (event.type == EventType::kPrompt) prompts.push_back(event);
    if (event.type == EventType::kFailed) failure = event.status;
    if (event.type != EventType::kTokens && event.type != EventType::kFinished) return;
    Output& out = samples[event.index];
    out.text += event.text;
    out.tokens.insert(out.tokens.end(), event.tokens.begin(), event.tokens.end());
    out.logprobs.insert(out.logprobs.end(), event.logprobs.begin(), event.logprobs.end());
    out.top_logprobs.insert(out.top_logprobs.end(), event.top_logprobs.begin(), event.top_logprobs.end());
    if (event.type == EventType::kFinished) {
      REQUIRE(event.text.empty());
      REQUIRE(out.reason == FinishReason::kNone);
      out.reason = event.finish_reason;
      out.usage = event.usage;
    }
  }
  const Output& only() const {
    REQUIRE(samples.size() == 1);
    return samples.begin()->second;
  }
};

inline void drain(Scheduler& scheduler, std::map<uint64_t, Outcome>& results) {
  while (auto event = scheduler.next_event()) results[event->request_id].add(*event);
}

inline bool step(Scheduler& scheduler) {
  auto more = scheduler.step();
  INFO(more.status().to_string());
  REQUIRE(more.ok());
  const Status law = scheduler.check_invariants();
  INFO(law.to_string());
  REQUIRE(law.ok());
  return *more;
}

// Steps until nothing is left; every request has one terminal event then.
inline std::map<uint64_t, Outcome> run_all(Scheduler& scheduler, int max_steps = 100000) {
  std::map<uint64_t, Outcome> results;
  int steps = 0;
  while (step(scheduler)) {
    drain(scheduler, results);
    REQUIRE(++steps < max_steps);
  }
  drain(scheduler, results);
  for (const auto& [id, result] : results) {
    INFO("request " << id);
    CHECK(result.num_last == 1);
    CHECK_FALSE(result.after_last);
  }
  return results;
}

inline uint64_t submit(Scheduler& scheduler, RequestParams params) {
  auto id = scheduler.submit(std::move(params));
  INFO(id.status().to_string());
  REQUIRE(id.ok());
  return *id;
}

inline Outcome run_one(Scheduler& scheduler, RequestParams params) {
  const uint64_t id = submit(scheduler, std::move(params));
  return run_all(scheduler)[id];
}

// Greedy decoding by the definition: the whole context for every token, no cache.
inline std::vector<int32_t> greedy(const Logits& logits, std::vector<int32_t> context, size_t count) {
  std::vector<int32_t> out;
  std::vector<float> row(kVocabSize);
  while (out.size() < count) {
    logits(context, row);
    const auto best = static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin());
    out.push_back(best);
    context.push_back(best);
  }
  return out;
}

// Tokens that a seed stands for.
inline std::vector<int32_t> prompt_of(size_t size, uint64_t seed) {
  std::vector<int32_t> out(size);
  for (size_t i = 0; i < size; ++i) {
    const uint64_t key[2] = {seed, i};
    out[i] = static_cast<int32_t>(1 + hash64(key, sizeof key) % (kVocabSize - 1));
  }
  return out;
}

inline RequestParams request(std::vector<int32_t> prompt, int64_t max_tokens) {
  RequestParams params;
  params.prompt = std::move(prompt);
  params.max_tokens = max_tokens;
  return params;
}

inline RequestParams of_tenant(const std::string& tenant, std::vector<int32_t> prompt, int64_t max_tokens) {
  RequestParams params = request(std::move(prompt), max_tokens);
  params.tenant = tenant;
  return params;
}

}  // namespace headrace::engine::toy
