// Guesses in a step: which sequences get rows for them, and what stands once the model has spoken.
#include <algorithm>
#include <limits>
#include <utility>

#include "engine/step_loop.h"

namespace headrace::engine {
namespace {

// Of the recurrent states of guesses that one step keeps.
constexpr uint64_t kMaxStateBytes = uint64_t{256} << 20;

// [layers, rows, width] -> [rows, layers, width]
std::vector<float> row_by_row(const std::vector<float>& values, size_t rows, size_t width) {
  std::vector<float> out(values.size());
  const size_t layers = values.size() / (rows * width);
  for (size_t layer = 0; layer < layers; ++layer) {
    for (size_t row = 0; row < rows; ++row) {
      std::copy_n(values.data() + (layer * rows + row) * width, width, out.data() + (row * layers + layer) * width);
    }
  }
  return out;
}

}  // namespace

speculation::DraftContext StepLoop::draft_context(const Sample& sample) const {
  const LiveRequest& request = sample.request;
  return {{request.id, sample.index}, request.scope,
          sample.sequence.token_ids,  sample.sequence.prompt_size,
          &request.sampler.params(),  request.params.zero_retention || kv_cache_->config().zero_retention};
}

// Guesses behind the sequence that could still be accepted, with a token drawn behind them.
int64_t StepLoop::most_guesses(const Sample& sample) const {
  const schedule::Sequence& sequence = sample.sequence;
  int64_t most = std::min<int64_t>(max_guesses_, context_limit_ - sequence.size() - 1);
  const int64_t max_tokens = sample.request.params.max_tokens;
  if (max_tokens > 0) most = std::min(most, max_tokens - sequence.num_output() - 1);
  // Beyond that length it is computed anew, with another rotation.
  most = std::min(most, model_->executor->longest_of_rope_length(sequence.rope_length) - sequence.size());
  return std::max<int64_t>(std::min(most, max_row_states()), 0);
}

// Recurrent states that one step keeps of rows of guesses.
int64_t StepLoop::max_row_states() const {
  const uint64_t state_bytes = kv_cache_->config().state_floats * sizeof(float);
  return state_bytes > 0 ? static_cast<int64_t>(kMaxStateBytes / state_bytes) : std::numeric_limits<int64_t>::max();
}

// Decoding sequences have their rows by now.
void StepLoop::add_guesses(schedule::StepBudget& budget) {
  std::vector<speculation::DraftTurn> turns;
  std::vector<size_t> entries;
  for (size_t i = 0; i < entries_.size(); ++i) {
    Sample& sample = *entries_[i].sample;
    // The first token of all comes behind the prompt's last row, and is shared out.
    if (sample.speculation.drafters == 0 || sample.sequence.num_output() == 0) continue;
    speculation::DraftTurn turn;
    turn.context = draft_context(sample);
    turn.record = &sample.speculation;
    turn.mask = sample.mask.get();
    turn.max_depth = static_cast<int32_t>(most_guesses(sample));
    turn.max_nodes = turn.max_depth > 0 ? max_guesses_ : 0;
    // Each path would begin with a copy of the recurrent state, which takes longer than a row.
    turn.branches = kv_cache_->config().state_floats == 0;
    turns.push_back(std::move(turn));
    entries.push_back(i);
  }
  if (turns.empty()) return;
  const schedule::CostModel::Factors& factors = cost_.factors();
  step_cost_ = {};
  step_cost_.plain_rows = static_cast<int64_t>(entries_.size());
  step_cost_.plain_pairs = budget.work().pairs;
  step_cost_.step_ns = factors.step_ns;
  step_cost_.row_ns = factors.row_ns;
  step_cost_.pair_ns = factors.pair_ns;
  speculator_.plan(turns, step_cost_);
  // Guesses of which there is no room for the states are not verified.
  int64_t states_left = max_row_states();
  for (size_t t = 0; t < turns.size(); ++t) {
    Entry& entry = entries_[entries[t]];
    entry.guesses = std::move(turns[t].guesses);
    entry.num_verified = turns[t].num_verified;
    grow(entry, states_left, budget);
    for (const EntryPath& path : entry.paths) states_left -= static_cast<int64_t>(path.guesses.size());
  }
  keep_states();
}

// Rows for guesses, as many as there is room for: nobody gives way for them. Of those chosen, what gets none is not verified.
void StepLoop::grow(Entry& entry, int64_t most_states, schedule::StepBudget& budget) {
  for (speculation::VerifyPath& path : speculation::verify_paths(entry.guesses, entry.num_verified)) {
    const bool own = entry.own().guesses.empty();
    const int64_t states_left = most_states - static_cast<int64_t>(path.nodes.size());
    if (states_left < 0 && !own) break;
    if (states_left < 0) path.nodes.resize(static_cast<size_t>(most_states));
    most_states = std::max<int64_t>(states_left, 0);
    if (path.nodes.empty() || !(own ? grow_own(entry, path, budget) : grow_branch(entry, path, budget))) break;
  }
  number_guesses(entry);
}

// Guesses that paths hold are verified, and come first.
void StepLoop::number_guesses(Entry& entry) {
  std::vector<bool> held(static_cast<size_t>(entry.num_verified), false);
  for (const EntryPath& path : entry.paths) {
    for (const int32_t node : path.guesses) held[static_cast<size_t>(node)] = true;
  }
  std::vector<int32_t> verified;
  for (int32_t node = 0; node < entry.num_verified; ++node) {
    if (held[static_cast<size_t>(node)]) verified.push_back(node);
  }
  entry.num_verified = static_cast<int32_t>(verified.size());
  const std::vector<int32_t> place = entry.guesses.put_first(verified);
  for (EntryPath& path : entry.paths) {
    for (int32_t& node : path.guesses) node = place[static_cast<size_t>(node)];
  }
}

// False where not all of the path found room: others may share what is left out.
bool StepLoop::grow_own(Entry& entry, const speculation::VerifyPath& path, schedule::StepBudget& budget) {
  KvSequence& kv = entry.sample->sequence.kv;
  const int64_t end = entry.end();
  auto guesses = static_cast<int64_t>(path.nodes.size());
  if (!kv_cache_->reserve(kv, end + guesses).ok()) {
    const int64_t room = static_cast<int64_t>(kv.block_ids().size()) * kv_cache_->block_size() - end;
    guesses = std::clamp<int64_t>(room, 0, guesses);
  }
  guesses = budget.extend(entry.own().grant, end, guesses);
  entry.own().guesses.assign(path.nodes.begin(), path.nodes.begin() + guesses);
  return entry.own().guesses.size() == path.nodes.size();
}

// A path beside the sequence's own continues a copy of it, with which it shares all blocks but the last.
bool StepLoop::grow_branch(Entry& entry, const speculation::VerifyPath& path, schedule::StepBudget& budget) {
  const auto guesses = static_cast<int64_t>(path.nodes.size());
  const int64_t rows = 1 + guesses;
  EntryPath branch;
  branch.grant = budget.branch(entry.start, rows, guesses - path.num_shared);
  if (branch.grant.num_rows == 0) return false;
  branch.kv = kv_cache_->fork(entry.sample->sequence.kv);
  if (branch.kv.num_tokens() != entry.start || !kv_cache_->reserve(branch.kv, entry.start + rows).ok()) {
    budget.refund_branch(branch.grant, entry.start);
    return false;
  }
  branch.guesses = path.nodes;
  branch.num_shared = path.num_shared;
  entry.paths.push_back(std::move(branch));
  return true;
}

// Branches give their room up to whoever needs it: without them a step only verifies less.
bool StepLoop::shed_branches(schedule::StepBudget& budget) {
  bool shed = false;
  for (Entry& entry : entries_) {
    if (entry.paths.size() < 2) continue;
    shed = true;
    for (size_t p = 1; p < entry.paths.size(); ++p) budget.refund_branch(entry.paths[p].grant, entry.start);
    entry.paths.resize(1);
    number_guesses(entry);
  }
  return shed;
}

// Places for the recurrent states after the rows of guesses: any of them may be the last that stands.
void StepLoop::keep_states() {
  const uint64_t state_floats = kv_cache_->config().state_floats;
  if (state_floats == 0) return;
  uint64_t wanted = 0;
  for (const Entry& entry : entries_) {
    for (const EntryPath& path : entry.paths) wanted += path.guesses.size();
  }
  if (row_states_.size() < wanted * state_floats) row_states_.resize(wanted * state_floats);
  float* next = row_states_.data();
  for (Entry& entry : entries_) {
    for (EntryPath& path : entry.paths) {
      if (path.guesses.empty()) continue;
      path.row_states = next;
      next += path.guesses.size() * state_floats;
    }
  }
}

// Draws token after token from the rows of logits, as decoding would, for as long as the token drawn is one that was guessed
// there: its row then is the next one's. The path of the last one is the sequence from here on; positions behind are forgotten.
void StepLoop::verify(Entry& entry) {
  Sample& sample = *entry.sample;
  schedule::Sequence& sequence = sample.sequence;
  LiveRequest& request = sample.request;
  const auto vocab_size = static_cast<size_t>(model_->executor->vocab_size());
  const auto nodes = entry.guesses.nodes().first(static_cast<size_t>(entry.num_verified));
  struct Place {
    size_t path = 0, logits = 0;
  };
  std::vector<Place> places(nodes.size());  // where each node's row is
  for (size_t p = 0; p < entry.paths.size(); ++p) {
    const EntryPath& path = entry.paths[p];
    size_t logits = path.first_logits + (p == 0 ? 1 : 0);
    for (size_t i = static_cast<size_t>(path.num_shared); i < path.guesses.size(); ++i) {
      places[static_cast<size_t>(path.guesses[i])] = {p, logits++};
    }
  }
  std::vector<int32_t> drawn;
  std::vector<int32_t> children;
  std::vector<speculation::Guess> guesses;
  FinishReason reason = FinishReason::kNone;
  Place at{0, entry.own().first_logits};
  for (int32_t last = -1;;) {
    const std::span<float> row(logits_.data() + at.logits * vocab_size, vocab_size);
    const int64_t position = entry.start + static_cast<int64_t>(drawn.size());
    if (Status status = check_logits(row, {&logit_stats_[at.logits], 1}, position); !status.ok()) {
      kv_cache_->rewind(sequence.kv, entry.start);
      return fail(request, std::move(status));
    }
    children.clear();
    guesses.clear();
    for (int32_t i = last + 1; i < entry.num_verified; ++i) {
      const speculation::DraftNode& node = nodes[static_cast<size_t>(i)];
      if (node.parent != last) continue;
      children.push_back(i);
      guesses.push_back(
          {node.token, node.distribution >= 0 ? &entry.guesses.distribution(node.distribution) : nullptr});
    }
    // Chosen guesses need no verification beside the draw itself, which gives a seed's own text.
    if (std::ranges::none_of(guesses, [](const speculation::Guess& guess) { return guess.from != nullptr; })) {
      guesses.clear();
    }
    auto token = draw_token(sample, row, logit_stats_[at.logits], guesses);
    if (!token.ok()) {
      kv_cache_->rewind(sequence.kv, entry.start);
      return fail(request, token.status());
    }
    reason = take_token(sample, *token);
    drawn.push_back(token->token_id);
    const auto child = std::ranges::find_if(
        children, [&](int32_t i) { return nodes[static_cast<size_t>(i)].token == token->token_id; });
    if (reason != FinishReason::kNone || child == children.end()) break;
    last = *child;
    at = places[static_cast<size_t>(last)];
  }
  const EntryPath& stands = entry.paths[at.path];
  if (at.path != 0) sequence.kv = std::move(entry.paths[at.path].kv);
  const int64_t end = entry.start + static_cast<int64_t>(drawn.size());
  kv_cache_->keep_rows(sequence.kv, end, stands.row_states);
  if (Status status = kv_cache_->commit(sequence.kv, sequence.token_ids, end); !status.ok()) {
    kv_cache_->rewind(sequence.kv, entry.start);
    return fail(request, std::move(status));
  }
  kv_cache_->rewind(sequence.kv, end);  // the room of guesses
  for (EntryPath& path : entry.paths) {
    metrics_.decode_tokens += static_cast<uint64_t>(path.grant.num_rows);
    if (&path != &entry.own()) kv_cache_->release(path.kv);
  }
  speculator_.learn(sample.speculation, entry.guesses, entry.num_verified, drawn, step_cost_);
  emit_hidden(entry, stands, end);
  observe(entry, stands, end);
  conclude(sample, reason);
}

// Has the hidden states that drafters read given out, of all rows of the path: the batch's next.
void StepLoop::tap_features(const Entry& entry, EntryPath& path) {
  path.features.clear();
  const auto rows = static_cast<size_t>(path.grant.num_rows),
             width = static_cast<size_t>(model_->executor->hidden_size());
  for (const size_t drafter : speculator_.readers(entry.sample->speculation)) {
    const auto layers = speculator_.hidden_layers(drafter);
    std::vector<float>& values = path.features.emplace_back(layers.size() * rows * width);
    batch_.hidden_taps.push_back({{layers.begin(), layers.end()},
                                  static_cast<int32_t>(batch_.num_tokens()),
                                  static_cast<int32_t>(rows),
                                  values.data()});
  }
}

// Rows of the path up to position `end` stand.
void StepLoop::observe(const Entry& entry, const EntryPath& path, int64_t end) {
  const Sample& sample = *entry.sample;
  if (sample.speculation.drafters == 0) return;
  const auto width = static_cast<size_t>(model_->executor->hidden_size());
  std::vector<std::vector<float>> features;
  std::vector<const float*> hidden;
  for (const std::vector<float>& tapped : path.features) {
    features.push_back(row_by_row(tapped, static_cast<size_t>(path.grant.num_rows), width));
    hidden.push_back(features.back().data());
  }
  speculator_.observe(sample.speculation, {draft_context(sample), entry.start, end - entry.start, nullptr}, hidden);
}

}  // namespace headrace::engine
