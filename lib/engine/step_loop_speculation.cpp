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
    turn.max_nodes = static_cast<int32_t>(most_guesses(sample));
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
    const int64_t guesses = std::min<int64_t>(turns[t].num_verified, states_left);
    if (guesses > 0) grow(entry, guesses, budget);
    states_left -= entry.num_verified;
  }
  keep_states();
}

// Rows for guesses, as many as there is room for: nobody gives way for them.
void StepLoop::grow(Entry& entry, int64_t guesses, schedule::StepBudget& budget) {
  KvSequence& kv = entry.sample->sequence.kv;
  const int64_t end = entry.start + entry.grant.num_rows;
  if (!kv_cache_->reserve(kv, end + guesses).ok()) {
    const int64_t room = static_cast<int64_t>(kv.block_ids().size()) * kv_cache_->block_size() - end;
    guesses = std::clamp<int64_t>(room, 0, guesses);
  }
  entry.num_verified = static_cast<int32_t>(budget.extend(entry.grant, end, guesses));
}

// Places for the recurrent states after the rows of guesses: any of them may be the last that stands.
void StepLoop::keep_states() {
  const uint64_t state_floats = kv_cache_->config().state_floats;
  if (state_floats == 0) return;
  uint64_t wanted = 0;
  for (const Entry& entry : entries_) wanted += static_cast<uint64_t>(entry.num_verified);
  if (row_states_.size() < wanted * state_floats) row_states_.resize(wanted * state_floats);
  float* next = row_states_.data();
  for (Entry& entry : entries_) {
    if (entry.num_verified == 0) continue;
    entry.row_states = next;
    next += static_cast<uint64_t>(entry.num_verified) * state_floats;
  }
}

// Draws token after token from the rows of logits, as decoding would, for as long as the token drawn is the one guessed: its
// row then is the next one's. Positions behind are forgotten.
void StepLoop::verify(const Entry& entry) {
  Sample& sample = *entry.sample;
  schedule::Sequence& sequence = sample.sequence;
  LiveRequest& request = sample.request;
  const auto vocab_size = static_cast<size_t>(model_->executor->vocab_size());
  const auto guesses = entry.guesses.nodes();
  std::vector<int32_t> drawn;
  FinishReason reason = FinishReason::kNone;
  for (;;) {
    const size_t i = drawn.size(), at = entry.first_logits + i;
    const std::span<float> row(logits_.data() + at * vocab_size, vocab_size);
    if (Status status = check_logits(row, {&logit_stats_[at], 1}, entry.start + static_cast<int64_t>(i));
        !status.ok()) {
      kv_cache_->rewind(sequence.kv, entry.start);
      return fail(request, std::move(status));
    }
    const bool guessed = static_cast<int32_t>(i) < entry.num_verified;
    const int32_t distribution = guessed ? guesses[i].distribution : -1;
    speculation::Guess guess;
    if (distribution >= 0) guess = {guesses[i].token, &entry.guesses.distribution(distribution)};
    auto token = draw_token(sample, row, logit_stats_[at], distribution >= 0 ? &guess : nullptr);
    if (!token.ok()) {
      kv_cache_->rewind(sequence.kv, entry.start);
      return fail(request, token.status());
    }
    reason = take_token(sample, *token);
    drawn.push_back(token->token_id);
    if (reason != FinishReason::kNone || !guessed || token->token_id != guesses[i].token) break;
  }
  const int64_t end = entry.start + static_cast<int64_t>(drawn.size());
  kv_cache_->keep_rows(sequence.kv, end, entry.row_states);
  if (Status status = kv_cache_->commit(sequence.kv, sequence.token_ids, end); !status.ok()) {
    kv_cache_->rewind(sequence.kv, entry.start);
    return fail(request, std::move(status));
  }
  kv_cache_->rewind(sequence.kv, end);  // the room of guesses
  metrics_.decode_tokens += static_cast<uint64_t>(entry.grant.num_rows);
  speculator_.learn(sample.speculation, entry.guesses, entry.num_verified, drawn, step_cost_);
  emit_hidden(entry, end);
  observe(entry, end);
  conclude(sample, reason);
}

// Has the hidden states that drafters read given out, of all rows of the entry: the batch's from first_row on.
void StepLoop::tap_features(Entry& entry, int32_t first_row) {
  entry.features.clear();
  const auto rows = static_cast<size_t>(entry.grant.num_rows),
             width = static_cast<size_t>(model_->executor->hidden_size());
  for (const size_t drafter : speculator_.readers(entry.sample->speculation)) {
    const auto layers = speculator_.hidden_layers(drafter);
    std::vector<float>& values = entry.features.emplace_back(layers.size() * rows * width);
    batch_.hidden_taps.push_back(
        {{layers.begin(), layers.end()}, first_row, static_cast<int32_t>(rows), values.data()});
  }
}

// Rows of the entry up to position `end` stand.
void StepLoop::observe(const Entry& entry, int64_t end) {
  const Sample& sample = *entry.sample;
  if (sample.speculation.drafters == 0) return;
  const auto width = static_cast<size_t>(model_->executor->hidden_size());
  std::vector<std::vector<float>> features;
  std::vector<const float*> hidden;
  for (const std::vector<float>& tapped : entry.features) {
    features.push_back(row_by_row(tapped, static_cast<size_t>(entry.grant.num_rows), width));
    hidden.push_back(features.back().data());
  }
  speculator_.observe(sample.speculation, {draft_context(sample), entry.start, end - entry.start, nullptr}, hidden);
}

}  // namespace headrace::engine
