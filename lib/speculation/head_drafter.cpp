#include "speculation/head_drafter.h"

#include <algorithm>
#include <mutex>
#include <string>
#include <utility>

#include "speculation/draft_sequences.h"
#include "speculation/head_drafter_line.h"

namespace headrace::speculation {

HeadDrafter::HeadDrafter(std::string name, std::unique_ptr<DraftHead> head, std::shared_ptr<Backend> backend,
                         const HeadDrafterOptions& options, std::shared_ptr<KvCache> cache, MemoryShare memory)
    : name_(std::move(name)),
      head_(std::move(head)),
      backend_(std::move(backend)),
      options_(options),
      memory_(std::move(memory)),
      turn_(options_.turns ? options_.turns : std::make_shared<TurnQueue>(), options_.priority),
      cache_(std::move(cache)) {}

Result<std::unique_ptr<HeadDrafter>> HeadDrafter::create(std::string name, std::unique_ptr<DraftHead> head,
                                                         std::shared_ptr<Backend> backend,
                                                         const HeadDrafterOptions& options) {
  KvCacheConfig config;
  config.layers = head->kv_layouts(options.kv_dtype, options.block_size);
  config.num_blocks = (std::max<int64_t>(options.max_tokens, 2) + options.block_size - 1) / options.block_size;
  config.memory = backend->memory();
  HEADRACE_ASSIGN_OR_RETURN(std::shared_ptr<KvCache> cache, KvCache::create(std::move(config)));
  MemoryShare memory(options.memory, "drafter");
  HEADRACE_RETURN_IF_ERROR(memory.resize(head->held_bytes(options.max_rows) + cache->stats().pool_bytes));
  return std::unique_ptr<HeadDrafter>(new HeadDrafter(std::move(name), std::move(head), std::move(backend), options,
                                                      std::move(cache), std::move(memory)));
}

bool HeadDrafter::is_readable(std::span<const int32_t> tokens) const {
  return speculation::is_readable(tokens, head_->longest_sequence(), head_->vocab_size());
}

// Appends what was observed, behind what stands of the sequence.
Status HeadDrafter::follow(Sequence& sequence, const ObservedRows& rows) {
  const int64_t width = head_->hidden_size();
  const auto& tokens = rows.context.tokens;
  const int64_t known = sequence.first + sequence.num_rows(width);
  if (sequence.tokens.empty() || rows.first > known || rows.first < sequence.first) {
    // A new one, or rows between were never seen: the index may have them.
    BegunSequence begun =
        begin_at(*cache_, rows.context, std::string(rows.context.scope) + '\0' + std::to_string(tokens[0]),
                 tokens.subspan(1), rows.first);
    sequence.kv = std::move(begun.kv);
    sequence.first = begun.begin;
    sequence.pending.clear();
  }
  // Rows from rows.first on are replaced.
  const int64_t kept = rows.first - sequence.first, stored = sequence.kv.num_tokens();
  if (kept <= stored) {
    sequence.pending.clear();
    cache_->rewind(sequence.kv, kept);
  } else {
    sequence.pending.resize(static_cast<size_t>((kept - stored) * width));
  }
  const size_t at = sequence.pending.size();
  sequence.pending.resize(at + static_cast<size_t>(rows.count * width));
  const int64_t end = rows.first + rows.count;
  sequence.tokens.assign(tokens.begin() + sequence.first + 1,
                         tokens.begin() + std::min(end + 1, static_cast<int64_t>(tokens.size())));
  const std::lock_guard lock(turn_);
  return head_->project(rows.hidden, rows.count, sequence.pending.data() + at);
}

bool HeadDrafter::reserve(KvSequence& kv, int64_t end) { return reserve_room(*cache_, sequences_, round_, kv, end); }

// Rows from `begin` on, of a sequence with room for them; the last one's logits.
void HeadDrafter::add_rows(const KvSequence& kv, int64_t begin, std::span<const int32_t> tokens, bool logits) {
  if (batch_.query_start.empty()) batch_.query_start.push_back(0);
  for (size_t i = 0; i < tokens.size(); ++i) {
    const int64_t row = begin + static_cast<int64_t>(i);
    batch_.token_ids.push_back(tokens[i]);
    batch_.positions.push_back(static_cast<int32_t>(row));
    batch_.slots.push_back(cache_->slot(kv, row));
  }
  batch_.query_start.push_back(static_cast<int32_t>(batch_.num_tokens()));
  batch_.block_tables.push_back(kv.block_ids().data());
  if (logits) batch_.logits_rows.push_back(static_cast<int32_t>(batch_.num_tokens()) - 1);
}

// Computes pending rows but the last ones, of which a guess needs logits.
Status HeadDrafter::absorb(Sequence& sequence) {
  const int64_t width = head_->hidden_size();
  while (static_cast<int64_t>(sequence.pending.size()) / width > options_.max_rows) {
    const int64_t begin = sequence.kv.num_tokens(), end = begin + options_.max_rows;
    if (!reserve(sequence.kv, end)) return resource_exhausted("drafter", "no room for {} rows", end);
    batch_.clear();
    add_rows(sequence.kv, begin,
             std::span(sequence.tokens).subspan(static_cast<size_t>(begin), static_cast<size_t>(options_.max_rows)),
             false);
    {
      const std::lock_guard lock(turn_);
      HEADRACE_RETURN_IF_ERROR(head_->run(batch_, sequence.pending.data(), *cache_, nullptr, nullptr));
    }
    HEADRACE_RETURN_IF_ERROR(cache_->commit(sequence.kv, sequence.tokens, end));
    sequence.pending.erase(sequence.pending.begin(), sequence.pending.begin() + options_.max_rows * width);
  }
  return {};
}

Status HeadDrafter::observe(std::span<const ObservedRows> rows) {
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
    Status status = follow(sequence, observed);
    if (status.ok()) status = absorb(sequence);
    if (!status.ok()) sequences_.erase(observed.context.id);  // it begins again behind these rows
  }
  return {};
}

// One pass of the lines' rows: logits and features of what follows the last of each.
Status HeadDrafter::run_lines(const std::vector<Line*>& lines) {
  const auto width = static_cast<size_t>(head_->hidden_size());
  batch_.clear();
  features_.clear();
  for (Line* line : lines) {
    add_rows(line->sequence.kv, line->begin, std::span(line->sequence.tokens).subspan(static_cast<size_t>(line->begin)),
             true);
    const auto count = static_cast<size_t>(line->end() - line->begin);
    features_.insert(features_.end(), line->features, line->features + count * width);
  }
  return run();
}

// The pass of the batch and its rows' features.
Status HeadDrafter::run() {
  const size_t count = batch_.logits_rows.size();
  const auto vocab_size = static_cast<size_t>(head_->vocab_size());
  logits_.resize(count * vocab_size);
  next_.resize(count * static_cast<size_t>(head_->hidden_size()));
  stats_.resize(count);
  const std::lock_guard lock(turn_);
  HEADRACE_RETURN_IF_ERROR(head_->run(batch_, features_.data(), *cache_, logits_.data(), next_.data()));
  backend_->logit_stats({logits_.data(), static_cast<int64_t>(count), static_cast<int64_t>(vocab_size), stats_.data()});
  return {};
}

Status HeadDrafter::draft(std::span<const DraftRequest> requests, std::span<DraftTree> trees) {
  ++round_;
  const int64_t width = head_->hidden_size();
  std::vector<Line> lines;
  lines.reserve(requests.size());
  std::vector<Line*> active;
  for (size_t i = 0; i < requests.size(); ++i) {
    const auto found = sequences_.find(requests[i].context.id);
    if (found == sequences_.end()) continue;
    Sequence& sequence = found->second;
    const auto size = static_cast<int64_t>(requests[i].context.tokens.size());
    // All rows that the model has computed, and nothing else: the last token's row is the only one to come.
    if (!is_readable(requests[i].context.tokens)) continue;
    if (sequence.pending.empty() || sequence.first + sequence.num_rows(width) != size - 1) continue;
    sequence.round = round_;
    sequence.tokens.assign(requests[i].context.tokens.begin() + sequence.first + 1, requests[i].context.tokens.end());
    if (!reserve(sequence.kv, static_cast<int64_t>(sequence.tokens.size()))) continue;
    lines.push_back({GuessChain(requests[i], trees[i], head_->vocab_size(), options_.least_survival), sequence,
                     sequence.kv.num_tokens(), sequence.pending.data(), trees[i]});
    active.push_back(&lines.back());
  }
  // Lines that branch and those that are chains go on apart.
  for (const bool branches : {false, true}) {
    std::vector<Line*> alike;
    for (Line* line : active) {
      if (line->chain.branches() == branches) alike.push_back(line);
    }
    if (alike.empty()) continue;
    HEADRACE_RETURN_IF_ERROR(run_lines(alike));
    for (Line* line : alike) {
      HEADRACE_RETURN_IF_ERROR(cache_->commit(line->sequence.kv, line->sequence.tokens, line->end()));
      line->sequence.pending.clear();
    }
    HEADRACE_RETURN_IF_ERROR(branches ? grow_trees(alike) : grow_chains(std::move(alike)));
  }
  return {};
}

// Behind the lines' first pass: pass after pass, a guess in each.
Status HeadDrafter::grow_chains(std::vector<Line*> active) {
  const int64_t width = head_->hidden_size(), longest = head_->longest_sequence();
  const auto vocab_size = static_cast<size_t>(head_->vocab_size());
  std::vector<float> following;  // features of the active lines' next rows
  for (;;) {
    std::vector<Line*> next;
    following.clear();
    for (size_t row = 0; row < active.size(); ++row) {
      Line& line = *active[row];
      const auto token = line.chain.guess({logits_.data() + row * vocab_size, vocab_size}, stats_[row]);
      const int64_t at = line.end();
      if (!token || !line.chain.goes_on() || at >= longest) continue;
      line.sequence.tokens.push_back(*token);
      line.begin = at;
      // Rows of guesses are not committed: the next ones take their places.
      if (!reserve(line.sequence.kv, at + 1)) continue;
      following.insert(following.end(), next_.begin() + static_cast<ptrdiff_t>(row) * width,
                       next_.begin() + static_cast<ptrdiff_t>(row + 1) * width);
      next.push_back(&line);
    }
    if (next.empty()) return {};
    for (size_t row = 0; row < next.size(); ++row)
      next[row]->features = following.data() + static_cast<ptrdiff_t>(row) * width;
    active = std::move(next);
    HEADRACE_RETURN_IF_ERROR(run_lines(active));
  }
}

}  // namespace headrace::speculation
