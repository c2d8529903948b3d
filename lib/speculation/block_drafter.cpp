#include "speculation/block_drafter.h"

#include <algorithm>
#include <mutex>
#include <utility>

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
                           const BlockDrafterOptions& options, std::shared_ptr<KvCache> cache, MemoryShare memory)
    : name_(std::move(name)),
      head_(std::move(head)),
      backend_(std::move(backend)),
      options_(options),
      memory_(std::move(memory)),
      turn_(options_.turns ? options_.turns : std::make_shared<TurnQueue>(), options_.priority),
      cache_(std::move(cache)) {}

Result<std::unique_ptr<BlockDrafter>> BlockDrafter::create(std::string name, std::unique_ptr<DflashHead> head,
                                                           std::shared_ptr<Backend> backend,
                                                           const BlockDrafterOptions& options) {
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

// Whether the head can follow a sequence.
bool BlockDrafter::is_readable(std::span<const int32_t> tokens) const {
  if (static_cast<int64_t>(tokens.size()) > head_->longest_sequence()) return false;
  return std::ranges::all_of(tokens, [&](int32_t id) { return id >= 0 && id < head_->vocab_size(); });
}

// Makes rows.first the sequence's next row.
void BlockDrafter::go_to(Sequence& sequence, const ObservedRows& rows) {
  if (!sequence.begun || rows.first > sequence.end() || rows.first < sequence.first) {
    // A new one, or rows between were never seen: the index may have them.
    std::string salt(rows.context.scope);
    sequence.begun = true;
    sequence.first = 0;
    sequence.kv = cache_->new_sequence(salt, 0, rows.context.secret);
    if (cache_->match_prefix(sequence.kv, rows.context.tokens, rows.first) < rows.first) {
      // Values at other positions than their own are no others'.
      salt += '\0' + std::to_string(rows.context.id.request) + '.' + std::to_string(rows.context.id.sample) + '.' +
              std::to_string(rows.first);
      sequence.kv = cache_->new_sequence(salt, 0, rows.context.secret);
      sequence.first = rows.first;
    }
  }
  cache_->rewind(sequence.kv, rows.first - sequence.first);
}

// Room for rows up to `end`, be it that of sequences that take no part in this round.
bool BlockDrafter::reserve(KvSequence& kv, int64_t end) {
  for (;;) {
    const Status status = cache_->reserve(kv, end);
    if (status.ok()) return true;
    if (status.code() != StatusCode::kResourceExhausted) return false;
    auto victim = sequences_.end();
    for (auto it = sequences_.begin(); it != sequences_.end(); ++it) {
      if (it->second.round == round_ || it->second.kv.block_ids().empty()) continue;
      if (victim == sequences_.end() || it->second.round < victim->second.round) victim = it;
    }
    if (victim == sequences_.end()) return false;
    sequences_.erase(victim);
  }
}

void BlockDrafter::add_row(const KvSequence& kv, int64_t position, int32_t token) {
  batch_.token_ids.push_back(token);
  batch_.positions.push_back(static_cast<int32_t>(position));
  batch_.slots.push_back(cache_->slot(kv, position));
}

void BlockDrafter::end_rows(const KvSequence& kv) {
  if (batch_.query_start.empty()) batch_.query_start.push_back(0);
  batch_.query_start.push_back(static_cast<int32_t>(batch_.num_tokens()));
  batch_.block_tables.push_back(kv.block_ids().data());
}

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
    for (int64_t row = begin; row < begin + count; ++row) {
      add_row(sequence.kv, row, tokens[static_cast<size_t>(row)]);
    }
    end_rows(sequence.kv);
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
  for (const Line& line : lines) {
    const int64_t begin = line.sequence.kv.num_tokens();
    for (int32_t i = 0; i < spec.block_size; ++i) {
      // The block is whole, whatever is wanted of it: that is what the head was trained with.
      if (i > 0 && i <= line.depth) batch_.logits_rows.push_back(static_cast<int32_t>(batch_.num_tokens()));
      add_row(line.sequence.kv, begin + i, i == 0 ? line.request.context.tokens.back() : spec.mask_token_id);
    }
    end_rows(line.sequence.kv);
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
