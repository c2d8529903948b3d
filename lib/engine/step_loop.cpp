#include "engine/step_loop.h"

#include <algorithm>
#include <cmath>
#include <new>
#include <utility>

#include "engine/session.h"
#include "schedule/invariants.h"

namespace headrace::engine {

using schedule::SequenceState;
using schedule::StepBudget;
using schedule::StepDemand;

StepLoop::StepLoop(std::shared_ptr<const EngineModel> model, std::shared_ptr<KvCache> kv_cache,
                   schedule::StepLimits limits)
    : model_(std::move(model)),
      kv_cache_(std::move(kv_cache)),
      limits_(limits),
      context_limit_(context_limit(*model_, *kv_cache_)) {}

StepLoop::~StepLoop() { tear_down(); }

std::unique_ptr<Sample> StepLoop::make_sample(LiveRequest& request, uint32_t index) const {
  auto sample = std::make_unique<Sample>(
      request, index,
      OutputText(model_->tokenizer, request.params.skip_special, request.stop_strings, request.params.num_logprobs));
  sample->sequence.order = {request.params.priority, request.id, index};
  sample->sequence.token_ids = request.prompt;
  sample->sequence.prompt_size = static_cast<int64_t>(request.prompt.size());
  if (request.sampler.params().repetition_penalty != 1.0f) {
    for (const int32_t id : request.prompt) {
      ++sample->history.prompt_counts[id < 0 ? model_->executor->images()->vision().image_token_id : id];
    }
  }
  return sample;
}

void StepLoop::accept(const std::shared_ptr<LiveRequest>& request) {
  if (request->samples.empty()) {
    request->samples.push_back(make_sample(*request, 0));
    request->num_open = request->params.n;
    schedule::Sequence& sequence = request->samples[0]->sequence;
    sequence.slots = static_cast<int32_t>(request->params.n);
    sequence.kv = std::move(request->kv);
    // The first token of all has nothing before it that could score it.
    const int64_t first_scored = std::max<int64_t>(request->first_own, 1);
    if (request->wants_prompt_scores() && first_scored < sequence.prompt_size) {
      sequence.first_logits_row = first_scored - 1;
    }
  }
  queue_.push(&request->samples[0]->sequence);
  if (requests_.emplace(request->id, request).second) ++num_unscheduled_;
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
  stats_.num_waiting = static_cast<int64_t>(queue_.size());
  stats_.num_running = static_cast<int64_t>(running_.size());
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

// ---- plan and reserve ----

StepDemand StepLoop::demand_of(const Sample& sample) {
  const schedule::Sequence& sequence = sample.sequence;
  StepDemand demand;
  demand.num_pending = sequence.num_pending();
  demand.num_silent = demand.num_pending - 1;
  if (sequence.first_logits_row != schedule::Sequence::kNoRow) {
    demand.num_silent = std::clamp<int64_t>(sequence.first_logits_row - sequence.num_computed(), 0, demand.num_silent);
  }
  demand.slots = sequence.slots;
  demand.first_row = sequence.num_computed();
  demand.uncut = sample.request.uncut;
  return demand;
}

int64_t StepLoop::running_slots() const {
  int64_t slots = 0;
  for (const Sample* sample : running_) slots += sample->sequence.slots;
  return slots;
}

Sample& StepLoop::sample_of(const schedule::Sequence& sequence,
                            const std::map<uint64_t, std::shared_ptr<LiveRequest>>& all) {
  return *all.at(sequence.order.arrival)->samples[sequence.order.index];
}

void StepLoop::plan() {
  StepBudget budget(limits_);
  bool short_of_room = false;
  plan_running(budget, short_of_room);
  // Whoever gave its blocks up a moment ago would take them back from who needs them.
  if (!short_of_room) admit(budget);
}

void StepLoop::plan_running(StepBudget& budget, bool& short_of_room) {
  std::sort(running_.begin(), running_.end(),
            [](const Sample* a, const Sample* b) { return a->sequence.order < b->sequence.order; });
  const std::vector<Sample*> order = running_;
  std::vector<StepDemand> demands;
  for (const Sample* sample : order) demands.push_back(demand_of(*sample));
  const std::vector<schedule::StepGrant> grants = schedule::plan_running(budget, demands);

  std::vector<std::pair<LiveRequest*, Status>> failed;
  size_t end = order.size();  // those from here on were preempted
  for (size_t i = 0; i < end; ++i) {
    if (grants[i].num_rows == 0) continue;
    Sample& sample = *order[i];
    const int64_t start = sample.sequence.num_computed();
    for (;;) {
      Status status = kv_cache_->reserve(sample.sequence.kv, start + grants[i].num_rows);
      if (status.ok()) {
        entries_.push_back({&sample, grants[i], start, 0, demands[i].decoding()});
        break;
      }
      if (status.code() != StatusCode::kResourceExhausted) {
        failed.emplace_back(&sample.request, std::move(status));
        break;
      }
      if (shed_waiting(sample) || model_->shed_idle_session(*kv_cache_)) continue;
      // The least important of all gives its room up, be it this one: it lacks a block even when it is alone where a
      // shared block must be copied, and does not need the copy once it starts over.
      short_of_room = true;
      --end;
      budget.refund(grants[end], demands[end]);
      preempt(*order[end]);
      if (end == i) break;
    }
  }
  for (auto& [request, status] : failed) {
    if (requests_.count(request->id) != 0) fail(*request, std::move(status));
  }
  if (!failed.empty()) {
    std::erase_if(entries_, [&](const Entry& entry) {
      return std::none_of(running_.begin(), running_.end(), [&](const Sample* s) { return s == entry.sample; });
    });
  }
}

void StepLoop::preempt(Sample& sample) {
  kv_cache_->release(sample.sequence.kv);
  std::erase(running_, &sample);
  sample.sequence.state = SequenceState::kPreempted;
  queue_.push(&sample.sequence);
  ++stats_.preemptions;
}

// Values of sessions whose requests still wait: the last in the queue gives them up first.
bool StepLoop::shed_waiting(const Sample& keep) {
  for (auto it = queue_.end(); it != queue_.begin();) {
    schedule::Sequence* sequence = *--it;
    if (sequence == &keep.sequence || sequence->kv.block_ids().empty()) continue;
    kv_cache_->release(sequence->kv);
    return true;
  }
  return false;
}

bool StepLoop::make_room_for(Sample& sample) {
  schedule::Sequence& sequence = sample.sequence;
  const int64_t reusable = std::min(sequence.size() - 1, sequence.first_logits_row);
  if (sequence.kv.num_tokens() > reusable) kv_cache_->rewind(sequence.kv, reusable);
  bool fresh = sequence.kv.block_ids().empty();
  if (fresh) {
    const RequestParams& params = sample.request.params;
    std::string salt = adapted_salt(params.adapter.get(), params.cache_salt);
    if (params.encoder_input) salt = input_salt(params.encoder_input->content, salt);
    sequence.kv = kv_cache_->new_sequence(std::move(salt));
    kv_cache_->match_prefix(sequence.kv, sequence.token_ids, reusable);
  }
  for (;;) {
    // Room for the whole prompt at once: two half-computed prompts must not wait for each other's blocks.
    const Status status = kv_cache_->reserve(sequence.kv, sequence.size());
    if (status.ok()) break;
    if (status.code() == StatusCode::kResourceExhausted) {
      if (shed_waiting(sample) || model_->shed_idle_session(*kv_cache_)) continue;
      if (!fresh && running_.empty()) {
        // A session's last block may need a copy that there is no room for; found in the index it needs none.
        kv_cache_->release(sequence.kv);
        kv_cache_->match_prefix(sequence.kv, sequence.token_ids, reusable);
        fresh = true;
        continue;
      }
    }
    if (fresh) kv_cache_->release(sequence.kv);
    return false;
  }
  // Each running sequence may need another block soon; taking the last ones would only have this one preempted.
  if (!running_.empty() && kv_cache_->stats().free_blocks < static_cast<int64_t>(running_.size())) {
    if (fresh) {
      kv_cache_->release(sequence.kv);
    } else {
      kv_cache_->rewind(sequence.kv, sequence.kv.num_tokens());
    }
    return false;
  }
  return true;
}

void StepLoop::mark_scheduled(LiveRequest& request) {
  if (request.scheduled) return;
  request.scheduled = true;
  request.queue_ns = request.since_submit_ns();
  --num_unscheduled_;
}

void StepLoop::admit(StepBudget& budget) {
  while (!queue_.empty() && budget.rows_left() > 0) {
    Sample& sample = sample_of(*queue_.front(), requests_);
    schedule::Sequence& sequence = sample.sequence;
    // Strictly in order: a small request that overtook a large one would keep it waiting for ever.
    if (running_slots() + sequence.slots > limits_.max_num_seqs) break;
    if (!make_room_for(sample)) break;
    const StepDemand demand = demand_of(sample);
    const schedule::StepGrant grant = budget.take(demand);
    if (grant.num_rows == 0) {
      kv_cache_->release(sequence.kv);
      break;
    }
    running_.reserve(running_.size() + 1);
    entries_.push_back({&sample, grant, sequence.num_computed(), 0, false});
    queue_.remove(&sequence);
    running_.push_back(&sample);
    if (!sample.request.scheduled) sample.request.cached_tokens = sequence.num_computed();
    mark_scheduled(sample.request);
    stats_.cached_tokens += static_cast<uint64_t>(sequence.num_computed());
    sequence.state = SequenceState::kRunning;
  }
}

// ---- run ----

// The rows of images that take part in the step and were not needed before.
Status StepLoop::encode_images(const Entry& entry) {
  LiveRequest& request = entry.sample->request;
  const int64_t end = entry.start + entry.grant.num_rows;
  for (size_t i = 0; i < request.images.size(); ++i) {
    PromptImage& image = request.images[i];
    if (image.rows != nullptr || image.end() <= entry.start || end <= image.begin) continue;
    std::vector<float>& rows = request.image_rows[i];
    HEADRACE_RETURN_IF_ERROR(model_->executor->images()->encode(*request.params.images[i], rows));
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
    schedule::Sequence& sequence = entry.sample->sequence;
    const int64_t end = entry.start + entry.grant.num_rows;
    entry.first_logits = batch_.logits_rows.size();
    batch_.add_sequence(*kv_cache_, sequence.kv, sequence.token_ids, end, end - entry.grant.num_logits_rows,
                        entry.sample->request.params.adapter.get());
    if (entry.sample->request.memory) batch_.memories.push_back(&*entry.sample->request.memory);
    if (!has_images) continue;
    const ImageReader& reader = *model_->executor->images();
    add_image_rows(batch_, reader.decoder(), reader.vision(), entry.sample->request.images, entry.start, end);
  }
}

void StepLoop::run_batch() {
  run_encoders();
  if (entries_.empty()) return;
  build_batch();
  const auto vocab_size = static_cast<size_t>(model_->executor->vocab_size());
  logits_.resize(batch_.logits_rows.size() * vocab_size);
  logit_stats_.resize(batch_.logits_rows.size());
  const Status status = model_->executor->run(batch_, *kv_cache_, logits_.empty() ? nullptr : logits_.data());
  ++stats_.num_steps;
  if (!status.ok()) return recover(status);
  model_->executor->logit_stats({logits_.data(), static_cast<int64_t>(batch_.logits_rows.size()),
                                 static_cast<int64_t>(vocab_size), logit_stats_.data()});
  for (const Entry& entry : entries_) {
    // A failure of one sample ends its siblings.
    const bool there = std::find(running_.begin(), running_.end(), entry.sample) != running_.end();
    if (there) commit(entry);
  }
}

// ---- commit ----

void StepLoop::commit(const Entry& entry) {
  Sample& sample = *entry.sample;
  schedule::Sequence& sequence = sample.sequence;
  LiveRequest& request = sample.request;
  if (request.cancelled.load(std::memory_order_acquire)) {
    kv_cache_->rewind(sequence.kv, entry.start);  // reaped at the end of this step
    return;
  }
  const auto vocab_size = static_cast<size_t>(model_->executor->vocab_size());
  const std::span<float> rows(logits_.data() + entry.first_logits * vocab_size,
                              static_cast<size_t>(entry.grant.num_logits_rows) * vocab_size);
  const auto stats =
      std::span(logit_stats_).subspan(entry.first_logits, static_cast<size_t>(entry.grant.num_logits_rows));
  const auto doubtful = [](const LogitStats& row) { return std::isnan(row.log_sum); };
  // Infinity is allowed downwards only: a model may exclude a token, not promise one.
  if (std::any_of(stats.begin(), stats.end(), doubtful) &&
      std::any_of(rows.begin(), rows.end(), [](float x) { return std::isnan(x) || x == INFINITY; })) {
    kv_cache_->rewind(sequence.kv, entry.start);
    return fail(request, internal_error("logits", "the model gave values that are not finite at position {}",
                                        entry.start + entry.grant.num_rows - 1));
  }
  const int64_t end = entry.start + entry.grant.num_rows;
  if (Status status = kv_cache_->commit(sequence.kv, sequence.token_ids, end); !status.ok()) {
    kv_cache_->rewind(sequence.kv, entry.start);
    return fail(request, std::move(status));
  }
  (entry.decoding ? stats_.decode_tokens : stats_.prefill_tokens) += static_cast<uint64_t>(entry.grant.num_rows);
  if (Status status = score_prompt(entry); !status.ok()) return fail(request, std::move(status));
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
  const int64_t end = entry.start + entry.grant.num_rows;
  for (int64_t i = 0; i < entry.grant.num_logits_rows; ++i) {
    const int64_t position = end - entry.grant.num_logits_rows + i;
    if (position + 1 >= sequence.prompt_size) break;
    const size_t index = entry.first_logits + static_cast<size_t>(i);
    const float* row = logits_.data() + index * vocab_size;
    HEADRACE_ASSIGN_OR_RETURN(SampledToken score, score_token({row, vocab_size}, logit_stats_[index],
                                                              sequence.token_ids[static_cast<size_t>(position + 1)],
                                                              sample.request.params.num_prompt_logprobs));
    sample.request.prompt_scores.push_back(std::move(score));
    sequence.first_logits_row = position + 1;
  }
  if (sequence.first_logits_row + 1 >= sequence.prompt_size) sequence.first_logits_row = schedule::Sequence::kNoRow;
  return Status();
}

// The prompt is computed: the other samples share its blocks from here on, and all draw from the same logits.
void StepLoop::draw_first(Sample& root, std::span<float> row, const LogitStats& stats) {
  LiveRequest& request = root.request;
  emit_prompt(request);
  running_.reserve(running_.size() + request.params.n);
  request.samples.reserve(request.params.n);
  for (uint32_t index = 1; index < request.params.n; ++index) {
    auto sample = make_sample(request, index);
    sample->sequence.kv = kv_cache_->fork(root.sequence.kv);
    sample->sequence.state = SequenceState::kRunning;
    running_.push_back(sample.get());
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
  LiveRequest& request = sample.request;
  schedule::Sequence& sequence = sample.sequence;
  const RequestParams& params = request.params;
  const int64_t position = sequence.num_output();
  std::span<const int32_t> banned;
  if (position < params.min_tokens) banned = request.end_ids;
  auto drawn = [&] {
    const ProfiledSpan span(model_->executor->profile(), {ProfiledOp::kSample});
    return request.sampler.sample(row, stats, sample.history, banned, sample.index, static_cast<uint64_t>(position));
  }();
  if (!drawn.ok()) {
    fail(request, drawn.status());
    return false;
  }
  const int32_t id = drawn->token_id;
  sequence.token_ids.push_back(id);
  ++sample.history.output_counts[id];
  if (position == 0) sample.first_token_ns = request.since_submit_ns();

  const bool ends = std::binary_search(request.end_ids.begin(), request.end_ids.end(), id);
  sample.text.push(*drawn, ends, sequence.num_output() >= params.min_tokens);
  if (ends || sample.text.stopped()) {
    finish(request, sample.index, FinishReason::kStop);
  } else if (sequence.num_output() == params.max_tokens || sequence.size() >= context_limit_) {
    finish(request, sample.index, FinishReason::kLength);
  } else {
    emit_text(sample);
  }
  return true;
}

// ---- events and endings ----

void StepLoop::emit(Event event, const LiveRequest& request, uint32_t index) {
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

// Takes a sample off all lists and gives its blocks, or its session, back.
void StepLoop::let_go(Sample& sample, SequenceState state, bool keep_output) {
  schedule::Sequence& sequence = sample.sequence;
  if (sequence.ended()) return;
  queue_.remove(&sequence);
  std::erase(running_, &sample);
  sequence.state = state;
  const auto& session = sample.request.params.session;
  if (session) {
    // Moved, not copied: the terminal event is out already, so nothing here may fail. A request with a session has one
    // sample, and is forgotten with it.
    const int64_t num_output = keep_output ? sequence.num_output() : 0;
    session->give_back(std::move(sequence.token_ids), num_output, sample.text.release_text(),
                       std::exchange(sequence.kv, KvSequence()));
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
  usage.queue_ns = request.scheduled ? request.queue_ns : request.since_submit_ns();
  usage.total_ns = request.since_submit_ns();
  if (sample != nullptr) {
    sample->text.finish();
    if (reason == FinishReason::kLength && sample->text.stopped()) reason = FinishReason::kStop;
    emit_text(*sample);
    usage.output_tokens = sample->sequence.num_output();
    usage.first_token_ns = sample->first_token_ns;
  }
  end->finish_reason = reason;
  // Memory first: once the books say that the sample ended, its event is there.
  events_.push_back(std::move(end));
  if (sample != nullptr) {
    const bool by_host = reason == FinishReason::kCancelled || reason == FinishReason::kDeadline;
    let_go(*sample, by_host ? SequenceState::kCancelled : SequenceState::kFinished, true);
  }
  --request.num_open;
  forget_if_ended(request);
}

void StepLoop::finish_open(LiveRequest& request, FinishReason reason) {
  const uint32_t n = request.params.n;
  for (uint32_t index = 0; index < n && request.num_open > 0; ++index) finish(request, index, reason);
}

void StepLoop::fail(LiveRequest& request, Status status) {
  if (request.num_open == 0) return;
  Event event;
  event.type = EventType::kFailed;
  event.status = std::move(status);
  event.is_last = true;
  emit(std::move(event), request, 0);
  for (const auto& sample : request.samples) let_go(*sample, SequenceState::kCancelled, false);
  request.num_open = 0;
  forget_if_ended(request);
}

void StepLoop::forget_if_ended(LiveRequest& request) {
  const auto found = requests_.find(request.id);
  if (request.num_open > 0 || found == requests_.end()) return;
  mark_scheduled(request);
  ++stats_.finished_requests;
  ended_.push_back(std::move(found->second));
  requests_.erase(found);
}

void StepLoop::tear_down() {
  for (const auto& [id, request] : requests_) {
    for (const auto& sample : request->samples) let_go(*sample, SequenceState::kCancelled, true);
  }
  requests_.clear();
  num_unscheduled_ = 0;
  stats_.num_waiting = 0;
  stats_.num_running = 0;
}

void StepLoop::abandon(LiveRequest& request) {
  const auto& session = request.params.session;
  if (!session || !request.samples.empty()) return;
  session->give_back(std::move(request.prompt), 0, {}, std::move(request.kv));
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
      s.in_queue = std::find(queue_.begin(), queue_.end(), &sequence) != queue_.end();
      s.in_running = std::find(running_.begin(), running_.end(), sample.get()) != running_.end();
      s.last_event_sent = request->num_open == 0;
      snapshot.sequences.push_back(s);
    }
  }
  HEADRACE_RETURN_IF_ERROR(schedule::check_invariants(snapshot));
  return kv_cache_->check_invariants();
}

}  // namespace headrace::engine
