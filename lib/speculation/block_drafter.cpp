#include "speculation/block_drafter.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "speculation/draft_sequences.h"
#include "speculation/guess_chain.h"
#include "speculation/position_tree.h"

namespace headrace::speculation {

struct BlockDrafter::Line {
  const DraftRequest& request;
  Sequence& sequence;
  DraftTree& tree;
  int32_t depth;  // guesses that are wanted of the block
};

BlockDrafter::BlockDrafter(std::string name, std::unique_ptr<DflashHead> head, std::shared_ptr<Backend> backend,
                           const HeadDrafterOptions& options, std::shared_ptr<KvCache> cache, MemoryShare memory)
    : name_(std::move(name)),
      head_(std::move(head)),
      backend_(std::move(backend)),
      options_(options),
      memory_(std::move(memory)),
      turn_(options_.turns ? options_.turns : std::make_shared<TurnQueue>(), options_.priority),
      cache_(std::move(cache)) {}

Result<std::unique_ptr<BlockDrafter>> BlockDrafter::create(std::string name, std::unique_ptr<DflashHead> head,
                                                           std::shared_ptr<Backend> backend,
                                                           const HeadDrafterOptions& options) {
  KvCacheConfig config;
  config.layers = head->kv_layouts(options.kv_dtype, options.block_size);
  const int64_t tokens = std::max<int64_t>(options.max_tokens, 0) + head->spec().block_size;
  config.num_blocks = (tokens + options.block_size - 1) / options.block_size;
  config.memory = backend->memory();
  HEADRACE_ASSIGN_OR_RETURN(std::shared_ptr<KvCache> cache, KvCache::create(std::move(config)));
  const int64_t rows = std::max<int64_t>(options.max_rows, head->spec().block_size);
  MemoryShare memory(options.memory, "drafter");
  HEADRACE_RETURN_IF_ERROR(memory.resize(head->held_bytes(rows) + cache->stats().pool_bytes));
  return std::unique_ptr<BlockDrafter>(new BlockDrafter(std::move(name), std::move(head), std::move(backend), options,
                                                        std::move(cache), std::move(memory)));
}

bool BlockDrafter::is_readable(std::span<const int32_t> tokens) const {
  return speculation::is_readable(tokens, head_->longest_sequence(), head_->vocab_size());
}

// Makes rows.first the sequence's next row.
void BlockDrafter::go_to(Sequence& sequence, const ObservedRows& rows) {
  if (!sequence.begun || rows.first > sequence.end() || rows.first < sequence.first) {
    // A new one, or rows between were never seen: the index may have them.
    BegunSequence begun =
        begin_at(*cache_, rows.context, std::string(rows.context.scope), rows.context.tokens, rows.first);
    sequence.kv = std::move(begun.kv);
    sequence.first = begun.begin;
    sequence.begun = true;
  }
  cache_->rewind(sequence.kv, rows.first - sequence.first);
}

bool BlockDrafter::reserve(KvSequence& kv, int64_t end) { return reserve_room(*cache_, sequences_, round_, kv, end); }

// Stores what was observed, behind what stands of the sequence.
Status BlockDrafter::follow(Sequence& sequence, const ObservedRows& rows) {
  go_to(sequence, rows);
  const int64_t most = std::max<int64_t>(options_.max_rows, 1);
  const auto inputs = static_cast<int64_t>(hidden_layers().size()) * head_->hidden_size();
  const auto tokens = rows.context.tokens.subspan(static_cast<size_t>(sequence.first));
  for (int64_t done = 0; done < rows.count; done += most) {
    const int64_t count = std::min(most, rows.count - done), begin = sequence.kv.num_tokens();
    if (!reserve(sequence.kv, begin + count))
      return resource_exhausted("drafter", "no room for {} rows", begin + count);
    batch_.clear();
    batch_.add_sequence(*cache_, sequence.kv, tokens, begin + count, begin + count);
    context_.resize(static_cast<size_t>(count * head_->hidden_size()));
    {
      const std::lock_guard lock(turn_);
      HEADRACE_RETURN_IF_ERROR(head_->project(rows.hidden + done * inputs, count, context_.data()));
      HEADRACE_RETURN_IF_ERROR(head_->store(batch_, context_.data(), *cache_));
    }
    HEADRACE_RETURN_IF_ERROR(cache_->commit(sequence.kv, tokens, begin + count));
  }
  return {};
}

Status BlockDrafter::observe(std::span<const ObservedRows> rows) {
  ++round_;
  for (const ObservedRows& observed : rows) {
    if (observed.hidden == nullptr || observed.count == 0) continue;
    const auto size = static_cast<int64_t>(observed.context.tokens.size());
    if (observed.first + observed.count > size || !is_readable(observed.context.tokens)) {
      sequences_.erase(observed.context.id);
      continue;
    }
    Sequence& sequence = sequences_[observed.context.id];
    sequence.round = round_;
    // Where it fails the sequence begins again behind these rows.
    if (!follow(sequence, observed).ok()) sequences_.erase(observed.context.id);
  }
  return {};
}

// One pass of a block for each line, and the chains that its logits give.
Status BlockDrafter::guess(std::span<Line> lines) {
  const DflashSpec& spec = head_->spec();
  batch_.clear();
  const std::vector<int32_t> masks(static_cast<size_t>(spec.block_size) - 1, spec.mask_token_id);
  for (const Line& line : lines) {
    // The block is whole, whatever is wanted of it: that is what the head was trained with.
    const auto tokens = line.request.context.tokens.subspan(static_cast<size_t>(line.sequence.first));
    const int64_t begin = line.sequence.kv.num_tokens();
    batch_.add_sequence(*cache_, line.sequence.kv, tokens, begin + spec.block_size, begin + 1, nullptr, masks);
    batch_.logits_rows.resize(batch_.logits_rows.size() - (masks.size() - static_cast<size_t>(line.depth)));
  }
  const size_t count = batch_.logits_rows.size();
  const auto vocab_size = static_cast<size_t>(head_->vocab_size());
  logits_.resize(count * vocab_size);
  stats_.resize(count);
  {
    const std::lock_guard lock(turn_);
    HEADRACE_RETURN_IF_ERROR(head_->guess(batch_, *cache_, logits_.data()));
    backend_->logit_stats(
        {logits_.data(), static_cast<int64_t>(count), static_cast<int64_t>(vocab_size), stats_.data()});
  }
  size_t row = 0;
  for (const Line& line : lines) {
    cache_->rewind(line.sequence.kv, line.sequence.kv.num_tokens());
    GuessChain chain(line.request, line.tree, head_->vocab_size(), options_.least_survival);
    // The pass was made: what further guesses cost is their rows alone, which is weighed when guesses are chosen.
    for (size_t i = 0; i < static_cast<size_t>(line.depth); ++i) {
      if (!chain.guess({logits_.data() + (row + i) * vocab_size, vocab_size}, stats_[row + i])) break;
      if (!chain.has_room()) break;
    }
    row += static_cast<size_t>(line.depth);
    if (line.request.max_branches > 1) line.tree = combine_positions(line.tree, line.request.max_nodes);
  }
  return {};
}

Status BlockDrafter::draft(std::span<const DraftRequest> requests, std::span<DraftTree> trees) {
  ++round_;
  const int64_t block = head_->spec().block_size;
  std::vector<Line> lines;
  for (size_t i = 0; i < requests.size(); ++i) {
    const auto& tokens = requests[i].context.tokens;
    const auto found = sequences_.find(requests[i].context.id);
    // All rows that the model has computed, and nothing else: the last token's row is the only one to come.
    if (found == sequences_.end() || found->second.end() != static_cast<int64_t>(tokens.size()) - 1) continue;
    Sequence& sequence = found->second;
    const int64_t end = sequence.kv.num_tokens() + block;
    if (end > head_->longest_sequence() || !is_readable(tokens)) continue;
    sequence.round = round_;
    if (!reserve(sequence.kv, end)) continue;
    const auto depth = static_cast<int32_t>(std::min<int64_t>(block - 1, requests[i].max_depth));
    lines.push_back({requests[i], sequence, trees[i], depth});
  }
  const auto most = static_cast<size_t>(std::max<int64_t>(options_.max_rows / block, 1));
  for (size_t at = 0; at < lines.size(); at += most) {
    HEADRACE_RETURN_IF_ERROR(guess(std::span(lines).subspan(at, std::min(most, lines.size() - at))));
  }
  return {};
}

}  // namespace headrace::speculation
