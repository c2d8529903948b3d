// A head over the model's own hidden states guesses (model/draft_head.h): layers of multi-token prediction, EAGLE.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "kv/kv_cache.h"
#include "model/draft_head.h"
#include "ops/backend.h"
#include "speculation/drafter.h"
#include "speculation/guess_chain.h"
#include "speculation/head_drafter_options.h"

namespace headrace::speculation {

// Rows of a prefix that the model found in its cache have no hidden states: where the drafter's own index does not have them
// either, it begins behind them, and guesses with what it sees.
//
// Where branches are wanted the head goes on behind the likeliest guesses of each depth, whichever they follow, and the likeliest of
// all are given (EAGLE-2, Li et al. 2024).
class HeadDrafter : public Drafter {
 public:
  // backend: the model's, on which the head is. kResourceExhausted where options.memory has too little left.
  static Result<std::unique_ptr<HeadDrafter>> create(std::string name, std::unique_ptr<DraftHead> head,
                                                     std::shared_ptr<Backend> backend,
                                                     const HeadDrafterOptions& options);

  std::string_view name() const override { return name_; }
  std::span<const int32_t> hidden_layers() const override { return head_->feature_layers(); }
  Status observe(std::span<const ObservedRows> rows) override;
  Status draft(std::span<const DraftRequest> requests, std::span<DraftTree> trees) override;
  void end(const DraftContext& context) override { sequences_.erase(context.id); }

 private:
  // Row j of the drafter has the features of the model's row first + j, and the token behind that one.
  struct Sequence {
    KvSequence kv;                // of rows with the model's own features
    std::vector<int32_t> tokens;  // of all rows, but for a last one whose token is not drawn yet
    std::vector<float> pending;   // features [rows, hidden_size] of those behind the rows in kv
    int64_t first = 0;
    uint64_t round = 0;

    int64_t num_rows(int64_t hidden_size) const {
      return kv.num_tokens() + static_cast<int64_t>(pending.size()) / hidden_size;
    }
  };
  struct Line;
  struct Tip;

  HeadDrafter(std::string name, std::unique_ptr<DraftHead> head, std::shared_ptr<Backend> backend,
              const HeadDrafterOptions& options, std::shared_ptr<KvCache> cache, MemoryShare memory);
  bool is_readable(std::span<const int32_t> tokens) const;
  Status follow(Sequence& sequence, const ObservedRows& rows);
  void add_rows(const KvSequence& kv, int64_t begin, std::span<const int32_t> tokens, bool logits);
  bool reserve(KvSequence& kv, int64_t end);
  Status absorb(Sequence& sequence);
  Status run_lines(const std::vector<Line*>& lines);
  Status run();
  Status grow_chains(std::vector<Line*> lines);
  // head_drafter_trees.cpp
  Status grow_trees(const std::vector<Line*>& lines);
  void add_tips(Line& line, int32_t node, size_t row, const std::vector<float>& before, std::vector<Tip>& tips);
  std::vector<Tip> keep_best(std::vector<Tip> tips) const;
  Status run_tips(std::vector<Tip>& tips);

  const std::string name_;
  const std::unique_ptr<DraftHead> head_;
  const std::shared_ptr<Backend> backend_;
  const HeadDrafterOptions options_;
  const MemoryShare memory_;
  Turn turn_;
  const std::shared_ptr<KvCache> cache_;
  std::map<SequenceId, Sequence> sequences_;
  uint64_t round_ = 0;
  Batch batch_;
  std::vector<float> features_, logits_, next_;
  std::vector<LogitStats> stats_;
};

}  // namespace headrace::speculation
