// A smaller model of the same vocabulary guesses: it writes on, and the model checks what it wrote.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/memory_budget.h"
#include "base/status.h"
#include "base/turn_queue.h"
#include "model/forward.h"
#include "model/model.h"
#include "ops/backend.h"
#include "speculation/draft_sequences.h"
#include "speculation/drafter.h"
#include "speculation/guess_chain.h"
#include "text/tokenizer.h"

namespace headrace::speculation {

struct ModelDrafterOptions {
  int64_t max_tokens = 4096;  // that the drafter's own cache holds over all sequences
  int64_t max_rows = 512;     // of one pass; a longer prompt is read over several calls, without guesses meanwhile
  KvDType kv_dtype = KvDType::kF16;
  int32_t block_size = 16;
  // It stops where the guesses so far are all accepted with less than this probability, by its own.
  float least_survival = 0.1f;
  // Whose turns the backend's threads are shared by; null: they are its own.
  std::shared_ptr<TurnQueue> turns = nullptr;
  int32_t priority = 0;
  // Of the drafter's weights, cache and workspace; null: none.
  std::shared_ptr<MemoryBudget> memory = nullptr;
};

// kInvalidArgument naming the first token that the two spell differently, and for what only one of them has; `draft` is the
// drafter's. Without tokenizers (either null) sizes alone are compared.
Status check_same_vocabulary(const text::Tokenizer* target, int32_t target_size, const text::Tokenizer* draft,
                             int32_t draft_size);

// Guesses are chains (guess_chain.h); the drafter follows each sequence with keys and values of its own.
class ModelDrafter : public Drafter {
 public:
  // backend: the model's, of nobody else. vocab_size: of the model that checks; no other ids are guessed. kUnsupported with
  // the reason for models that cannot draft: encoders, and those with a recurrent state or a rotation by length.
  // kResourceExhausted where options.memory has too little left.
  static Result<std::unique_ptr<ModelDrafter>> create(std::string name, std::shared_ptr<const Model> model,
                                                      std::shared_ptr<Backend> backend, int32_t vocab_size,
                                                      const ModelDrafterOptions& options);

  std::string_view name() const override { return name_; }
  Status draft(std::span<const DraftRequest> requests, std::span<DraftTree> trees) override;
  void end(const DraftContext& context) override { sequences_.end(context.id); }

  KvCacheStats cache_stats() { return sequences_.cache().stats(); }

 private:
  struct Line;

  ModelDrafter(std::string name, std::shared_ptr<const Model> model, std::shared_ptr<Backend> backend,
               int32_t vocab_size, const ModelDrafterOptions& options, std::shared_ptr<KvCache> cache,
               MemoryShare memory);
  Status run_rows(std::vector<Line*>& lines, bool catch_up);

  const std::string name_;
  const std::shared_ptr<const Model> model_;
  const std::shared_ptr<Backend> backend_;
  const int32_t vocab_size_;
  const ModelDrafterOptions options_;
  const MemoryShare memory_;
  DraftSequences sequences_;
  Turn turn_;
  ForwardPass forward_;
  Batch batch_;
  std::vector<float> logits_;
  std::vector<LogitStats> stats_;
};

}  // namespace headrace::speculation
