#include "engine/scheduler.h"

#include <algorithm>
#include <chrono>
#include <list>
#include <mutex>
#include <new>
#include <random>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "engine/live_request.h"
#include "engine/session.h"
#include "engine/step_loop.h"

namespace headrace::engine {
namespace {

// Rows of logits held at once are bounded by memory, whatever the vocabulary.
constexpr int64_t kMaxLogitsBytes = int64_t{64} << 20;

schedule::StepLimits step_limits(const EngineModel& model, const EngineOptions& options) {
  schedule::StepLimits limits;
  limits.max_num_batched_tokens = std::max(options.max_num_batched_tokens, 1);
  // Every running sequence gets its row in every step.
  limits.max_num_seqs = std::clamp<int64_t>(options.max_num_seqs, 1, limits.max_num_batched_tokens);
  const int64_t row_bytes = std::max<int64_t>(model.executor->vocab_size(), 1) * int64_t{sizeof(float)};
  limits.max_logits_rows = std::max(limits.max_num_seqs, kMaxLogitsBytes / row_bytes);
  return limits;
}

uint64_t draw_seed_base() {
  uint64_t parts[2] = {static_cast<uint64_t>(Clock::now().time_since_epoch().count()), 0};
  try {
    std::random_device device;
    parts[1] = (uint64_t{device()} << 32) | device();
  } catch (const std::exception&) {
    // The clock alone has to do: seeds must differ, not be secret.
    parts[1] = reinterpret_cast<uintptr_t>(&parts);
  }
  return hash64(parts, sizeof parts);
}

std::vector<int32_t> end_ids(const RequestParams& params, const EngineModel& model) {
  std::vector<int32_t> ids = params.stop_tokens;
  if (!params.ignore_eos) {
    ids.insert(ids.end(), model.end_of_generation_ids.begin(), model.end_of_generation_ids.end());
  }
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

}  // namespace

class Scheduler::Impl {
 public:
  Impl(std::shared_ptr<const EngineModel> model, std::shared_ptr<KvCache> kv_cache, const EngineOptions& options)
      : model_(std::move(model)),
        kv_cache_(std::move(kv_cache)),
        limits_(step_limits(*model_, options)),
        max_queue_(std::max(options.max_queue, 1)),
        seed_base_(draw_seed_base()),
        loop_(model_, kv_cache_, limits_) {}

  Result<uint64_t> submit(RequestParams params);
  Status cancel(uint64_t request_id);
  Result<bool> step();
  std::shared_ptr<const Event> next_event();
  SchedulerStats stats() const;
  void shut_down();
  Status check_invariants();

  const std::shared_ptr<const EngineModel> model_;
  const std::shared_ptr<KvCache> kv_cache_;

 private:
  Status check_open() const;  // mutex_ held
  // Everything that can be wrong with a request once its prompt is known.
  Status check_prompt(const RequestParams& params, const Session::Lease& lease) const;
  // Puts images into their places in the prompt.
  Status place(const RequestParams& params, std::vector<int32_t>& prompt, std::vector<PromptImage>& images) const;
  // What a request to a model with an encoder in front of its decoder has beside others: its input, and a first token.
  Status start(const RequestParams& params, std::vector<int32_t>& prompt) const;
  Result<std::shared_ptr<LiveRequest>> make_request(uint64_t id, RequestParams params, Session::Lease& lease);
  bool begin_step(Status& status);
  bool end_step();
  void accept_arrived();
  void publish();

  const schedule::StepLimits limits_;
  const int64_t max_queue_;
  const uint64_t seed_base_;

  // Belongs to the thread that made stepping_ true.
  StepLoop loop_;
  std::vector<std::shared_ptr<LiveRequest>> arrived_;  // taken from the inbox, not accepted yet

  mutable std::mutex mutex_;  // guards what follows
  bool stepping_ = false;
  bool closed_ = false;
  uint64_t next_id_ = 1;
  int64_t num_unscheduled_ = 0;  // accepted by the loop and not scheduled yet, as of its last step
  std::vector<std::shared_ptr<LiveRequest>> inbox_;
  std::unordered_map<uint64_t, std::shared_ptr<LiveRequest>> live_;
  std::list<std::shared_ptr<const Event>> events_;
  SchedulerStats stats_;
};

Status Scheduler::Impl::check_open() const {
  if (closed_) return failed_precondition("scheduler", "was destroyed");
  const auto waiting = num_unscheduled_ + static_cast<int64_t>(inbox_.size());
  if (waiting >= max_queue_) {
    return resource_exhausted("scheduler.max_queue", "{} requests wait already", waiting);
  }
  return Status();
}

Status Scheduler::Impl::check_prompt(const RequestParams& params, const Session::Lease& lease) const {
  const auto size = static_cast<int64_t>(lease.prompt.size());
  const int64_t limit = context_limit(*model_, *kv_cache_);
  if (size == 0) return invalid_argument("prompt", "is empty");
  if (size >= limit) {
    return resource_exhausted("prompt",
                              "{} tokens ({} of them the session's) and one to draw exceed the context of {} tokens "
                              "(the model's is {}, the cache holds {})",
                              size, lease.first_own, limit, model_->executor->max_context(),
                              kv_cache_->config().num_blocks * kv_cache_->block_size());
  }
  if (params.min_tokens > limit - size) {
    return resource_exhausted("min_tokens", "{} tokens after a prompt of {} exceed the context of {}",
                              params.min_tokens, size, limit);
  }
  return Status();
}

Status Scheduler::Impl::place(const RequestParams& params, std::vector<int32_t>& prompt,
                              std::vector<PromptImage>& images) const {
  if (params.images.empty()) return {};
  ImageReader* const reader = model_->executor->images();
  if (reader == nullptr) return unsupported("images", "the model reads none");
  if (params.session) return unsupported("images", "of a request on a session");
  if (params.num_prompt_logprobs >= 0) return unsupported("num_prompt_logprobs", "of a prompt with images");
  for (const auto& image : params.images) images.push_back({0, image->grid, nullptr});
  HEADRACE_RETURN_IF_ERROR(place_images(reader->vision().image_token_id, prompt, images));
  for (size_t i = 0; i < images.size(); ++i) {
    const int32_t id = kv_cache_->content_id(params.images[i]->content);
    std::fill(prompt.begin() + images[i].begin, prompt.begin() + images[i].end(), id);
  }
  return {};
}

Status Scheduler::Impl::start(const RequestParams& params, std::vector<int32_t>& prompt) const {
  InputReader* const reader = model_->executor->inputs();
  if (reader == nullptr) {
    if (params.encoder_input) return unsupported("encoder_input", "no encoder stands in front of the model's decoder");
    return {};
  }
  if (!params.encoder_input) {
    return invalid_argument("encoder_input", "the request has none; the model's encoder reads {}",
                            reader->encoder().audio ? "audio" : "tokens");
  }
  const int32_t first = reader->encoder().start_token_id;
  if (prompt.empty() && first >= 0) prompt.push_back(first);
  return {};
}

Result<std::shared_ptr<LiveRequest>> Scheduler::Impl::make_request(uint64_t id, RequestParams params,
                                                                   Session::Lease& lease) {
  HEADRACE_RETURN_IF_ERROR(start(params, lease.prompt));
  std::vector<PromptImage> images;
  HEADRACE_RETURN_IF_ERROR(place(params, lease.prompt, images));
  HEADRACE_RETURN_IF_ERROR(check_prompt(params, lease));
  std::optional<text::StopMatcher> matcher;
  if (!params.stop_strings.empty()) {
    if (!model_->tokenizer) return invalid_argument("stop_strings", "the model has no tokenizer");
    auto made = text::StopMatcher::create(params.stop_strings);
    if (!made.ok()) return made.status();
    matcher = made.take();
  }
  SamplingParams sampling = params.sampling;
  sampling.num_logprobs = std::max(params.num_logprobs, 0);
  if (!params.has_seed) sampling.seed = hash64(&id, sizeof id, seed_base_);
  params.prompt.clear();
  auto request = std::make_shared<LiveRequest>(id, std::move(params), Sampler(std::move(sampling)));
  request->end_ids = end_ids(request->params, *model_);
  request->stop_strings = std::move(matcher);
  request->submitted = Clock::now();
  if (request->params.deadline_ms > 0) {
    // Beyond what the clock can count there is no deadline.
    constexpr int64_t kForever = int64_t{1000} * 3600 * 24 * 365 * 100;
    if (request->params.deadline_ms < kForever) {
      request->deadline = request->submitted + std::chrono::milliseconds(request->params.deadline_ms);
    }
  }
  request->prompt = std::move(lease.prompt);
  request->first_own = lease.first_own;
  request->kv = std::move(lease.kv);
  request->image_rows.resize(images.size());
  for (const PromptImage& image : images) {
    if (has_spans(model_->executor->images()->decoder())) request->uncut.push_back({image.begin, image.end()});
  }
  request->images = std::move(images);
  return request;
}

Result<uint64_t> Scheduler::Impl::submit(RequestParams params) {
  HEADRACE_RETURN_IF_ERROR(params.validate(model_->executor->vocab_size()));
  if (params.n > limits_.max_num_seqs) {
    return invalid_argument("n", "{} samples exceed scheduler.max_num_seqs, {}", params.n, limits_.max_num_seqs);
  }
  if (params.adapter && params.adapter->model() != model_->model) {
    return failed_precondition("adapter", "is of another model");
  }
  uint64_t id = 0;
  {
    const std::lock_guard lock(mutex_);
    HEADRACE_RETURN_IF_ERROR(check_open());
    id = next_id_++;
  }
  const std::shared_ptr<Session> session = params.session;
  Session::Lease lease;
  if (session) {
    if (session->kv_cache() != kv_cache_) {
      return failed_precondition("session", "has another KV cache than the scheduler");
    }
    HEADRACE_ASSIGN_OR_RETURN(lease, session->acquire(params.prompt));
    params.adapter = lease.adapter;
  } else {
    lease.prompt = std::move(params.prompt);
  }
  // A session that was taken goes back whatever fails from here on.
  std::shared_ptr<LiveRequest> request;
  const auto give_back = [&] {
    if (!session) return;
    if (request) {
      lease.prompt = std::move(request->prompt);
      lease.kv = std::move(request->kv);
    }
    session->give_back(std::move(lease.prompt), 0, {}, std::move(lease.kv));
  };
  try {
    auto made = make_request(id, std::move(params), lease);
    Status status = made.status();
    if (made.ok()) {
      request = *made;
      const std::lock_guard lock(mutex_);
      status = check_open();
      if (status.ok()) {
        const auto entry = live_.emplace(id, request).first;
        try {
          inbox_.push_back(request);
        } catch (const std::bad_alloc&) {
          live_.erase(entry);
          throw;
        }
        return id;
      }
    }
    give_back();
    return status;
  } catch (const std::bad_alloc&) {
    give_back();
    throw;
  }
}

Status Scheduler::Impl::cancel(uint64_t request_id) {
  const std::lock_guard lock(mutex_);
  const auto found = live_.find(request_id);
  if (found == live_.end()) return not_found("request_id", "{} has ended or never was", request_id);
  found->second->cancelled.store(true, std::memory_order_release);
  return Status();
}

bool Scheduler::Impl::begin_step(Status& status) {
  const std::lock_guard lock(mutex_);
  if (closed_) {
    status = failed_precondition("scheduler", "was destroyed");
    return false;
  }
  if (stepping_) {
    status = failed_precondition("scheduler", "another thread is inside step");
    return false;
  }
  stepping_ = true;
  if (arrived_.empty()) {
    arrived_.swap(inbox_);
    num_unscheduled_ += static_cast<int64_t>(arrived_.size());
  }
  return true;
}

void Scheduler::Impl::accept_arrived() {
  while (!arrived_.empty()) {
    loop_.accept(arrived_.front());
    arrived_.erase(arrived_.begin());
  }
}

// Allocates nothing: an event that was made always arrives.
void Scheduler::Impl::publish() {
  const std::lock_guard lock(mutex_);
  for (const auto& event : loop_.events()) {
    if (event->is_last) live_.erase(event->request_id);
  }
  events_.splice(events_.end(), loop_.events());
  stats_ = loop_.stats();
  num_unscheduled_ = loop_.num_unscheduled() + static_cast<int64_t>(arrived_.size());
}

// The last thing a step does. True while there is work.
bool Scheduler::Impl::end_step() {
  std::vector<std::shared_ptr<LiveRequest>> queued;
  {
    const std::lock_guard lock(mutex_);
    if (!closed_) {
      stepping_ = false;
      return !live_.empty();
    }
    // Destroyed meanwhile: stepping_ stays true, so nothing else touches the loop again.
    queued.swap(inbox_);
    live_.clear();
  }
  loop_.tear_down();
  for (auto* list : {&queued, &arrived_}) {
    for (const auto& request : *list) StepLoop::abandon(*request);
    list->clear();
  }
  return false;
}

Result<bool> Scheduler::Impl::step() {
  Status status;
  if (!begin_step(status)) return status;
  try {
    accept_arrived();
    loop_.step();
    publish();
  } catch (const std::bad_alloc&) {
    publish();
    end_step();
    return out_of_memory("step", "no memory for the step's books");
  }
#ifndef NDEBUG
  try {
    if (Status law = loop_.check_invariants(); !law.ok()) {
      end_step();
      return law;
    }
  } catch (const std::bad_alloc&) {
    // The step is done; only the check has no memory.
  }
#endif
  return end_step();
}

std::shared_ptr<const Event> Scheduler::Impl::next_event() {
  const std::lock_guard lock(mutex_);
  if (events_.empty()) return nullptr;
  auto event = std::move(events_.front());
  events_.pop_front();
  return event;
}

SchedulerStats Scheduler::Impl::stats() const {
  const std::lock_guard lock(mutex_);
  SchedulerStats stats = stats_;
  stats.num_waiting += static_cast<int64_t>(inbox_.size());
  return stats;
}

void Scheduler::Impl::shut_down() {
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return;
    closed_ = true;
    if (stepping_) return;  // the step in flight does the rest
    stepping_ = true;
  }
  end_step();
}

Status Scheduler::Impl::check_invariants() {
  {
    const std::lock_guard lock(mutex_);
    if (stepping_) return failed_precondition("scheduler", "another thread is inside step");
    stepping_ = true;
  }
  Status status = loop_.check_invariants();
  end_step();
  return status;
}

Scheduler::Scheduler(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Scheduler::~Scheduler() { impl_->shut_down(); }

Result<std::shared_ptr<Scheduler>> Scheduler::create(std::shared_ptr<const EngineModel> model,
                                                     std::shared_ptr<KvCache> kv_cache, const EngineOptions& options) {
  if (kv_cache) {
    HEADRACE_RETURN_IF_ERROR(check_kv_cache(*model, *kv_cache));
  } else {
    HEADRACE_ASSIGN_OR_RETURN(kv_cache, make_kv_cache(*model, options));
  }
  return std::shared_ptr<Scheduler>(
      new Scheduler(std::make_unique<Impl>(std::move(model), std::move(kv_cache), options)));
}

const std::shared_ptr<const EngineModel>& Scheduler::model() const { return impl_->model_; }
const std::shared_ptr<KvCache>& Scheduler::kv_cache() const { return impl_->kv_cache_; }
Result<uint64_t> Scheduler::submit(RequestParams params) { return impl_->submit(std::move(params)); }
Status Scheduler::cancel(uint64_t request_id) { return impl_->cancel(request_id); }
Result<bool> Scheduler::step() { return impl_->step(); }
std::shared_ptr<const Event> Scheduler::next_event() { return impl_->next_event(); }
SchedulerStats Scheduler::stats() const { return impl_->stats(); }
void Scheduler::shut_down() { impl_->shut_down(); }
Status Scheduler::check_invariants() { return impl_->check_invariants(); }

}  // namespace headrace::engine
