// What the engine needs of a model: forward passes, and the facts around them. Tests put a table in its place.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/device_memory.h"
#include "base/hash.h"
#include "base/memory_budget.h"
#include "base/status.h"
#include "engine/engine_options.h"
#include "kv/kv_cache.h"
#include "model/adapter.h"
#include "model/batch.h"
#include "ops/backend_tuner.h"
#include "ops/op_profile.h"
#include "tensor/op_params.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace headrace {
class Backend;
class Model;
class TurnQueue;
}  // namespace headrace

namespace headrace::engine {

class ImageReader;
class InputReader;
class Session;

// The salt of cached values in a prefix index: values of an adapter's are its alone, whatever salt a request has.
std::string adapted_salt(const Adapter* adapter, std::string_view salt);
// Likewise those of a decoder behind an encoder's input of this content. Caches of models without such an encoder never hold
// the one, and of those with one never the other.
std::string input_salt(const Hash128& content, std::string_view salt);

// Forward passes of one model. Thread rule: run may be called from any thread; passes of one model take turns inside.
class StepExecutor {
 public:
  virtual ~StepExecutor() = default;
  virtual int32_t vocab_size() const = 0;
  // The longest sequence that the model takes.
  virtual int64_t max_context() const = 0;
  // One per layer with attention, in the order of KvCache's layers.
  virtual std::vector<KvLayout> kv_layouts(KvDType dtype, int32_t block_size) const = 0;
  // Recurrent state of one sequence; 0: the model has none.
  virtual uint64_t state_floats() const { return 0; }
  // All that changes the meaning of cached keys and values beside the tokens and the layouts.
  virtual Hash128 kv_identity() const = 0;
  // The rotation of a prompt of `length` tokens, and up to how many a sequence keeps it (model/rope_length.h).
  virtual int64_t rope_length(int64_t /*length*/) const { return 0; }
  virtual int64_t longest_of_rope_length(int64_t /*rope_length*/) const { return std::numeric_limits<int64_t>::max(); }
  // Of a row's hidden states, and whether those of such layers can be had (model/hidden_tap.h).
  virtual int32_t hidden_size() const { return 0; }
  virtual Status check_hidden_layers(std::span<const int32_t> layers) const;
  // Of the backend: "cpu/avx2" and its threads.
  virtual std::string_view backend_name() const { return "none"; }
  // Where the backend wants the cache; null: in the program's memory.
  virtual std::shared_ptr<DeviceMemory> memory() const { return nullptr; }
  virtual int num_threads() const { return 1; }
  // Where forward passes and steps are recorded, or null.
  virtual OpProfile* profile() const { return nullptr; }
  // Runs the batch: writes keys and values to the batch's slots and logits [logits_rows, vocab_size] float32 (null when
  // no row is wanted), and what its hidden_taps ask for. Row t depends on its own sequence alone. After a failure the slots hold anything.
  virtual Status run(const Batch& batch, KvCache& kv_cache, float* logits) = 0;
  // The same for the rows behind the last layer, hidden [logits_rows, hidden_size], and what the model's head makes of
  // such rows, or of what they are pooled to: out [num_rows, head_width()].
  virtual Status run_hidden(const Batch& batch, KvCache& kv_cache, float* hidden);
  virtual Status run_head(const float* rows, int64_t num_rows, float* out);
  // Null where the model reads no images.
  virtual ImageReader* images() { return nullptr; }
  // Null where no encoder stands in front of the model's decoder; else every sequence of a batch has a memory of it.
  virtual InputReader* inputs() { return nullptr; }
  // kUnsupported with the reason where the model continues no text.
  virtual Status check_generates() const { return Status(); }
  // Room for passes of so many rows with logits of so many of them, of the runtime's budget where there is one.
  virtual Status reserve_workspace(int64_t /*rows*/, int64_t /*logits_rows*/) { return Status(); }
  // Whether another pass will follow soon after each: models of lower priority then wait for it, for a moment.
  virtual void expect_more(bool /*more*/) {}
  // The adapter of a PEFT folder for this model, with those that are the model's own; passes wait while it is packed.
  virtual Result<std::shared_ptr<const Adapter>> load_adapter(const std::string& folder);
  // Measures how this machine computes the model's products best and gives the table (ops/backend_tuner.h). Passes and
  // measurements take turns; between two, progress is called without a lock with the share done: false cancels.
  virtual Result<std::string> tune(const TuneRequest& request, const std::function<bool(double)>& progress);
  // Sums up each of the rows that run wrote.
  virtual void logit_stats(const LogitStatsParams& params);
  // Of a steady clock: passes are timed by it.
  virtual int64_t clock_ns() const;
};

// A model as sessions and schedulers see it. Immutable but for the list of sessions; shared by all that use it.
struct EngineModel {
  std::shared_ptr<StepExecutor> executor;
  std::shared_ptr<const Model> model;                       // null where a test's executor stands alone
  std::shared_ptr<Backend> backend;                         // the model's, likewise
  std::shared_ptr<TurnQueue> turns;                         // by which the backend is used, likewise
  std::shared_ptr<const text::Tokenizer> tokenizer;         // null: no text in or out
  std::shared_ptr<const text::ChatTemplate> chat_template;  // null: the model has none
  Status no_chat_template;                                  // why chat_template is null
  std::vector<int32_t> end_of_generation_ids;               // ascending
  std::shared_ptr<MemoryBudget> memory;                     // of caches; null: none
  std::shared_ptr<const Adapter> own_adapter;               // of all that names no other (a graft's); null: none

  // Sessions whose idle cached values may be given up for a request that needs the room; a session's tokens are the
  // truth, so it only pays by computing them again.
  void register_session(const std::shared_ptr<Session>& session) const;
  // Frees the values of one idle session on this cache, the longest unused first; false when there is none.
  bool shed_idle_session(const KvCache& kv_cache) const;
  // Blocks of this cache that idle pinned sessions hold.
  int64_t pinned_blocks(const KvCache& kv_cache) const;

 private:
  std::vector<std::shared_ptr<Session>> sessions_of(const KvCache& kv_cache) const;

  mutable std::mutex sessions_mutex_;
  mutable std::vector<std::weak_ptr<Session>> sessions_;
};

// Tokens that a model's cache holds by the options, at least.
int64_t cache_tokens(const EngineModel& model, const EngineOptions& options);
// A cache of the size and type that the options name; max_tokens is rounded up to whole blocks. kUnsupported for a model
// that does not generate: it has nothing to keep.
Result<std::shared_ptr<KvCache>> make_kv_cache(const EngineModel& model, const EngineOptions& options);
// The same for any model, for values that serve one call.
Result<std::shared_ptr<KvCache>> make_scratch_cache(const EngineModel& model, const EngineOptions& options);
// kFailedPrecondition where the cache is not of this model (identity or layouts differ).
Status check_kv_cache(const EngineModel& model, const KvCache& kv_cache);
// Tokens of one sequence that both the model's context and the cache can hold.
int64_t context_limit(const EngineModel& model, const KvCache& kv_cache);

}  // namespace headrace::engine
