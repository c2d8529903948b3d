#include "engine/scheduler.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <new>
#include <optional>
#include <random>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "engine/event_queue.h"
#include "engine/live_request.h"
#include "engine/model_drafters.h"
#include "engine/session.h"
#include "engine/step_loop.h"
#include "speculation/ngram_drafter.h"
#include "speculation/suffix_drafter.h"

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

schedule::SchedulePolicy schedule_policy(const EngineOptions& options) {
  schedule::SchedulePolicy policy;
  switch (options.schedule_mode) {
    case ScheduleMode::kLatency:
      policy.max_gap_ratio = policy.max_burst_gap_ratio = 1.5;
      policy.min_prompt_rows = 4;
      break;
    case ScheduleMode::kBalanced:
      policy.max_gap_ratio = 2.0;
      policy.max_burst_gap_ratio = 3.0;
      policy.min_prompt_rows = 8;
      break;
    case ScheduleMode::kThroughput:
      policy.max_gap_ratio = policy.max_burst_gap_ratio = policy.max_tenant_gap_ratio = 0.0;
      policy.min_prompt_rows = 64;
      break;
  }
  if (options.max_gap_percent > 0) {
    policy.max_gap_ratio = policy.max_burst_gap_ratio = options.max_gap_percent / 100.0;
  }
  if (options.max_burst_gap_percent > 0) policy.max_burst_gap_ratio = options.max_burst_gap_percent / 100.0;
  if (policy.max_gap_ratio > 0.0) policy.max_tenant_gap_ratio = 1.0 + 2.0 * (policy.max_gap_ratio - 1.0);
  if (options.max_tenant_gap_percent > 0) policy.max_tenant_gap_ratio = options.max_tenant_gap_percent / 100.0;
  if (options.min_prompt_rows > 0) policy.min_prompt_rows = options.min_prompt_rows;
  policy.max_gap_ns = options.max_gap_ms * 1e6;
  policy.output_weight = options.output_weight;
  policy.aging_us = int64_t{options.aging_ms} * 1000;
  policy.prefix_window = options.prefix_window;
  policy.max_overtakes = options.max_overtakes;
  policy.load = options.kv_load;
  policy.max_events = options.max_events;
  return policy;
}

std::vector<std::shared_ptr<speculation::Drafter>> all_drafters(
    std::vector<std::shared_ptr<speculation::Drafter>> given) {
  std::vector<std::shared_ptr<speculation::Drafter>> all = {std::make_shared<speculation::NgramDrafter>(),
                                                            std::make_shared<speculation::SuffixDrafter>()};
  std::move(given.begin(), given.end(), std::back_inserter(all));
  return all;
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
  Impl(std::shared_ptr<const EngineModel> model, std::shared_ptr<KvCache> kv_cache, const EngineOptions& options,
       std::vector<std::shared_ptr<speculation::Drafter>> drafters)
      : model_(std::move(model)),
        kv_cache_(std::move(kv_cache)),
        limits_(step_limits(*model_, options)),
        max_queue_(std::max(options.max_queue, 1)),
        max_tenants_(static_cast<size_t>(std::max(options.max_tenants, 1))),
        default_limits_{1.0, options.tenant_max_num_seqs, options.tenant_max_queue,
                        static_cast<double>(options.tenant_tokens_per_second)},
        seed_base_(draw_seed_base()),
        drafter_(options.drafter),
        loop_(model_, kv_cache_, limits_, schedule_policy(options), std::move(drafters),
              GuessPolicy{options.max_draft_tokens, options.draft_always}),
        speculation_(loop_.speculator().totals()) {}

  Result<uint64_t> submit(RequestParams params);
  Status cancel(uint64_t request_id);
  Result<bool> step();
  Status run();
  Status run_steps();
  void stop();
  void set_event_callback(EventCallback callback);
  std::shared_ptr<const Event> next_event(std::optional<uint64_t> request_id);
  Result<std::shared_ptr<const Event>> wait(uint64_t request_id);
  SchedulerReport report() const;
  std::vector<std::string> tenants() const;
  Result<TenantReport> tenant(const std::string& name) const;
  Status set_tenant(const std::string& name, const schedule::TenantLimits& limits);
  void shut_down();
  Status check_invariants();
  Status check_drafter(std::string_view names) const {
    const auto known = loop_.speculator().parse(names);
    return known.ok() ? Status() : invalid_argument("scheduler.drafter", "{}", known.status().message());
  }

  const std::shared_ptr<const EngineModel> model_;
  const std::shared_ptr<KvCache> kv_cache_;

 private:
  using Tenants = std::map<std::string, std::shared_ptr<schedule::Tenant>>;

  Status check_open() const;  // mutex_ held
  // The tenant of that name, made where it is new; mutex_ held.
  Result<std::shared_ptr<schedule::Tenant>> open_tenant(const std::string& name);
  static Status check_queue(schedule::Tenant& tenant);  // mutex_ held
  Result<uint64_t> submit_checked(RequestParams params);
  // Everything that can be wrong with a request once its prompt is known.
  Status check_prompt(const RequestParams& params, const Session::Lease& lease) const;
  // Puts the request's images into their places in its own part of the prompt, whose positions count from 0.
  Status place(RequestParams& params, std::vector<PlacedImage>& images) const;
  // What a request to a model with an encoder in front of its decoder has beside others: its input, and a first token.
  Status start(const RequestParams& params, std::vector<int32_t>& prompt) const;
  Result<std::shared_ptr<LiveRequest>> make_request(uint64_t id, RequestParams params, Session::Lease& lease);
  bool begin_step(Status& status);
  bool end_step(bool left = false);
  bool deliver();
  std::shared_ptr<const Event> take_event(std::optional<uint64_t> request_id);  // mutex_ held
  void tell_news();                                                             // mutex_ held
  void accept_arrived();
  void publish();

  const schedule::StepLimits limits_;
  const int64_t max_queue_;
  const size_t max_tenants_;
  const schedule::TenantLimits default_limits_;
  const uint64_t seed_base_;
  const std::string drafter_;  // of requests that name none

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
  EventQueue events_;
  std::shared_ptr<const EventCallback> callback_;  // null: events are taken
  std::condition_variable news_;
  bool has_news_ = false;  // since the last step began
  bool stops_ = false;
  bool runs_ = false;                 // a thread is in run()
  bool waiter_steps_ = false;         // one in wait() steps
  std::condition_variable progress_;  // a step has ended, or nobody steps any more
  Tenants tenants_;
  bool limits_changed_ = false;
  uint64_t submitted_ = 0, refused_ = 0;  // requests
  schedule::SchedulerMetrics metrics_;
  speculation::SpeculationCounts speculation_;
  int64_t last_step_ns_ = -1;  // on the executor's clock
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

Status Scheduler::Impl::place(RequestParams& params, std::vector<PlacedImage>& images) const {
  if (params.images.empty()) return {};
  ImageReader* const reader = model_->executor->images();
  if (reader == nullptr) return unsupported("images", "the model reads none");
  if (params.session && params.session->of_messages()) {
    return unsupported("images", "of a conversation of messages are those of its messages");
  }
  return place_request_images(*reader, *kv_cache_, params.images, 0, params.prompt, images);
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
  HEADRACE_RETURN_IF_ERROR(check_prompt(params, lease));
  std::optional<text::StopMatcher> matcher;
  if (!params.stop_strings.empty()) {
    if (!model_->tokenizer) return invalid_argument("stop_strings", "the model has no tokenizer");
    auto made = text::StopMatcher::create(params.stop_strings);
    if (!made.ok()) return made.status();
    matcher = made.take();
  }
  HEADRACE_ASSIGN_OR_RETURN(const speculation::DrafterSet drafters,
                            loop_.speculator().parse(params.drafter.empty() ? drafter_ : params.drafter));
  SamplingParams sampling = params.sampling;
  sampling.num_logprobs = std::max(params.num_logprobs, 0);
  if (!params.has_seed) sampling.seed = hash64(&id, sizeof id, seed_base_);
  params.prompt.clear();
  auto request = std::make_shared<LiveRequest>(id, std::move(params), Sampler(std::move(sampling)));
  request->salt = adapted_salt(request->params.adapter.get(), request->params.cache_salt);
  if (request->params.encoder_input) request->salt = input_salt(request->params.encoder_input->content, request->salt);
  request->drafters = drafters;
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
  request->placed_images = std::move(lease.images);
  request->image_rows.resize(request->placed_images.size());
  for (const PlacedImage& image : request->placed_images) {
    request->images.push_back({image.begin, image.image->grid, nullptr});
    if (has_spans(model_->executor->images()->decoder())) request->uncut.push_back({image.begin, image.end()});
  }
  return request;
}

Result<std::shared_ptr<schedule::Tenant>> Scheduler::Impl::open_tenant(const std::string& name) {
  if (const auto found = tenants_.find(name); found != tenants_.end()) return found->second;
  if (tenants_.size() >= max_tenants_) {
    // The one unused for the longest time is forgotten.
    auto victim = tenants_.end();
    for (auto it = tenants_.begin(); it != tenants_.end(); ++it) {
      if (it->second->num_live > 0 || it->second->configured) continue;
      if (victim == tenants_.end() || it->second->last_request < victim->second->last_request) victim = it;
    }
    if (victim == tenants_.end()) {
      return resource_exhausted("scheduler.max_tenants", "{} tenants have requests or limits of their own",
                                tenants_.size());
    }
    tenants_.erase(victim);
  }
  auto tenant = std::make_shared<schedule::Tenant>(name);
  tenant->limits = tenant->wanted_limits = default_limits_;
  return tenants_.emplace(name, std::move(tenant)).first->second;
}

Status Scheduler::Impl::check_queue(schedule::Tenant& tenant) {
  const int64_t limit = tenant.wanted_limits.max_queue;
  if (limit == 0 || tenant.num_queued < limit) return Status();
  ++tenant.refused;
  return resource_exhausted("tenant", "{} requests of \"{}\" wait already", tenant.num_queued, tenant.name);
}

Status Scheduler::Impl::set_tenant(const std::string& name, const schedule::TenantLimits& limits) {
  HEADRACE_RETURN_IF_ERROR(schedule::check_tenant(name, limits));
  const std::lock_guard lock(mutex_);
  HEADRACE_ASSIGN_OR_RETURN(const auto tenant, open_tenant(name));
  tenant->wanted_limits = limits;
  tenant->configured = true;
  limits_changed_ = true;
  return Status();
}

Result<uint64_t> Scheduler::Impl::submit(RequestParams params) {
  auto id = submit_checked(std::move(params));
  if (!id.ok()) {
    const std::lock_guard lock(mutex_);
    ++refused_;
  }
  return id;
}

Result<uint64_t> Scheduler::Impl::submit_checked(RequestParams params) {
  HEADRACE_RETURN_IF_ERROR(params.validate(model_->executor->vocab_size()));
  if (!params.hidden_states.layers.empty()) {
    const Status status = model_->executor->check_hidden_layers(params.hidden_states.layers);
    if (!status.ok()) return status.within("hidden_states");
  }
  if (params.n > limits_.max_num_seqs) {
    return invalid_argument("n", "{} samples exceed scheduler.max_num_seqs, {}", params.n, limits_.max_num_seqs);
  }
  if (params.zero_retention && params.session && !kv_cache_->config().zero_retention) {
    return invalid_argument("zero_retention",
                            "a session keeps what its requests compute, unless kv.zero_retention is set");
  }
  if (params.adapter && params.adapter->model() != model_->model) {
    return failed_precondition("adapter", "is of another model");
  }
  uint64_t id = 0;
  const std::string tenant_name = params.tenant;
  {
    const std::lock_guard lock(mutex_);
    HEADRACE_RETURN_IF_ERROR(check_open());
    HEADRACE_ASSIGN_OR_RETURN(const auto tenant, open_tenant(tenant_name));
    HEADRACE_RETURN_IF_ERROR(check_queue(*tenant));
    id = next_id_++;
  }
  const std::shared_ptr<Session> session = params.session;
  if (session && session->kv_cache() != kv_cache_) {
    return failed_precondition("session", "has another KV cache than the scheduler");
  }
  // Before the session is taken, whose policy of overflow is to see the prompt's size.
  std::vector<PlacedImage> own_images;
  HEADRACE_RETURN_IF_ERROR(place(params, own_images));
  Session::Lease lease;
  if (session) {
    HEADRACE_ASSIGN_OR_RETURN(lease, session->acquire(params.prompt, {params.min_tokens, params.max_tokens}));
    params.adapter = lease.adapter;
    params.cache_salt = lease.cache_salt;
  } else {
    lease.prompt = std::move(params.prompt);
    if (!params.adapter) params.adapter = model_->own_adapter;
  }
  // A session that was taken goes back whatever fails from here on.
  std::shared_ptr<LiveRequest> request;
  const auto give_back = [&] {
    if (!session) return;
    if (request) {
      lease.prompt = std::move(request->prompt);
      lease.kv = std::move(request->kv);
    }
    session->give_back(std::move(lease.prompt), 0, {}, {}, std::move(lease.kv));
  };
  try {
    for (PlacedImage& image : own_images) {
      image.begin += lease.first_own;
      lease.images.push_back(std::move(image));
    }
    auto made = make_request(id, std::move(params), lease);
    Status status = made.status();
    if (made.ok()) {
      request = *made;
      const std::lock_guard lock(mutex_);
      status = check_open();
      auto tenant = open_tenant(tenant_name);
      if (status.ok()) status = tenant.ok() ? check_queue(**tenant) : tenant.status();
      if (status.ok()) {
        request->tenant = *tenant;
        try {
          events_.open(id);
          live_.emplace(id, request);
          inbox_.push_back(request);
        } catch (const std::bad_alloc&) {
          events_.close(id);
          live_.erase(id);
          throw;
        }
        ++request->tenant->num_live;
        ++request->tenant->num_queued;
        ++request->tenant->submitted;
        ++submitted_;
        request->tenant->last_request = id;
        tell_news();
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
  tell_news();
  return Status();
}

void Scheduler::Impl::tell_news() {
  has_news_ = true;
  news_.notify_all();
}

bool Scheduler::Impl::begin_step(Status& status) {
  const std::lock_guard lock(mutex_);
  if (closed_) {
    status = failed_precondition("scheduler", "was destroyed");
    return false;
  }
  if (stepping_) {
    status = failed_precondition("scheduler", "a step goes on");
    return false;
  }
  stepping_ = true;
  has_news_ = false;
  if (!live_.empty()) model_->executor->expect_more(true);
  if (arrived_.empty()) {
    arrived_.swap(inbox_);
    num_unscheduled_ += static_cast<int64_t>(arrived_.size());
  }
  if (std::exchange(limits_changed_, false)) {
    for (const auto& [name, tenant] : tenants_) tenant->limits = tenant->wanted_limits;
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
    const auto found = live_.find(event->request_id);
    if (found == live_.end()) continue;
    ++found->second->num_unread;
    if (!event->is_last) continue;
    --found->second->tenant->num_live;
    live_.erase(found);
  }
  events_.add(loop_.events());
  metrics_ = loop_.metrics();
  // Of the same sizes always: copying allocates nothing.
  speculation_ = loop_.speculator().totals();
  last_step_ns_ = model_->executor->clock_ns();
  for (const auto& [name, tenant] : tenants_) {
    if (!std::exchange(tenant->changed, false)) continue;
    tenant->num_queued -= std::exchange(tenant->newly_scheduled, 0);
    tenant->published = tenant->metrics;
  }
  num_unscheduled_ = loop_.num_unscheduled() + static_cast<int64_t>(arrived_.size());
}

// The last thing a step does. True while there is work, which events are that the callback `left`.
bool Scheduler::Impl::end_step(bool left) {
  std::vector<std::shared_ptr<LiveRequest>> queued;
  {
    const std::lock_guard lock(mutex_);
    if (!closed_) {
      stepping_ = false;
      progress_.notify_all();
      model_->executor->expect_more(!live_.empty() && !loop_.held_back());
      return left || !live_.empty();
    }
    // Destroyed meanwhile: stepping_ stays true, so nothing else touches the loop again.
    queued.swap(inbox_);
    live_.clear();
  }
  model_->executor->expect_more(false);
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
    // Nothing can run before time has passed: a host that steps as fast as it can need not burn a processor.
    if (loop_.held_back()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    loop_.wait_for_disk();
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
  bool left = false;
  try {
    left = deliver();
  } catch (...) {
    end_step();
    throw;
  }
  return end_step(left);
}

// Gives the callback what there is. Whether some of it is left. Within the step, so that one thread alone does it.
bool Scheduler::Impl::deliver() {
  bool left = false;
  uint64_t from = 0;  // what is before it was given or refused
  for (;;) {
    std::shared_ptr<const EventCallback> callback;
    std::shared_ptr<const Event> event;
    {
      const std::lock_guard lock(mutex_);
      callback = callback_;
      if (callback == nullptr || closed_) return false;
      event = events_.look(from);
    }
    if (event == nullptr) return left;
    from = event->number + 1;
    if (!(*callback)(event)) {
      left = true;
      continue;
    }
    const std::lock_guard lock(mutex_);
    // The callback may have destroyed the scheduler, or taken itself away, whereupon next_event may have given the event.
    if (!closed_ && events_.look(event->number) == event) take_event(event->request_id);
  }
}

void Scheduler::Impl::set_event_callback(EventCallback callback) {
  auto shared = callback ? std::make_shared<const EventCallback>(std::move(callback)) : nullptr;
  const std::lock_guard lock(mutex_);
  callback_.swap(shared);
  tell_news();
  progress_.notify_all();
}

namespace {

// What waits for a reader is looked at so often.
constexpr auto kPause = std::chrono::milliseconds(1);

}  // namespace

Status Scheduler::Impl::run() {
  // A thread in wait() may be in the middle of a step: the next one is this thread's.
  std::unique_lock lock(mutex_);
  if (runs_) return failed_precondition("scheduler", "a step goes on");
  runs_ = true;
  progress_.wait(lock, [&] { return !waiter_steps_ || closed_; });
  lock.unlock();
  const Status status = run_steps();
  lock.lock();
  runs_ = false;
  progress_.notify_all();
  return status;
}

Status Scheduler::Impl::run_steps() {
  uint64_t steps = 0;
  for (;;) {
    const auto working = step();
    std::unique_lock lock(mutex_);
    const bool ran = std::exchange(steps, metrics_.num_steps) != metrics_.num_steps;
    if (closed_ || std::exchange(stops_, false)) return Status();
    if (!working.ok()) return working.status();
    const auto awake = [&] { return has_news_ || closed_ || stops_; };
    if (!*working) {
      news_.wait(lock, awake);
    } else if (!ran) {
      news_.wait_for(lock, kPause, awake);
    }
  }
}

Result<std::shared_ptr<const Event>> Scheduler::Impl::wait(uint64_t request_id) {
  std::unique_lock lock(mutex_);
  for (uint64_t steps = ~uint64_t{0};;) {
    if (closed_) return failed_precondition("scheduler", "was destroyed");
    if (callback_ != nullptr) return failed_precondition("scheduler", "events are given to its callback");
    if (auto event = take_event(request_id)) return event;
    if (!live_.contains(request_id)) return not_found("request_id", "{} has no more events", request_id);
    if (stepping_ || runs_) {
      progress_.wait(lock);
      continue;
    }
    // Others that are full hold the steps up until somebody reads them.
    if (std::exchange(steps, metrics_.num_steps) == metrics_.num_steps) news_.wait_for(lock, kPause);
    if (stepping_ || runs_) continue;
    waiter_steps_ = true;
    lock.unlock();
    const auto working = step();
    lock.lock();
    waiter_steps_ = false;
    progress_.notify_all();
    // Somebody else's step came between.
    if (!working.ok() && !closed_ && working.status().code() != StatusCode::kFailedPrecondition)
      return working.status();
  }
}

void Scheduler::Impl::stop() {
  const std::lock_guard lock(mutex_);
  stops_ = true;
  news_.notify_all();
}

std::shared_ptr<const Event> Scheduler::Impl::next_event(std::optional<uint64_t> request_id) {
  const std::lock_guard lock(mutex_);
  return callback_ == nullptr ? take_event(request_id) : nullptr;
}

std::shared_ptr<const Event> Scheduler::Impl::take_event(std::optional<uint64_t> request_id) {
  auto event = request_id ? events_.take_of(*request_id) : events_.take();
  if (event == nullptr) return nullptr;
  if (const auto found = live_.find(event->request_id); found != live_.end()) --found->second->num_unread;
  return event;
}

SchedulerReport Scheduler::Impl::report() const {
  SchedulerReport report;
  report.kv = kv_cache_->stats();
  report.max_num_batched_tokens = limits_.max_num_batched_tokens;
  report.max_num_seqs = limits_.max_num_seqs;
  const std::lock_guard lock(mutex_);
  report.metrics = metrics_;
  report.speculation = speculation_;
  report.metrics.num_waiting += static_cast<int64_t>(inbox_.size());
  report.metrics.submitted_requests = submitted_;
  report.metrics.refused_requests = refused_;
  report.num_tenants = static_cast<int64_t>(tenants_.size());
  if (last_step_ns_ >= 0) report.step_age_ns = std::max<int64_t>(model_->executor->clock_ns() - last_step_ns_, 0);
  return report;
}

std::vector<std::string> Scheduler::Impl::tenants() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> names;
  for (const auto& [name, tenant] : tenants_) names.push_back(name);
  return names;
}

Result<TenantReport> Scheduler::Impl::tenant(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  const auto found = tenants_.find(name);
  if (found == tenants_.end()) return not_found("tenant", "\"{}\" is not known", name);
  TenantReport report{found->second->wanted_limits, found->second->published};
  report.metrics.submitted_requests = found->second->submitted;
  report.metrics.refused_requests = found->second->refused;
  return report;
}

void Scheduler::Impl::shut_down() {
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return;
    closed_ = true;
    news_.notify_all();
    progress_.notify_all();
    if (stepping_) return;  // the step in flight does the rest
    stepping_ = true;
  }
  end_step();
}

Status Scheduler::Impl::check_invariants() {
  {
    const std::lock_guard lock(mutex_);
    if (stepping_) return failed_precondition("scheduler", "a step goes on");
    stepping_ = true;
  }
  Status status = loop_.check_invariants();
  end_step();
  return status;
}

Scheduler::Scheduler(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Scheduler::~Scheduler() { impl_->shut_down(); }

Result<std::shared_ptr<Scheduler>> Scheduler::create(std::shared_ptr<const EngineModel> model,
                                                     std::shared_ptr<KvCache> kv_cache, const EngineOptions& options,
                                                     std::vector<std::shared_ptr<speculation::Drafter>> drafters) {
  if (kv_cache) {
    HEADRACE_RETURN_IF_ERROR(check_kv_cache(*model, *kv_cache));
  } else {
    HEADRACE_ASSIGN_OR_RETURN(kv_cache, make_kv_cache(*model, options));
  }
  HEADRACE_ASSIGN_OR_RETURN(auto models, load_model_drafters(options.drafter, *model, options));
  std::move(models.begin(), models.end(), std::back_inserter(drafters));
  drafters = all_drafters(std::move(drafters));
  if (drafters.size() > speculation::Speculator::kMaxDrafters) {
    return invalid_argument("scheduler.drafter", "{} drafters, more than {}", drafters.size(),
                            speculation::Speculator::kMaxDrafters);
  }
  const schedule::StepLimits limits = step_limits(*model, options);
  HEADRACE_RETURN_IF_ERROR(model->executor->reserve_workspace(limits.max_num_batched_tokens, limits.max_num_seqs));
  auto impl = std::make_unique<Impl>(std::move(model), std::move(kv_cache), options, std::move(drafters));
  HEADRACE_RETURN_IF_ERROR(impl->check_drafter(options.drafter));
  return std::shared_ptr<Scheduler>(new Scheduler(std::move(impl)));
}

const std::shared_ptr<const EngineModel>& Scheduler::model() const { return impl_->model_; }
const std::shared_ptr<KvCache>& Scheduler::kv_cache() const { return impl_->kv_cache_; }
Result<uint64_t> Scheduler::submit(RequestParams params) { return impl_->submit(std::move(params)); }
Status Scheduler::cancel(uint64_t request_id) { return impl_->cancel(request_id); }
Result<bool> Scheduler::step() { return impl_->step(); }
void Scheduler::set_event_callback(EventCallback callback) { impl_->set_event_callback(std::move(callback)); }
Status Scheduler::run() { return impl_->run(); }
void Scheduler::stop() { impl_->stop(); }
std::shared_ptr<const Event> Scheduler::next_event() { return impl_->next_event(std::nullopt); }
std::shared_ptr<const Event> Scheduler::next_event_of(uint64_t request_id) { return impl_->next_event(request_id); }
Result<std::shared_ptr<const Event>> Scheduler::wait(uint64_t request_id) { return impl_->wait(request_id); }
SchedulerReport Scheduler::report() const { return impl_->report(); }
std::vector<std::string> Scheduler::tenants() const { return impl_->tenants(); }
Result<TenantReport> Scheduler::tenant(const std::string& name) const { return impl_->tenant(name); }
Status Scheduler::set_tenant(const std::string& name, const schedule::TenantLimits& limits) {
  return impl_->set_tenant(name, limits);
}
SchedulerStats Scheduler::stats() const {
  const schedule::SchedulerMetrics now = impl_->report().metrics;
  return {now.num_waiting,   now.num_running,   now.num_steps,   now.computed_tokens,
          now.reused_tokens, now.decode_tokens, now.preemptions, now.finished_requests};
}
void Scheduler::shut_down() { impl_->shut_down(); }
Status Scheduler::check_invariants() { return impl_->check_invariants(); }

}  // namespace headrace::engine
