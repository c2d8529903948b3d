#include "speculation/medusa_drafter.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "speculation/guess_chain.h"
#include "speculation/position_tree.h"

namespace headrace::speculation {

struct MedusaDrafter::Line {
  GuessChain chain;
  const Row* row;
};

MedusaDrafter::MedusaDrafter(std::string name, std::unique_ptr<MedusaHeads> heads, std::shared_ptr<Backend> backend,
                             const MedusaDrafterOptions& options, MemoryShare memory)
    : name_(std::move(name)),
      heads_(std::move(heads)),
      backend_(std::move(backend)),
      options_(options),
      memory_(std::move(memory)),
      turn_(options_.turns ? options_.turns : std::make_shared<TurnQueue>(), options_.priority) {}

Result<std::unique_ptr<MedusaDrafter>> MedusaDrafter::create(std::string name, std::unique_ptr<MedusaHeads> heads,
                                                             std::shared_ptr<Backend> backend,
                                                             const MedusaDrafterOptions& options) {
  MemoryShare memory(options.memory, "drafter");
  HEADRACE_RETURN_IF_ERROR(memory.resize(heads->held_bytes(options.max_rows)));
  return std::unique_ptr<MedusaDrafter>(
      new MedusaDrafter(std::move(name), std::move(heads), std::move(backend), options, std::move(memory)));
}

Status MedusaDrafter::observe(std::span<const ObservedRows> rows) {
  const int64_t width = heads_->spec().hidden_size;
  for (const ObservedRows& observed : rows) {
    if (observed.hidden == nullptr || observed.count == 0) continue;
    const float* const last = observed.hidden + (observed.count - 1) * width;
    Row& row = rows_[observed.context.id];
    row.position = observed.first + observed.count - 1;
    row.hidden.assign(last, last + width);
  }
  return {};
}

// Logits of one head for the rows of the lines.
Status MedusaDrafter::run(int32_t head, std::span<Line* const> lines) {
  hidden_.clear();
  for (const Line* line : lines) hidden_.insert(hidden_.end(), line->row->hidden.begin(), line->row->hidden.end());
  const auto count = static_cast<int64_t>(lines.size()), vocab_size = int64_t{heads_->spec().vocab_size};
  logits_.resize(static_cast<size_t>(count * vocab_size));
  stats_.resize(lines.size());
  const std::lock_guard lock(turn_);
  HEADRACE_RETURN_IF_ERROR(heads_->run(head, hidden_.data(), count, logits_.data()));
  backend_->logit_stats({logits_.data(), count, vocab_size, stats_.data()});
  return {};
}

// Head after head, for those lines that still go on.
Status MedusaDrafter::guess(std::span<Line*> lines) {
  const auto vocab_size = static_cast<size_t>(heads_->spec().vocab_size);
  for (int32_t head = 0; head < heads_->spec().num_heads && !lines.empty(); ++head) {
    HEADRACE_RETURN_IF_ERROR(run(head, lines));
    size_t kept = 0;
    for (size_t i = 0; i < lines.size(); ++i) {
      const auto token = lines[i]->chain.guess({logits_.data() + i * vocab_size, vocab_size}, stats_[i]);
      if (token && lines[i]->chain.goes_on()) lines[kept++] = lines[i];
    }
    lines = lines.first(kept);
  }
  return {};
}

Status MedusaDrafter::draft(std::span<const DraftRequest> requests, std::span<DraftTree> trees) {
  std::vector<Line> lines;
  lines.reserve(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    const auto found = rows_.find(requests[i].context.id);
    // The row before the last token's, which is the only one to come.
    const auto wanted = static_cast<int64_t>(requests[i].context.tokens.size()) - 2;
    if (found == rows_.end() || found->second.position != wanted) continue;
    lines.push_back(
        {GuessChain(requests[i], trees[i], heads_->spec().vocab_size, options_.least_survival), &found->second});
  }
  std::vector<Line*> all;
  for (Line& line : lines) all.push_back(&line);
  const auto most = static_cast<size_t>(std::max<int64_t>(options_.max_rows, 1));
  for (size_t at = 0; at < all.size(); at += most) {
    HEADRACE_RETURN_IF_ERROR(guess(std::span(all).subspan(at, std::min(most, all.size() - at))));
  }
  for (size_t i = 0; i < requests.size(); ++i) {
    if (requests[i].max_branches > 1) trees[i] = combine_positions(trees[i], requests[i].max_nodes);
  }
  return {};
}

}  // namespace headrace::speculation
