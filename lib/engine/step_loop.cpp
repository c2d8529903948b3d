#include "engine/step_loop.h"

#include <algorithm>
#include <cmath>
#include <new>
#include <utility>

#include "engine/session.h"
#include "engine/speech_tokens.h"
#include "schedule/invariants.h"

namespace headrace::engine {

using schedule::SequenceState;

namespace {

// Null where requests are not traced.
OpProfile* tracing_profile(const EngineModel& model) {
  OpProfile* const profile = model.executor->profile();
  return profile != nullptr && profile->with_trace() ? profile : nullptr;
}

}  // namespace

StepLoop::StepLoop(std::shared_ptr<const EngineModel> model, std::shared_ptr<KvCache> kv_cache,
                   schedule::StepLimits limits, const schedule::SchedulePolicy& policy,
                   std::vector<std::shared_ptr<speculation::Drafter>> drafters, const GuessPolicy& guess_policy)
    : model_(std::move(model)),
      kv_cache_(std::move(kv_cache)),
      limits_(limits),
      policy_(policy),
      context_limit_(context_limit(*model_, *kv_cache_)),
      trace_(tracing_profile(*model_)),
      trace_group_(trace_ != nullptr ? trace_->new_group() : 0),
      fair_(policy.output_weight),
      speculator_(
          std::move(drafters), model_->executor->vocab_size(),
          [executor = model_->executor.get()] { return executor->clock_ns(); }, guess_policy.always),
      max_guesses_(guess_policy.max_guesses) {}

StepLoop::~StepLoop() { tear_down(); }

std::unique_ptr<Sample> StepLoop::make_sample(LiveRequest& request, uint32_t index) const {
  auto sample = std::make_unique<Sample>(
      request, index,
      OutputText(model_->tokenizer, request.params.skip_special, request.stop_strings, request.params.num_logprobs));
  const int64_t submitted_us =
      std::chrono::duration_cast<std::chrono::microseconds>(request.submitted.time_since_epoch()).count();
  sample->sequence.order = {schedule::rank_of(request.params.priority, submitted_us, policy_.aging_us), request.id,
                            index};
  sample->sequence.tenant = request.tenant.get();
  sample->sequence.token_ids = request.prompt;
  sample->sequence.prompt_size = static_cast<int64_t>(request.prompt.size());
  if (!request.params.hidden_states.layers.empty()) {
    sample->sequence.first_hidden_row = request.first_own + request.params.hidden_states.begin;
  }
  if (request.sampler.params().repetition_penalty != 1.0f) {
    for (const int32_t id : request.prompt) {
      ++sample->history.prompt_counts[shown_token(model_->executor->images(), id)];
    }
  }
  if (request.token_mask) sample->mask = request.token_mask();
  if (request.params.speech) sample->mask = speech_mask(request.params.speech, std::move(sample->mask));
  sample->speculation.drafters = request.drafters;
  return sample;
}

void StepLoop::accept(const std::shared_ptr<LiveRequest>& request) {
  if (request->samples.empty()) {
    request->scope = request->tenant->name + '\0' + request->salt;
    request->samples.push_back(make_sample(*request, 0));
    request->num_open = request->params.n;
    schedule::Sequence& sequence = request->samples[0]->sequence;
    sequence.slots = static_cast<int32_t>(request->params.n);
    sequence.rope_length = model_->executor->rope_length(sequence.prompt_size);
    // A session's values of another rotation are of no use.
    if (request->kv.rope_length() == sequence.rope_length) {
      sequence.kv = std::move(request->kv);
    } else {
      request->kv = KvSequence();
    }
    // The first token of all has nothing before it that could score it.
    const int64_t first_scored = std::max<int64_t>(request->first_own, 1);
    if (request->wants_prompt_scores() && first_scored < sequence.prompt_size) {
      sequence.first_logits_row = first_scored - 1;
    }
  }
  enqueue(*request->samples[0]);
  if (!requests_.emplace(request->id, request).second) return;
  ++num_unscheduled_;
  trace_begin(*request);
}

void StepLoop::reap() {
  std::vector<std::pair<std::shared_ptr<LiveRequest>, FinishReason>> ended;
  const auto now = Clock::now();
  for (const auto& [id, request] : requests_) {
    if (request->cancelled.load(std::memory_order_acquire)) {
      ended.emplace_back(request, FinishReason::kCancelled);
    } else if (request->deadline && now >= *request->deadline) {
      ended.emplace_back(request, FinishReason::kDeadline);
    }
  }
  for (const auto& [request, reason] : ended) finish_open(*request, reason);
}

void StepLoop::step() {
  const ProfiledSpan span(model_->executor->profile(), {ProfiledOp::kStep});
  entries_.clear();
  ended_.clear();
  try {
    ended_.reserve(requests_.size());  // so that an ending allocates nothing after its event
    reap();
    plan();
    if (!entries_.empty()) {
      run_batch();
      reap();
    }
  } catch (const std::bad_alloc&) {
    recover(out_of_memory("step", "no memory for {} sequences", entries_.size()));
  }
  entries_.clear();
  ended_.clear();
  metrics_.num_waiting = static_cast<int64_t>(queue_.size());
  metrics_.num_running = static_cast<int64_t>(running_.size());
  metrics_.num_loading = static_cast<int64_t>(loading_.size());
}

// The step broke off between two of its parts: what took part goes back to where it was, and fails.
void StepLoop::recover(const Status& status) {
  std::vector<std::shared_ptr<LiveRequest>> failing;
  for (const Entry& entry : entries_) {
    const auto found = requests_.find(entry.sample->request.id);
    if (found == requests_.end()) continue;
    if (std::find(failing.begin(), failing.end(), found->second) == failing.end()) failing.push_back(found->second);
  }
  for (const Entry& entry : entries_) {
    KvSequence& kv = entry.sample->sequence.kv;
    if (!entry.sample->sequence.ended()) kv_cache_->rewind(kv, std::min(entry.start, kv.num_tokens()));
  }
  for (const auto& request : failing) fail(*request, status);
}

// ---- run ----

// The rows of images that take part in the step and were not needed before.
Status StepLoop::encode_images(const Entry& entry) {
  LiveRequest& request = entry.sample->request;
  const int64_t end = entry.end();
  for (size_t i = 0; i < request.images.size(); ++i) {
    PromptImage& image = request.images[i];
    if (image.rows != nullptr || image.end() <= entry.start || end <= image.begin) continue;
    std::vector<float>& rows = request.image_rows[i];
    HEADRACE_RETURN_IF_ERROR(model_->executor->images()->encode(*request.placed_images[i].image, rows));
    image.rows = rows.data();
  }
  return Status();
}

Status StepLoop::read_input(LiveRequest& request) {
  if (!request.params.encoder_input || request.memory) return Status();
  const KvLayout& layout = kv_cache_->config().layers.front();
  HEADRACE_ASSIGN_OR_RETURN(request.memory, model_->executor->inputs()->read_input(*request.params.encoder_input,
                                                                                   layout.dtype, layout.block_size));
  return Status();
}

// What encoders make of the step's requests. Where one fails, its request does.
void StepLoop::run_encoders() {
  std::vector<std::pair<LiveRequest*, Status>> failed;
  for (const Entry& entry : entries_) {
    LiveRequest& request = entry.sample->request;
    Status status = encode_images(entry);
    if (status.ok()) status = read_input(request);
    if (!status.ok()) failed.emplace_back(&request, std::move(status));
  }
  for (auto& [request, status] : failed) {
    std::erase_if(entries_, [lost = request](const Entry& entry) { return &entry.sample->request == lost; });
    fail(*request, std::move(status));
  }
}

void StepLoop::build_batch() {
  batch_.clear();
  const bool has_images =
      std::ranges::any_of(entries_, [](const Entry& entry) { return !entry.sample->request.images.empty(); });
  for (Entry& entry : entries_) {
    for (EntryPath& path : entry.paths) {
      add_rows(entry, path);
      if (!has_images) continue;
      const ImageReader& reader = *model_->executor->images();
      add_image_rows(batch_, reader.decoder(), reader.vision(), entry.sample->request.images, entry.start,
                     entry.start + path.grant.num_rows);
    }
  }
}

void StepLoop::add_rows(Entry& entry, EntryPath& path) {
  schedule::Sequence& sequence = entry.sample->sequence;
  const LiveRequest& request = entry.sample->request;
  path.first_logits = batch_.logits_rows.size();
  tap_hidden(entry, path);
  tap_features(entry, path);
  std::vector<int32_t> guesses;
  for (const int32_t node : path.guesses) guesses.push_back(entry.guesses.nodes()[static_cast<size_t>(node)].token);
  const int64_t end = entry.start + path.grant.num_rows;
  batch_.add_sequence(*kv_cache_, &path == &entry.own() ? sequence.kv : path.kv, sequence.token_ids, end,
                      end - path.grant.num_logits_rows, request.params.adapter.get(), guesses, path.row_states);
  if (request.memory) batch_.memories.push_back(&*request.memory);
}

// Of the path's rows, which are the batch's next, those whose hidden states are owed.
void StepLoop::tap_hidden(const Entry& entry, EntryPath& path) {
  const LiveRequest& request = entry.sample->request;
  const HiddenStatesParams& asked = request.params.hidden_states;
  const int64_t begin = std::max(entry.start, entry.sample->sequence.first_hidden_row);
  const int64_t end = std::min(entry.start + path.grant.num_rows, request.hidden_end());
  if (begin >= end) return;
  auto hidden = std::make_shared<HiddenStates>();
  hidden->layers = asked.layers;
  hidden->first_position = begin;
  hidden->num_rows = end - begin;
  hidden->hidden_size = model_->executor->hidden_size();
  hidden->values.resize(asked.layers.size() * static_cast<size_t>(hidden->num_rows * hidden->hidden_size));
  batch_.hidden_taps.push_back({asked.layers, static_cast<int32_t>(batch_.num_tokens() + begin - entry.start),
                                static_cast<int32_t>(hidden->num_rows), hidden->values.data()});
  path.hidden = std::move(hidden);
}

void StepLoop::learn_cost(int64_t ns) {
  schedule::StepWork work;
  bool has_prompts = false;
  for (const Entry& entry : entries_) {
    for (const EntryPath& path : entry.paths) work += schedule::StepWork::of(entry.start, path.grant.num_rows);
    has_prompts = has_prompts || entry.own().grant.num_rows > 1 + static_cast<int64_t>(entry.own().guesses.size());
  }
  const double attention_ns = cost_.factors().pair_ns * work.pairs;
  if (!has_prompts) speculator_.measured(batch_.num_tokens(), static_cast<double>(ns) - attention_ns);
  cost_.observe(work, has_prompts, ns);
}

void StepLoop::run_batch() {
  run_encoders();
  if (entries_.empty()) return;
  build_batch();
  const auto vocab_size = static_cast<size_t>(model_->executor->vocab_size());
  logits_.resize(batch_.logits_rows.size() * vocab_size);
  logit_stats_.resize(batch_.logits_rows.size());
  const int64_t started = model_->executor->clock_ns();
  const Status status = model_->executor->run(batch_, *kv_cache_, logits_.empty() ? nullptr : logits_.data());
  const int64_t took = std::max<int64_t>(model_->executor->clock_ns() - started, 0);
  ++metrics_.num_steps;
  metrics_.step_ns += static_cast<uint64_t>(took);
  metrics_.step_rows += static_cast<uint64_t>(batch_.num_tokens());
  metrics_.step_sequences += entries_.size();
  metrics_.step.record(took);
  if (!status.ok()) return recover(status);
  learn_cost(took);
  model_->executor->logit_stats({logits_.data(), static_cast<int64_t>(batch_.logits_rows.size()),
                                 static_cast<int64_t>(vocab_size), logit_stats_.data()});
  for (Entry& entry : entries_) {
    // A failure of one sample ends its siblings.
    const bool there = std::find(running_.begin(), running_.end(), entry.sample) != running_.end();
    if (there) commit(entry);
  }
}

// ---- commit ----

// Infinity is allowed downwards only: a model may exclude a token, not promise one.
Status StepLoop::check_logits(std::span<const float> rows, std::span<const LogitStats> stats, int64_t position) {
  const auto doubtful = [](const LogitStats& row) { return std::isnan(row.log_sum); };
  if (!std::any_of(stats.begin(), stats.end(), doubtful) ||
      std::none_of(rows.begin(), rows.end(), [](float x) { return std::isnan(x) || x == INFINITY; })) {
    return Status();
  }
  return internal_error("logits", "the model gave values that are not finite at position {}", position);
}

void StepLoop::commit(Entry& entry) {
  Sample& sample = *entry.sample;
  schedule::Sequence& sequence = sample.sequence;
  LiveRequest& request = sample.request;
  if (request.cancelled.load(std::memory_order_acquire)) {
    kv_cache_->rewind(sequence.kv, entry.start);  // reaped at the end of this step
    return;
  }
  if (!entry.guesses.empty()) return verify(entry);
  const auto vocab_size = static_cast<size_t>(model_->executor->vocab_size());
  const schedule::StepGrant& grant = entry.own().grant;
  const size_t first_logits = entry.own().first_logits;
  const std::span<float> rows(logits_.data() + first_logits * vocab_size,
                              static_cast<size_t>(grant.num_logits_rows) * vocab_size);
  const auto stats = std::span(logit_stats_).subspan(first_logits, static_cast<size_t>(grant.num_logits_rows));
  const int64_t end = entry.end();
  if (Status status = check_logits(rows, stats, end - 1); !status.ok()) {
    kv_cache_->rewind(sequence.kv, entry.start);
    return fail(request, std::move(status));
  }
  if (Status status = kv_cache_->commit(sequence.kv, sequence.token_ids, end); !status.ok()) {
    kv_cache_->rewind(sequence.kv, entry.start);
    return fail(request, std::move(status));
  }
  (entry.decoding ? metrics_.decode_tokens : metrics_.computed_tokens) += static_cast<uint64_t>(grant.num_rows);
  if (Status status = score_prompt(entry); !status.ok()) return fail(request, std::move(status));
  emit_hidden(entry, entry.own(), end);
  observe(entry, entry.own(), end);
  emit_progress(request, std::min(end, sequence.prompt_size));
  if (end < sequence.size()) return;
  // Of a computed prompt the rows are in the cache; after a preemption they are encoded again.
  for (size_t i = 0; i < request.images.size(); ++i) {
    request.images[i].rows = nullptr;
    request.image_rows[i] = {};
  }
  std::span<float> last = rows.last(vocab_size);
  if (request.samples.size() < request.params.n) {
    draw_first(sample, last, stats.back());
  } else {
    if (!request.prompt_sent) emit_prompt(request);
    draw(sample, last, stats.back());
  }
}

Status StepLoop::score_prompt(const Entry& entry) {
  Sample& sample = *entry.sample;
  schedule::Sequence& sequence = sample.sequence;
  if (sequence.first_logits_row == schedule::Sequence::kNoRow) return Status();
  const auto vocab_size = static_cast<size_t>(model_->executor->vocab_size());
  const int64_t num_logits_rows = entry.own().grant.num_logits_rows;
  for (int64_t i = 0; i < num_logits_rows; ++i) {
    const int64_t position = entry.end() - num_logits_rows + i;
    if (position + 1 >= sequence.prompt_size) break;
    const size_t index = entry.own().first_logits + static_cast<size_t>(i);
    const float* row = logits_.data() + index * vocab_size;
    const int32_t scored =
        shown_token(model_->executor->images(), sequence.token_ids[static_cast<size_t>(position + 1)]);
    HEADRACE_ASSIGN_OR_RETURN(SampledToken score, score_token({row, vocab_size}, logit_stats_[index], scored,
                                                              sample.request.params.num_prompt_logprobs));
    sample.request.prompt_scores.push_back(std::move(score));
    sequence.first_logits_row = position + 1;
  }
  if (sequence.first_logits_row + 1 >= sequence.prompt_size) sequence.first_logits_row = schedule::Sequence::kNoRow;
  return Status();
}

// Of the hidden states of the path's rows, those of positions before `end`: the rows that stand.
void StepLoop::emit_hidden(const Entry& entry, const EntryPath& path, int64_t end) {
  if (!path.hidden) return;
  HiddenStates& hidden = *path.hidden;
  const int64_t kept = std::min(end - hidden.first_position, hidden.num_rows);
  if (kept <= 0) return;
  const auto width = static_cast<size_t>(hidden.hidden_size);
  for (size_t layer = 1; layer < hidden.layers.size() && kept < hidden.num_rows; ++layer) {
    const auto from =
        hidden.values.begin() + static_cast<ptrdiff_t>(layer * static_cast<size_t>(hidden.num_rows) * width);
    const auto to = hidden.values.begin() + static_cast<ptrdiff_t>(layer * static_cast<size_t>(kept) * width);
    std::copy(from, from + static_cast<ptrdiff_t>(static_cast<size_t>(kept) * width), to);
  }
  hidden.num_rows = kept;
  hidden.values.resize(hidden.layers.size() * static_cast<size_t>(kept) * width);
  Sample& sample = *entry.sample;
  const int64_t next = hidden.first_position + kept;
  Event event;
  event.type = EventType::kHidden;
  event.hidden = path.hidden;
  emit(std::move(event), sample.request, sample.index);
  sample.sequence.first_hidden_row = next < sample.request.hidden_end() ? next : schedule::Sequence::kNoRow;
}

// The prompt is computed: the other samples share its blocks from here on, and all draw from the same logits.
void StepLoop::draw_first(Sample& root, std::span<float> row, const LogitStats& stats) {
  LiveRequest& request = root.request;
  emit_prompt(request);
  running_.reserve(running_.size() + request.params.n);
  request.samples.reserve(request.params.n);
  for (uint32_t index = 1; index < request.params.n; ++index) {
    auto sample = make_sample(request, index);
    sample->sequence.rope_length = root.sequence.rope_length;
    sample->sequence.kv = kv_cache_->fork(root.sequence.kv);
    sample->sequence.first_hidden_row = root.sequence.first_hidden_row;
    start_running(*sample);
    request.samples.push_back(std::move(sample));
  }
  root.sequence.slots = 1;
  for (const auto& sample : request.samples) {
    row_.assign(row.begin(), row.end());
    if (!draw(*sample, row_, stats)) return;
  }
}

// False when the request failed, and is gone.
bool StepLoop::draw(Sample& sample, std::span<float> row, const LogitStats& stats) {
  auto token = draw_token(sample, row, stats, {});
  if (!token.ok()) {
    fail(sample.request, token.status());
    return false;
  }
  conclude(sample, take_token(sample, *token));
  return true;
}

// The sample's next token; with guesses, by their verification.
Result<SampledToken> StepLoop::draw_token(Sample& sample, std::span<float> row, const LogitStats& stats,
                                          std::span<const speculation::Guess> guesses) {
  const ProfiledSpan span(model_->executor->profile(), {ProfiledOp::kSample});
  const LiveRequest& request = sample.request;
  const auto position = static_cast<uint64_t>(sample.sequence.num_output());
  std::span<const int32_t> banned;
  if (sample.sequence.num_output() < request.params.min_tokens) banned = request.end_ids;
  Sampler::Allow allow;
  if (sample.mask) {
    allow = [&](std::span<const float> logits) -> std::span<const uint32_t> {
      mask_words_.assign(mask_words(model_->executor->vocab_size()), 0);
      if (!sample.mask->fill(logits, mask_words_)) return {};
      return mask_words_;
    };
  }
  const auto uniform = [&](DrawPurpose purpose, uint32_t lane) {
    return uniform_draw(request.sampler.params().seed, sample.index, position, purpose, lane);
  };
  const auto accept = [&](const TokenWeights& target) { return speculation::accept(target, guesses, uniform).token; };
  auto token = guesses.empty()
                   ? request.sampler.sample(row, stats, sample.history, banned, sample.index, position, allow)
                   : request.sampler.sample_by(row, stats, sample.history, banned, allow, accept);
  if (token.ok() && sample.mask && !sample.mask->advance(token->token_id)) {
    return internal_error("token_mask", "refuses token {}, which it allowed", token->token_id);
  }
  return token;
}

// The token becomes the sample's last one. kNone: it goes on.
FinishReason StepLoop::take_token(Sample& sample, const SampledToken& token) {
  LiveRequest& request = sample.request;
  schedule::Sequence& sequence = sample.sequence;
  const int32_t id = token.token_id;
  const bool first = sequence.num_output() == 0;
  sequence.token_ids.push_back(id);
  ++sample.history.output_counts[id];
  count_token(sample, first);
  const bool ends = std::binary_search(request.end_ids.begin(), request.end_ids.end(), id);
  sample.text.push(token, ends, sequence.num_output() >= request.params.min_tokens);
  if (ends || sample.text.stopped()) return FinishReason::kStop;
  if (sequence.num_output() == request.params.max_tokens || sequence.size() >= context_limit_) {
    return FinishReason::kLength;
  }
  return FinishReason::kNone;
}

void StepLoop::conclude(Sample& sample, FinishReason reason) {
  if (reason != FinishReason::kNone) return finish(sample.request, sample.index, reason);
  emit_text(sample);
  start_over_if_outgrown(sample);
}

void StepLoop::count_token(Sample& sample, bool first) {
  schedule::Tenant& tenant = *sample.request.tenant;
  const int64_t now = sample.request.since_submit_ns();
  fair_.charge_output(tenant);
  ++metrics_.output_tokens;
  ++tenant.metrics.output_tokens;
  if (first) {
    trace(sample, "first_token");
    sample.first_token_ns = now;
    metrics_.first_token.record(now);
    tenant.metrics.first_token.record(now);
  } else {
    metrics_.inter_token.record(now - sample.last_token_ns);
    tenant.metrics.inter_token.record(now - sample.last_token_ns);
  }
  sample.last_token_ns = now;
  tenant.changed = true;
}

// ---- events and endings ----

void StepLoop::emit(Event event, const LiveRequest& request, uint32_t index) {
  event.number = num_events_++;
  event.request_id = request.id;
  event.index = index;
  events_.push_back(std::make_shared<const Event>(std::move(event)));
}

void StepLoop::emit_text(Sample& sample) {
  if (auto event = sample.text.take()) emit(std::move(*event), sample.request, sample.index);
}

void StepLoop::emit_prompt(LiveRequest& request) {
  request.prompt_sent = true;
  if (!request.wants_prompt_scores()) return;
  Event event;
  event.type = EventType::kPrompt;
  event.tokens.assign(request.prompt.begin() + static_cast<ptrdiff_t>(request.first_own), request.prompt.end());
  for (int32_t& id : event.tokens) id = shown_token(model_->executor->images(), id);
  const bool with_top = request.params.num_prompt_logprobs > 0;
  if (request.first_own == 0) {
    event.logprobs.push_back(0.0f);
    if (with_top) event.top_logprobs.emplace_back();
  }
  for (const SampledToken& score : request.prompt_scores) {
    event.logprobs.push_back(score.logprob);
    if (with_top) event.top_logprobs.push_back(top_logprobs_of(score));
  }
  request.prompt_scores = {};
  emit(std::move(event), request, 0);
}

// What is computed again after a preemption is no progress.
void StepLoop::emit_progress(LiveRequest& request, int64_t computed) {
  if (!request.params.reports_progress || request.prompt_sent || computed <= request.progress_sent) return;
  request.progress_sent = computed;
  Event event;
  event.type = EventType::kProgress;
  event.progress = {static_cast<int64_t>(request.prompt.size()), request.cached_tokens, computed};
  emit(std::move(event), request, 0);
}

// Takes a sample off all lists and gives its blocks, or its session, back.
void StepLoop::let_go(Sample& sample, SequenceState state, bool keep_output) {
  schedule::Sequence& sequence = sample.sequence;
  if (sequence.ended()) return;
  dequeue(sample);
  stop_running(sample);
  sequence.state = state;
  if (sample.speculation.drafters != 0) speculator_.end(draft_context(sample), sample.speculation);
  sample.mask.reset();
  const auto& session = sample.request.params.session;
  if (session) {
    // Moved, not copied: the terminal event is out already, so nothing here may fail. A request with a session has one
    // sample, and is forgotten with it.
    const int64_t num_output = keep_output ? sequence.num_output() : 0;
    session->give_back(std::move(sequence.token_ids), num_output, sample.text.release_text(),
                       std::move(sample.request.placed_images), std::exchange(sequence.kv, KvSequence()));
  } else {
    kv_cache_->release(sequence.kv);
  }
}

void StepLoop::finish(LiveRequest& request, uint32_t index, FinishReason reason) {
  // Before the prompt is computed only the first sample exists.
  Sample* sample = index < request.samples.size() ? request.samples[index].get() : nullptr;
  if (sample != nullptr && sample->sequence.ended()) return;
  auto end = std::make_shared<Event>();
  end->type = EventType::kFinished;
  end->request_id = request.id;
  end->index = index;
  end->is_last = request.num_open == 1;
  Usage& usage = end->usage;
  usage.prompt_tokens = static_cast<int64_t>(request.prompt.size());
  usage.cached_tokens = request.cached_tokens;
  usage.reuse_miss = request.reuse_miss;
  usage.queue_ns = request.scheduled ? request.queue_ns : request.since_submit_ns();
  usage.total_ns = request.since_submit_ns();
  if (sample != nullptr) {
    sample->text.finish();
    if (reason == FinishReason::kLength && sample->text.stopped()) reason = FinishReason::kStop;
    emit_text(*sample);
    usage.output_tokens = sample->sequence.num_output();
    usage.first_token_ns = sample->first_token_ns;
    usage.speculation = sample->speculation.counts;
  }
  end->finish_reason = reason;
  trace(request, index,
        {.name = "finished",
         .value_name = "output_tokens",
         .detail = finish_reason_name(reason),
         .value = usage.output_tokens});
  end->number = num_events_++;
  // Memory first: once the books say that the sample ended, its event is there.
  events_.push_back(std::move(end));
  if (sample != nullptr) {
    const bool by_host = reason == FinishReason::kCancelled || reason == FinishReason::kDeadline;
    let_go(*sample, by_host ? SequenceState::kCancelled : SequenceState::kFinished, true);
  }
  --request.num_open;
  count_end(reason);
  forget_if_ended(request);
}

void StepLoop::count_end(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop: ++metrics_.stop_samples; return;
    case FinishReason::kLength: ++metrics_.length_samples; return;
    case FinishReason::kCancelled: ++metrics_.cancelled_samples; return;
    case FinishReason::kDeadline: ++metrics_.deadline_samples; return;
    case FinishReason::kNone: return;
  }
}

void StepLoop::finish_open(LiveRequest& request, FinishReason reason) {
  const uint32_t n = request.params.n;
  for (uint32_t index = 0; index < n && request.num_open > 0; ++index) finish(request, index, reason);
}

void StepLoop::fail(LiveRequest& request, Status status) {
  if (request.num_open == 0) return;
  trace(request, 0, {.name = "failed"});
  Event event;
  event.type = EventType::kFailed;
  event.status = std::move(status);
  event.is_last = true;
  emit(std::move(event), request, 0);
  for (const auto& sample : request.samples) let_go(*sample, SequenceState::kCancelled, false);
  request.num_open = 0;
  ++metrics_.failed_requests;
  forget_if_ended(request);
}

void StepLoop::forget_if_ended(LiveRequest& request) {
  const auto found = requests_.find(request.id);
  if (request.num_open > 0 || found == requests_.end()) return;
  trace_end(request);
  mark_scheduled(request);
  ++metrics_.finished_requests;
  ++request.tenant->metrics.finished_requests;
  request.tenant->changed = true;
  request.token_mask = nullptr;
  ended_.push_back(std::move(found->second));
  requests_.erase(found);
}

void StepLoop::tear_down() {
  for (const auto& [id, request] : requests_) {
    for (const auto& sample : request->samples) let_go(*sample, SequenceState::kCancelled, true);
  }
  requests_.clear();
  num_unscheduled_ = 0;
  metrics_.num_waiting = 0;
  metrics_.num_running = 0;
  metrics_.num_loading = 0;
}

void StepLoop::abandon(LiveRequest& request) {
  const auto& session = request.params.session;
  if (!session) return;
  if (request.samples.empty()) {
    return session->give_back(std::move(request.prompt), 0, {}, {}, std::move(request.kv));
  }
  // Of one that broke off while it was accepted the sample has them.
  schedule::Sequence& sequence = request.samples[0]->sequence;
  if (sequence.ended()) return;
  session->give_back(std::move(sequence.token_ids), 0, {}, {}, std::exchange(sequence.kv, KvSequence()));
}

bool StepLoop::held_back() const {
  if (!running_.empty() || !loading_.empty() || queue_.empty()) return false;
  return std::none_of(fair_.active().begin(), fair_.active().end(), [&](const auto& tenant) {
    return tenant->metrics.num_waiting > 0 && schedule::FairShare::allowed(*tenant);
  });
}

void StepLoop::wait_for_disk() const {
  // Not for long: somebody may submit or cancel.
  constexpr auto kMoment = std::chrono::milliseconds(2);
  if (running_.empty() && !loading_.empty()) kv_cache_->wait_fetch(loading_.front()->sequence.kv, kMoment);
}

Status StepLoop::check_invariants() const {
  schedule::SchedulerSnapshot snapshot;
  snapshot.max_num_seqs = limits_.max_num_seqs;
  snapshot.context_limit = context_limit_;
  snapshot.block_size = kv_cache_->block_size();
  const KvCacheStats pool = kv_cache_->stats();
  snapshot.pool_blocks = pool.num_blocks;
  snapshot.free_blocks = pool.free_blocks;
  for (const auto& [id, request] : requests_) {
    for (const auto& sample : request->samples) {
      const schedule::Sequence& sequence = sample->sequence;
      schedule::SequenceSnapshot s;
      s.request_id = id;
      s.index = sample->index;
      s.state = sequence.state;
      s.slots = sequence.slots;
      s.num_tokens = sequence.size();
      s.prompt_size = sequence.prompt_size;
      s.num_computed = sequence.num_computed();
      s.num_blocks = static_cast<int64_t>(sequence.kv.block_ids().size());
      s.in_queue = std::find(queue_.all().begin(), queue_.all().end(), &sequence) != queue_.all().end();
      s.in_running = std::find(running_.begin(), running_.end(), sample.get()) != running_.end();
      s.in_loading = std::find(loading_.begin(), loading_.end(), sample.get()) != loading_.end();
      s.last_event_sent = request->num_open == 0;
      snapshot.sequences.push_back(s);
    }
  }
  HEADRACE_RETURN_IF_ERROR(schedule::check_invariants(snapshot));
  return kv_cache_->check_invariants();
}

}  // namespace headrace::engine
