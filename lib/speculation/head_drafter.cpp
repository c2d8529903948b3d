#include "speculation/head_drafter.h"

#include <algorithm>
#include <mutex>
#include <string>
#include <utility>

namespace headrace::speculation {

struct HeadDrafter::Line {
  GuessChain chain;
  Sequence& sequence;
  int64_t begin = 0;                // its first row of the pass
  const float* features = nullptr;  // of the rows of the pass
  int64_t end() const { return static_cast<int64_t>(sequence.tokens.size()); }
};

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
  HEADRACE_ASSIGN_OR_RETURN(std::shared_ptr<KvCache> cache, KvCache::create(std::move(config)));
  MemoryShare memory(options.memory, "drafter");
  HEADRACE_RETURN_IF_ERROR(memory.resize(head->held_bytes(options.max_rows) + cache->stats().pool_bytes));
  return std::unique_ptr<HeadDrafter>(new HeadDrafter(std::move(name), std::move(head), std::move(backend), options,
                                                      std::move(cache), std::move(memory)));
}

// Whether the head can follow a sequence.
bool HeadDrafter::is_readable(std::span<const int32_t> tokens) const {
  if (static_cast<int64_t>(tokens.size()) > head_->longest_sequence()) return false;
  return std::ranges::all_of(tokens, [&](int32_t id) { return id >= 0 && id < head_->vocab_size(); });
}

// Appends what was observed, behind what stands of the sequence.
Status HeadDrafter::follow(Sequence& sequence, const ObservedRows& rows) {
  const int64_t width = head_->hidden_size();
  const auto& tokens = rows.context.tokens;
  const int64_t known = sequence.first + sequence.num_rows(width);
  if (sequence.tokens.empty() || rows.first > known || rows.first < sequence.first) {
    // A new one, or rows between were never seen: the index may have them.
    std::string salt = std::string(rows.context.scope) + '\0' + std::to_string(tokens[0]);
    sequence.first = 0;
    sequence.pending.clear();
    sequence.kv = cache_->new_sequence(salt, 0, rows.context.secret);
    if (cache_->match_prefix(sequence.kv, tokens.subspan(1), rows.first) < rows.first && rows.first > 0) {
      // Values of rows that see nothing of the front are no others'.
      salt += '\0' + std::to_string(rows.context.id.request) + '.' + std::to_string(rows.context.id.sample) + '.' +
              std::to_string(rows.first);
      sequence.kv = cache_->new_sequence(salt, 0, rows.context.secret);
      sequence.first = rows.first;
    }
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

// Room for rows up to `end`, be it that of sequences that take no part in this round.
bool HeadDrafter::reserve(Sequence& sequence, int64_t end) {
  for (;;) {
    const Status status = cache_->reserve(sequence.kv, end);
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

// Rows [begin, end) of a sequence with room for them; the last one's logits.
void HeadDrafter::add_rows(Sequence& sequence, int64_t begin, int64_t end, bool logits) {
  if (batch_.query_start.empty()) batch_.query_start.push_back(0);
  for (int64_t row = begin; row < end; ++row) {
    batch_.token_ids.push_back(sequence.tokens[static_cast<size_t>(row)]);
    batch_.positions.push_back(static_cast<int32_t>(row));
    batch_.slots.push_back(cache_->slot(sequence.kv, row));
  }
  batch_.query_start.push_back(static_cast<int32_t>(batch_.num_tokens()));
  batch_.block_tables.push_back(sequence.kv.block_ids().data());
  if (logits) batch_.logits_rows.push_back(static_cast<int32_t>(batch_.num_tokens()) - 1);
}

// Computes pending rows but the last ones, of which a guess needs logits.
Status HeadDrafter::absorb(Sequence& sequence) {
  const int64_t width = head_->hidden_size();
  while (static_cast<int64_t>(sequence.pending.size()) / width > options_.max_rows) {
    const int64_t begin = sequence.kv.num_tokens(), end = begin + options_.max_rows;
    if (!reserve(sequence, end)) return resource_exhausted("drafter", "no room for {} rows", end);
    batch_.clear();
    add_rows(sequence, begin, end, false);
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
Status HeadDrafter::run(const std::vector<Line*>& lines) {
  const auto width = static_cast<size_t>(head_->hidden_size());
  batch_.clear();
  features_.clear();
  for (Line* line : lines) {
    add_rows(line->sequence, line->begin, line->end(), true);
    const auto count = static_cast<size_t>(line->end() - line->begin);
    features_.insert(features_.end(), line->features, line->features + count * width);
  }
  const auto vocab_size = static_cast<size_t>(head_->vocab_size());
  logits_.resize(lines.size() * vocab_size);
  next_.resize(lines.size() * static_cast<size_t>(head_->hidden_size()));
  stats_.resize(lines.size());
  const std::lock_guard lock(turn_);
  HEADRACE_RETURN_IF_ERROR(head_->run(batch_, features_.data(), *cache_, logits_.data(), next_.data()));
  backend_->logit_stats(
      {logits_.data(), static_cast<int64_t>(lines.size()), static_cast<int64_t>(vocab_size), stats_.data()});
  return {};
}

Status HeadDrafter::draft(std::span<const DraftRequest> requests, std::span<DraftTree> trees) {
  ++round_;
  const int64_t width = head_->hidden_size(), longest = head_->longest_sequence();
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
    if (!reserve(sequence, static_cast<int64_t>(sequence.tokens.size()))) continue;
    lines.push_back({GuessChain(requests[i], trees[i], head_->vocab_size(), options_.least_survival), sequence,
                     sequence.kv.num_tokens(), sequence.pending.data()});
    active.push_back(&lines.back());
  }
  if (active.empty()) return {};
  HEADRACE_RETURN_IF_ERROR(run(active));
  for (Line* line : active) {
    HEADRACE_RETURN_IF_ERROR(cache_->commit(line->sequence.kv, line->sequence.tokens, line->end()));
    line->sequence.pending.clear();
  }
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
      if (!reserve(line.sequence, at + 1)) continue;
      following.insert(following.end(), next_.begin() + static_cast<ptrdiff_t>(row) * width,
                       next_.begin() + static_cast<ptrdiff_t>(row + 1) * width);
      next.push_back(&line);
    }
    if (next.empty()) return {};
    for (size_t row = 0; row < next.size(); ++row)
      next[row]->features = following.data() + static_cast<ptrdiff_t>(row) * width;
    active = std::move(next);
    HEADRACE_RETURN_IF_ERROR(run(active));
  }
}

}  // namespace headrace::speculation
