// A head that guesses a block of tokens in one pass (model/dflash_head.h).
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "kv/kv_cache.h"
#include "model/dflash_head.h"
#include "ops/backend.h"
#include "speculation/drafter.h"
#include "speculation/head_drafter_options.h"

namespace headrace::speculation {

// Rows of a prefix that the model found in its cache have no hidden states: where the drafter's own index does not have them
// either, it begins behind them, and guesses with what it sees.
class BlockDrafter : public Drafter {
 public:
  // backend: the model's, on which the head is. kResourceExhausted where options.memory has too little left.
  static Result<std::unique_ptr<BlockDrafter>> create(std::string name, std::unique_ptr<DflashHead> head,
                                                      std::shared_ptr<Backend> backend,
                                                      const HeadDrafterOptions& options);

  std::string_view name() const override { return name_; }
  std::span<const int32_t> hidden_layers() const override { return head_->spec().feature_layers; }
  Status observe(std::span<const ObservedRows> rows) override;
  Status draft(std::span<const DraftRequest> requests, std::span<DraftTree> trees) override;
  void end(const DraftContext& context) override { sequences_.erase(context.id); }

 private:
  // Row j of kv is the model's row first + j.
  struct Sequence {
    KvSequence kv;
    bool begun = false;
    int64_t first = 0;
    uint64_t round = 0;
    int64_t end() const { return first + kv.num_tokens(); }
  };
  struct Line;

  BlockDrafter(std::string name, std::unique_ptr<DflashHead> head, std::shared_ptr<Backend> backend,
               const HeadDrafterOptions& options, std::shared_ptr<KvCache> cache, MemoryShare memory);
  bool is_readable(std::span<const int32_t> tokens) const;
  void go_to(Sequence& sequence, const ObservedRows& rows);
  Status follow(Sequence& sequence, const ObservedRows& rows);
  bool reserve(KvSequence& kv, int64_t end);
  Status guess(std::span<Line> lines);

  const std::string name_;
  const std::unique_ptr<DflashHead> head_;
  const std::shared_ptr<Backend> backend_;
  const HeadDrafterOptions options_;
  const MemoryShare memory_;
  Turn turn_;
  const std::shared_ptr<KvCache> cache_;
  std::map<SequenceId, Sequence> sequences_;
  uint64_t round_ = 0;
  Batch batch_;
  std::vector<float> context_, logits_;
  std::vector<LogitStats> stats_;
};

}  // namespace headrace::speculation
