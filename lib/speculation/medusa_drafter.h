// Medusa heads guess (model/medusa_heads.h): each token by a head of its own from the last row that the model computed, so that any
// head's tokens may follow any of the head before.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/memory_budget.h"
#include "base/status.h"
#include "base/turn_queue.h"
#include "model/medusa_heads.h"
#include "ops/backend.h"
#include "speculation/drafter.h"

namespace headrace::speculation {

struct MedusaDrafterOptions {
  int64_t max_rows = 64;        // of one run of a head: sequences that are guessed for at once
  float least_survival = 0.1f;  // as GuessChain
  // Whose turns the model's backend is shared by; null: the drafter has it alone.
  std::shared_ptr<TurnQueue> turns = nullptr;
  int32_t priority = 0;
  // Of the heads' weights and the workspace; null: none.
  std::shared_ptr<MemoryBudget> memory = nullptr;
};

class MedusaDrafter : public Drafter {
 public:
  // backend: the model's, on which the heads are. kResourceExhausted where options.memory has too little left.
  static Result<std::unique_ptr<MedusaDrafter>> create(std::string name, std::unique_ptr<MedusaHeads> heads,
                                                       std::shared_ptr<Backend> backend,
                                                       const MedusaDrafterOptions& options);

  std::string_view name() const override { return name_; }
  std::span<const int32_t> hidden_layers() const override { return heads_->spec().feature_layers; }
  Status observe(std::span<const ObservedRows> rows) override;
  Status draft(std::span<const DraftRequest> requests, std::span<DraftTree> trees) override;
  void end(const DraftContext& context) override { rows_.erase(context.id); }

 private:
  struct Line;
  // The last row of a sequence that stands.
  struct Row {
    int64_t position = 0;
    std::vector<float> hidden;  // [hidden_size]
  };

  MedusaDrafter(std::string name, std::unique_ptr<MedusaHeads> heads, std::shared_ptr<Backend> backend,
                const MedusaDrafterOptions& options, MemoryShare memory);
  Status guess(std::span<Line*> lines);
  Status run(int32_t head, std::span<Line* const> lines);

  const std::string name_;
  const std::unique_ptr<MedusaHeads> heads_;
  const std::shared_ptr<Backend> backend_;
  const MedusaDrafterOptions options_;
  const MemoryShare memory_;
  Turn turn_;
  std::map<SequenceId, Row> rows_;
  std::vector<float> hidden_, logits_;
  std::vector<LogitStats> stats_;
};

}  // namespace headrace::speculation
