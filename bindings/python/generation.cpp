#include <condition_variable>
#include <deque>
#include <mutex>
#include <span>
#include <variant>

#include "module.h"

namespace headrace_python {
namespace {

// What generate's keywords say about one request, until they are put into it.
struct Parameters {
  headrace::Sampling sampling;
  int64_t min_tokens = 0, max_tokens = 0;
  std::vector<int32_t> hidden_layers;
  std::pair<int64_t, int64_t> hidden_range{0, INT64_MAX};
};

// Throws py::cast_error for what is no str.
std::string text_of(const py::handle& value) {
  if (!py::isinstance<py::str>(value)) throw py::cast_error("a str is needed");
  return text_from(value);
}

using Floats = py::array_t<float, py::array::c_style | py::array::forcecast>;

// Bytes [height, width, 3], pixel values [channels, height, width], or a tuple of patches [patches, values] and their
// (rows, columns).
void add_image(headrace::Request& request, const py::handle& image) {
  const auto add = [&](const Floats& pixels, uint32_t height, uint32_t width) {
    request.add_image_pixels(pixels.data(), static_cast<size_t>(pixels.size()), height, width);
  };
  if (py::isinstance<py::tuple>(image)) {
    const auto [pixels, size] = image.cast<std::pair<Floats, std::pair<uint32_t, uint32_t>>>();
    return add(pixels, size.first, size.second);
  }
  if (py::isinstance<py::array_t<uint8_t>>(image)) {
    const auto rgb = image.cast<py::array_t<uint8_t, py::array::c_style | py::array::forcecast>>();
    if (rgb.ndim() != 3) throw py::cast_error("three axes are needed");
    request.add_image(rgb.data(), static_cast<size_t>(rgb.size()), static_cast<uint32_t>(rgb.shape(0)),
                      static_cast<uint32_t>(rgb.shape(1)));
    return;
  }
  const auto pixels = Floats::ensure(image);
  if (!pixels || pixels.ndim() != 3) throw py::cast_error("numbers on three axes are needed");
  add(pixels, static_cast<uint32_t>(pixels.shape(1)), static_cast<uint32_t>(pixels.shape(2)));
}

// Text, tokens, or features [num_mels, num_frames].
void set_encoder_input(headrace::Request& request, const py::handle& input) {
  if (py::isinstance<py::str>(input)) {
    request.set_encoder_text(text_of(input));
    return;
  }
  if (py::isinstance<py::array_t<float>>(input)) {
    const auto features = Floats::ensure(input);
    if (!features || features.ndim() != 2) throw py::cast_error("two axes are needed");
    request.set_audio_features(features.data(), static_cast<size_t>(features.size()),
                               static_cast<uint32_t>(features.shape(0)), static_cast<uint32_t>(features.shape(1)));
    return;
  }
  request.set_encoder_tokens(input.cast<std::vector<int32_t>>());
}

// A waveform, or a tuple of one and its rate; a rate of 16000 alone is taken, so it need not be said.
std::pair<Floats, uint32_t> audio_of(const py::handle& audio) {
  uint32_t rate = 16000;
  py::object given = py::reinterpret_borrow<py::object>(audio);
  if (py::isinstance<py::tuple>(audio)) std::tie(given, rate) = audio.cast<std::pair<py::object, uint32_t>>();
  const auto samples = Floats::ensure(given);
  if (!samples || samples.ndim() != 1) throw py::cast_error("one axis is needed");
  return {samples, rate};
}

void set_audio(headrace::Request& request, const py::handle& audio) {
  const auto [samples, rate] = audio_of(audio);
  request.set_audio(samples.data(), static_cast<size_t>(samples.size()), rate);
}

// Throws py::cast_error for a value of another type.
void set_parameter(headrace::Request& request, Parameters& parameters, const std::string& name,
                   const py::handle& value) {
  headrace::Sampling& sampling = parameters.sampling;
  if (name == "temperature")
    sampling.temperature = value.cast<float>();
  else if (name == "top_k")
    sampling.top_k = value.cast<int32_t>();
  else if (name == "top_p")
    sampling.top_p = value.cast<float>();
  else if (name == "min_p")
    sampling.min_p = value.cast<float>();
  else if (name == "typical_p")
    sampling.typical_p = value.cast<float>();
  else if (name == "repetition_penalty")
    sampling.repetition_penalty = value.cast<float>();
  else if (name == "frequency_penalty")
    sampling.frequency_penalty = value.cast<float>();
  else if (name == "presence_penalty")
    sampling.presence_penalty = value.cast<float>();
  else if (name == "n")
    sampling.n = value.cast<uint32_t>();
  else if (name == "seed")
    sampling.seed = value.cast<uint64_t>(), sampling.has_seed = 1;
  else if (name == "logprobs")
    sampling.num_logprobs = value.cast<int32_t>();
  else if (name == "prompt_logprobs")
    sampling.num_prompt_logprobs = value.cast<int32_t>();
  else if (name == "min_tokens")
    parameters.min_tokens = value.cast<int64_t>();
  else if (name == "max_tokens")
    parameters.max_tokens = value.cast<int64_t>();
  else if (name == "hidden_states")
    parameters.hidden_layers = value.cast<std::vector<int32_t>>();
  else if (name == "hidden_range")
    parameters.hidden_range = value.cast<std::pair<int64_t, int64_t>>();
  else if (name == "ignore_eos")
    request.set_ignore_eos(value.cast<bool>());
  else if (name == "deadline_ms")
    request.set_deadline(value.cast<int64_t>());
  else if (name == "priority")
    request.set_priority(value.cast<int32_t>());
  else if (name == "cache_salt")
    request.set_cache_salt(text_of(value));
  else if (name == "drafter")
    request.set_drafter(text_of(value));
  else if (name == "zero_retention")
    request.set_zero_retention(value.cast<bool>());
  else if (name == "tenant")
    request.set_tenant(text_of(value));
  else if (name == "adapter")
    request.set_adapter(value.cast<const headrace::Adapter&>());
  else if (name == "session")
    request.set_session(value.cast<const PythonSession&>().session);
  else if (name == "stop") {
    if (py::isinstance<py::str>(value))
      request.add_stop(text_of(value));
    else
      for (const auto& text : value.cast<std::vector<py::object>>()) request.add_stop(text_of(text));
  } else if (name == "stop_token_ids") {
    for (int32_t id : value.cast<std::vector<int32_t>>()) request.add_stop_token(id);
  } else if (name == "images") {
    for (const py::handle& image : value) add_image(request, image);
  } else if (name == "encoder_input") {
    set_encoder_input(request, value);
  } else if (name == "audio") {
    set_audio(request, value);
  } else if (name == "logit_bias") {
    for (const auto& [id, bias] : value.cast<std::map<int32_t, float>>()) request.add_logit_bias(id, bias);
  } else {
    throw py::type_error("unknown generation parameter: " + name);
  }
}

// Fills a request from generate's keywords; an unknown keyword, and a value of another type, is a TypeError.
void set_parameters(headrace::Request& request, const py::kwargs& arguments) {
  Parameters parameters;
  for (const auto& [key, value] : arguments) {
    if (value.is_none()) continue;
    const std::string name = key.cast<std::string>();
    try {
      set_parameter(request, parameters, name, value);
    } catch (const py::cast_error&) {
      throw py::type_error(name + ": " + py::repr(value).cast<std::string>() + " is not of the type it needs");
    }
  }
  request.set_sampling(parameters.sampling).set_length(parameters.min_tokens, parameters.max_tokens);
  request.set_hidden_states(parameters.hidden_layers, parameters.hidden_range.first, parameters.hidden_range.second);
}

// str: plain text; list of int: tokens; list of dict: messages for the chat template; Prompt: a rendered one; None: the
// session's tokens alone.
void set_prompt(headrace::Request& request, const py::object& prompt) {
  if (prompt.is_none()) return;
  if (py::isinstance<py::str>(prompt)) {
    request.add_text(text_from(prompt));
  } else if (py::isinstance<headrace::Prompt>(prompt)) {
    request.add_prompt(prompt.cast<const headrace::Prompt&>());
  } else if (py::isinstance<py::sequence>(prompt) && py::len(prompt) > 0 &&
             py::isinstance<py::dict>(prompt.cast<py::sequence>()[0])) {
    request.add_messages(to_json(prompt));
  } else {
    std::vector<int32_t> tokens;
    try {
      tokens = prompt.cast<std::vector<int32_t>>();
    } catch (const py::cast_error&) {
      throw py::type_error("prompt: a str, a list of token ids, a list of messages, a Prompt or None is needed");
    }
    request.add_tokens(tokens);
  }
}

// Rows [layers, rows, hidden_size] of kHidden, read where the event has them; the array keeps it alive.
py::array hidden_array(headrace::Event event) {
  auto kept = std::make_unique<headrace::Event>(std::move(event));
  const headrace_hidden_states rows = kept->hidden_states();
  const py::capsule owner(kept.release(), [](void* held) { delete static_cast<headrace::Event*>(held); });
  py::array_t<float> out({static_cast<py::ssize_t>(rows.num_layers), static_cast<py::ssize_t>(rows.num_rows),
                          static_cast<py::ssize_t>(rows.hidden_size)},
                         rows.values, owner);
  out.attr("setflags")(py::arg("write") = false);
  return out;
}

py::dict event_dict(const headrace::Event& event) {
  static const char* const kNames[] = {"", "tokens", "prompt", "finished", "failed", "hidden", "progress"};
  py::dict out;
  out["type"] = kNames[static_cast<int>(event.type())];
  out["request_id"] = event.request_id();
  out["index"] = event.index();
  out["is_last"] = event.is_last();
  out["text"] = event.text();
  const std::vector<int32_t> tokens = event.tokens();
  out["tokens"] = tokens;
  if (const std::vector<float> logprobs = event.logprobs(); !logprobs.empty()) {
    out["logprobs"] = logprobs;
    py::list top;
    for (size_t token = 0; token < tokens.size(); ++token) top.append(event.top_logprobs(token));
    out["top_logprobs"] = top;
  }
  if (event.type() == headrace::EventType::kFinished) {
    const headrace_usage usage = event.usage();
    py::dict numbers;
    numbers["prompt_tokens"] = usage.prompt_tokens;
    numbers["cached_tokens"] = usage.cached_tokens;
    numbers["output_tokens"] = usage.output_tokens;
    numbers["queue_ns"] = usage.queue_ns;
    numbers["first_token_ns"] = usage.first_token_ns;
    numbers["total_ns"] = usage.total_ns;
    out["finish_reason"] = event.finish_reason();
    numbers["reuse_miss"] = event.reuse_miss();
    out["usage"] = numbers;
    out["speculation"] = from_json(event.describe_speculation());
  }
  return out;
}

// A scheduler that several Python threads may wait on: one of those that wait runs the next step and sorts events by
// request, the others sleep until it is done. The mutex is not held during a step, so that nothing but a step waits for one.
// Where a function may wait, the GIL must be released.
class PythonScheduler {
 public:
  PythonScheduler(const headrace::Model& model, const std::optional<headrace::KVCache>& cache,
                  const headrace::Options& options)
      : model_(model),
        scheduler_(cache ? headrace::Scheduler(model, *cache, options) : headrace::Scheduler(model, options)) {}

  uint64_t submit(const py::object& prompt, const py::kwargs& arguments) {
    headrace::Request request(model_);
    set_prompt(request, prompt);
    set_parameters(request, arguments);
    return submit(request);
  }
  uint64_t submit(const headrace::Request& request) {
    py::gil_scoped_release release;
    // Within the lock, so that no event is sorted before there is a queue for it.
    std::lock_guard lock(mutex_);
    const uint64_t id = scheduler_.submit(request);
    events_[id];
    return id;
  }
  const headrace::Model& model() const { return model_; }
  void cancel(uint64_t request_id) { scheduler_.cancel(request_id); }

  // One step, after the one in flight; true while there is work. May wait.
  bool step() {
    std::unique_lock lock(mutex_);
    stepped_.wait(lock, [&] { return !stepping_; });
    return run_step(lock);
  }

  // The request's next event, stepping until there is one; none after its last. May wait.
  std::optional<headrace::Event> wait(uint64_t request_id) {
    std::unique_lock lock(mutex_);
    for (;;) {
      const auto queue = events_.find(request_id);
      if (queue == events_.end()) return std::nullopt;
      if (!queue->second.empty()) return pop(queue);
      if (stepping_) {
        stepped_.wait(lock);
      } else {
        run_step(lock);
      }
    }
  }
  std::optional<headrace::Event> poll(uint64_t request_id) {
    std::lock_guard lock(mutex_);
    const auto queue = events_.find(request_id);
    if (queue == events_.end() || queue->second.empty()) return std::nullopt;
    return pop(queue);
  }
  // Cancels and forgets a request whose events nobody wants any more.
  void abandon(uint64_t request_id) {
    std::lock_guard lock(mutex_);
    if (events_.erase(request_id) == 0) return;
    try {
      scheduler_.cancel(request_id);
    } catch (const headrace::Error&) {
      // it has ended meanwhile
    }
  }
  headrace_scheduler_stats stats() const { return scheduler_.stats(); }
  const headrace::Scheduler& scheduler() const { return scheduler_; }
  void set_tenant(const std::string& tenant, const headrace_tenant_limits& limits) {
    scheduler_.set_tenant(tenant, limits);
  }

 private:
  using Queues = std::map<uint64_t, std::deque<headrace::Event>>;

  headrace::Event pop(Queues::iterator queue) {
    headrace::Event event = std::move(queue->second.front());
    queue->second.pop_front();
    if (event.is_last()) events_.erase(queue);
    return event;
  }
  // Gives the lock back for the time of the step.
  bool run_step(std::unique_lock<std::mutex>& lock) {
    struct Stepping {
      PythonScheduler& scheduler;
      std::unique_lock<std::mutex>& lock;
      Stepping(PythonScheduler& self, std::unique_lock<std::mutex>& held) : scheduler(self), lock(held) {
        scheduler.stepping_ = true;
        lock.unlock();
      }
      ~Stepping() {
        lock.lock();
        scheduler.stepping_ = false;
        scheduler.stepped_.notify_all();
      }
    };
    bool has_work = false;
    {
      const Stepping stepping(*this, lock);
      has_work = scheduler_.step();
    }
    while (std::optional<headrace::Event> event = scheduler_.next_event()) {
      const auto queue = events_.find(event->request_id());
      if (queue != events_.end()) queue->second.push_back(std::move(*event));
    }
    return has_work;
  }

  headrace::Model model_;
  headrace::Scheduler scheduler_;
  std::mutex mutex_;
  std::condition_variable stepped_;
  bool stepping_ = false;
  Queues events_;
};

// The request's next event; none after its last. A failed request throws.
std::optional<headrace::Event> wait_for_event(PythonScheduler& scheduler, uint64_t request_id) {
  const py::gil_scoped_release release;
  std::optional<headrace::Event> event = scheduler.wait(request_id);
  if (event && event->type() == headrace::EventType::kFailed) throw event->error();
  return event;
}

// Hands each event of the request to `take`, to its end, or abandons it.
template <typename Take>
void run_to_end(PythonScheduler& scheduler, uint64_t request_id, const Take& take) {
  try {
    while (std::optional<headrace::Event> event = wait_for_event(scheduler, request_id)) {
      take(*event);
      if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    }
  } catch (...) {
    scheduler.abandon(request_id);
    throw;
  }
}

// for piece in scheduler.stream(...): cancels the request when it is dropped early.
class TextStream {
 public:
  TextStream(std::shared_ptr<PythonScheduler> scheduler, uint64_t request_id)
      : scheduler_(std::move(scheduler)), request_id_(request_id) {}
  ~TextStream() {
    py::gil_scoped_release release;  // another thread may be in a step
    scheduler_->abandon(request_id_);
  }

  std::string next() {
    while (const std::optional<headrace::Event> event = wait_for_event(*scheduler_, request_id_)) {
      if (std::string text = event->text(); !text.empty()) return text;
      if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    }
    throw py::stop_iteration();
  }

 private:
  std::shared_ptr<PythonScheduler> scheduler_;
  uint64_t request_id_;
};

py::dict latency_dict(const headrace_latency& latency) {
  py::dict out;
  out["count"] = latency.count;
  out["sum_ns"] = latency.sum_ns;
  out["p50_ns"] = latency.p50_ns;
  out["p95_ns"] = latency.p95_ns;
  out["p99_ns"] = latency.p99_ns;
  return out;
}

py::dict metrics_dict(const headrace::Scheduler& scheduler) {
  const headrace_scheduler_metrics metrics = scheduler.metrics();
  py::dict out;
#define HEADRACE_PUT(field) out[#field] = metrics.field
  HEADRACE_PUT(num_waiting);
  HEADRACE_PUT(num_running);
  HEADRACE_PUT(kv_blocks);
  HEADRACE_PUT(kv_used_blocks);
  HEADRACE_PUT(kv_cached_blocks);
  HEADRACE_PUT(step_age_ns);
  HEADRACE_PUT(submitted_requests);
  HEADRACE_PUT(refused_requests);
  HEADRACE_PUT(finished_requests);
  HEADRACE_PUT(failed_requests);
  HEADRACE_PUT(stop_samples);
  HEADRACE_PUT(length_samples);
  HEADRACE_PUT(cancelled_samples);
  HEADRACE_PUT(deadline_samples);
  HEADRACE_PUT(prompt_tokens);
  HEADRACE_PUT(cached_tokens);
  HEADRACE_PUT(output_tokens);
  HEADRACE_PUT(lookup_tokens);
  HEADRACE_PUT(hit_tokens);
  HEADRACE_PUT(num_steps);
  HEADRACE_PUT(step_ns);
  HEADRACE_PUT(step_rows);
  HEADRACE_PUT(step_sequences);
  HEADRACE_PUT(max_num_batched_tokens);
  HEADRACE_PUT(max_num_seqs);
  HEADRACE_PUT(preemptions);
  HEADRACE_PUT(evictions);
  HEADRACE_PUT(prefix_waits);
  HEADRACE_PUT(num_loading);
  HEADRACE_PUT(disk_tokens);
  HEADRACE_PUT(disk_max_bytes);
  HEADRACE_PUT(disk_bytes);
  HEADRACE_PUT(disk_files);
  HEADRACE_PUT(disk_written_files);
  HEADRACE_PUT(disk_written_bytes);
  HEADRACE_PUT(disk_read_files);
  HEADRACE_PUT(disk_read_bytes);
  HEADRACE_PUT(disk_evicted_files);
  HEADRACE_PUT(disk_dropped_writes);
  HEADRACE_PUT(disk_failed_writes);
  HEADRACE_PUT(disk_missing_files);
  HEADRACE_PUT(disk_unreadable_files);
  HEADRACE_PUT(disk_truncated_files);
  HEADRACE_PUT(disk_damaged_files);
  HEADRACE_PUT(disk_foreign_files);
  HEADRACE_PUT(forgone_loads);
  HEADRACE_PUT(host_max_bytes);
  HEADRACE_PUT(host_bytes);
  HEADRACE_PUT(host_copies);
  HEADRACE_PUT(host_kept_copies);
  HEADRACE_PUT(host_read_copies);
  HEADRACE_PUT(host_read_bytes);
  HEADRACE_PUT(host_evicted_copies);
#undef HEADRACE_PUT
  out["queue"] = latency_dict(scheduler.latency(HEADRACE_LATENCY_QUEUE));
  out["first_token"] = latency_dict(scheduler.latency(HEADRACE_LATENCY_FIRST_TOKEN));
  out["inter_token"] = latency_dict(scheduler.latency(HEADRACE_LATENCY_INTER_TOKEN));
  out["step"] = latency_dict(scheduler.latency(HEADRACE_LATENCY_STEP));
  return out;
}

py::dict tenant_dict(const headrace::Scheduler& scheduler, const std::string& tenant) {
  const headrace_tenant_metrics metrics = scheduler.tenant_metrics(tenant);
  py::dict out;
#define HEADRACE_PUT(field) out[#field] = metrics.field
  HEADRACE_PUT(weight);
  HEADRACE_PUT(service);
  HEADRACE_PUT(num_waiting);
  HEADRACE_PUT(num_running);
  HEADRACE_PUT(submitted_requests);
  HEADRACE_PUT(refused_requests);
  HEADRACE_PUT(finished_requests);
  HEADRACE_PUT(prompt_tokens);
  HEADRACE_PUT(cached_tokens);
  HEADRACE_PUT(output_tokens);
  HEADRACE_PUT(preemptions);
#undef HEADRACE_PUT
  out["queue"] = latency_dict(scheduler.tenant_latency(tenant, HEADRACE_LATENCY_QUEUE));
  out["first_token"] = latency_dict(scheduler.tenant_latency(tenant, HEADRACE_LATENCY_FIRST_TOKEN));
  out["inter_token"] = latency_dict(scheduler.tenant_latency(tenant, HEADRACE_LATENCY_INTER_TOKEN));
  return out;
}

py::object generate(PythonScheduler& self, const py::object& prompt, const py::kwargs& arguments) {
  const py::object output_type = py::module_::import("headrace._generation").attr("Output");
  const uint64_t request_id = self.submit(prompt, arguments);
  // Submitted, so n is a good number.
  const size_t count = arguments.contains("n") && !arguments["n"].is_none() ? arguments["n"].cast<size_t>() : 1;
  const bool wants_logprobs = arguments.contains("logprobs") && !arguments["logprobs"].is_none();
  std::vector<py::object> outputs;
  for (size_t i = 0; i < count; ++i) {
    outputs.push_back(output_type());
    if (!wants_logprobs) continue;
    outputs.back().attr("logprobs") = py::list();
    outputs.back().attr("top_logprobs") = py::list();
  }
  run_to_end(self, request_id, [&](headrace::Event& event) {
    py::object& output = outputs.at(event.index());
    if (event.type() == headrace::EventType::kHidden) {
      if (output.attr("hidden_states").is_none()) output.attr("hidden_states") = py::list();
      output.attr("hidden_states").attr("append")(hidden_array(std::move(event)));
      return;
    }
    const py::dict fields = event_dict(event);
    if (event.type() == headrace::EventType::kPrompt) {
      for (py::object& each : outputs) {
        each.attr("prompt_logprobs") = fields["logprobs"];
        each.attr("prompt_top_logprobs") = fields["top_logprobs"];
      }
      return;
    }
    output.attr("text") = output.attr("text").cast<std::string>() + event.text();
    output.attr("tokens").attr("extend")(fields["tokens"]);
    if (wants_logprobs && fields.contains("logprobs")) {
      output.attr("logprobs").attr("extend")(fields["logprobs"]);
      output.attr("top_logprobs").attr("extend")(fields["top_logprobs"]);
    }
    if (event.type() == headrace::EventType::kFinished) {
      output.attr("finish_reason") = fields["finish_reason"];
      output.attr("usage") = fields["usage"];
      output.attr("speculation") = fields["speculation"];
    }
  });
  if (count == 1) return outputs[0];
  return py::cast(outputs);
}

// A window that was cut short would only come again.
void check_whole(const headrace::Event& finished) {
  const std::string reason = finished.finish_reason();
  if (reason == "deadline") throw headrace::Error(HEADRACE_DEADLINE_EXCEEDED, "a window took longer", "deadline_ms");
  if (reason == "cancelled") throw headrace::Error(HEADRACE_CANCELLED, "a window's request was cancelled", "");
}

// One temperature for all requests, or a list of those that a window is tried with.
using Temperatures = std::variant<float, std::vector<float>>;

std::vector<float> temperatures_of(const std::optional<Temperatures>& given, py::kwargs& arguments) {
  if (!given) return {};
  if (const float* one = std::get_if<float>(&*given)) {
    arguments["temperature"] = *one;
    return {};
  }
  if (!std::get<1>(*given).empty()) return std::get<1>(*given);
  throw headrace::Error(HEADRACE_INVALID_ARGUMENT, "is an empty list", "temperature");
}

bool prompts_all(const std::string& condition_type) {
  if (condition_type == "first-segment" || condition_type == "all-segments") return condition_type == "all-segments";
  throw headrace::Error(HEADRACE_INVALID_ARGUMENT, "is neither first-segment nor all-segments",
                        "prompt_condition_type");
}

py::object transcribe(PythonScheduler& self, const py::object& audio, const std::optional<std::string>& language,
                      const std::optional<std::string>& task, bool timestamps,
                      const std::optional<Temperatures>& temperature, std::optional<double> compression_ratio_threshold,
                      std::optional<double> logprob_threshold, std::optional<double> no_speech_threshold,
                      bool condition_on_prev_tokens, std::optional<std::vector<int32_t>> prompt_ids,
                      const std::string& prompt_condition_type, py::kwargs arguments) {
  headrace::Transcription::Params params;
  params.temperatures = temperatures_of(temperature, arguments);
  headrace::Request settings(self.model());
  set_parameters(settings, arguments);
  params.language = language.value_or("");
  params.task = task.value_or("");
  params.timestamps = timestamps;
  params.compression_ratio_threshold = compression_ratio_threshold;
  params.logprob_threshold = logprob_threshold;
  params.no_speech_threshold = no_speech_threshold;
  params.condition_on_prev_tokens = condition_on_prev_tokens;
  params.prompt_ids = std::move(prompt_ids).value_or(std::vector<int32_t>());
  params.prompt_in_all_windows = prompts_all(prompt_condition_type);
  params.settings = &settings;
  std::pair<Floats, uint32_t> sound;
  try {
    sound = audio_of(audio);
  } catch (const py::cast_error& error) {
    throw py::type_error(std::string("audio: ") + error.what());
  }
  const std::span<const float> samples(sound.first.data(), static_cast<size_t>(sound.first.size()));
  headrace::Transcription transcription = [&] {
    const py::gil_scoped_release release;  // it makes the whole spectrogram
    return headrace::Transcription(self.model(), samples.data(), samples.size(), sound.second, params);
  }();
  while (const std::optional<headrace::Request> request = transcription.next()) {
    run_to_end(self, self.submit(*request), [&](const headrace::Event& event) {
      transcription.take(event);
      if (event.type() == headrace::EventType::kFinished) check_whole(event);
    });
  }
  const py::module_ types = py::module_::import("headrace._generation");
  py::list segments;
  for (size_t i = 0; i < transcription.num_segments(); ++i) {
    headrace::SpeechSegment segment = transcription.segment(i);
    segments.append(types.attr("Segment")(segment.start, segment.end, segment.text, std::move(segment.tokens)));
  }
  return types.attr("Transcript")(transcription.language(), segments);
}

}  // namespace

void register_generation(py::module_& module) {
  py::class_<TextStream>(module, "TextStream", "Pieces of text as they become certain.")
      .def("__iter__", [](py::object self) { return self; })
      .def("__next__", &TextStream::next);

  py::class_<PythonScheduler, std::shared_ptr<PythonScheduler>>(
      module, "Scheduler",
      "Runs requests; usable from several threads, whose requests share steps.\n\n"
      "Prompts: str (plain text), list of int (tokens), list of dict (messages, through the chat template), Prompt, or "
      "None "
      "with session=. Parameters: temperature, top_k, top_p, min_p, typical_p, repetition_penalty, frequency_penalty, "
      "presence_penalty, n, seed, logprobs, prompt_logprobs, logit_bias, stop, stop_token_ids, min_tokens, max_tokens, "
      "ignore_eos, hidden_states (layers, numbered as in transformers: float32 arrays [layers, rows, hidden_size] come "
      "in "
      "order, without a copy), hidden_range ((begin, end): positions of the prompt, and of the output behind it), "
      "deadline_ms, priority, tenant, cache_salt, drafter, zero_retention, adapter, session, images (each uint8 "
      "[height, "
      "width, 3], "
      "or "
      "float32 pixel "
      "values: [channels, height, width], or (patches, (rows, columns)) where the model takes patches; the prompt has "
      "the image token for each), encoder_input (of models with an encoder in front of their decoder: str, list of "
      "int, or float32 features [num_mels, num_frames]), audio (float32 samples of 16000 a second, or (samples, "
      "rate)). Behind an encoder the prompt is the decoder's; None is its first token.")
      .def(py::init([](const headrace::Model& model, const std::optional<headrace::KVCache>& cache,
                       const py::kwargs& arguments) {
             return std::make_shared<PythonScheduler>(model, cache, options_from(arguments));
           }),
           py::arg("model"), py::arg("kv_cache") = py::none())
      .def("generate", &generate, py::arg("prompt"), "An Output, or a list of n Outputs.")
      .def(
          "stream",
          [](std::shared_ptr<PythonScheduler> self, const py::object& prompt, const py::kwargs& arguments) {
            const uint64_t id = self->submit(prompt, arguments);
            return std::make_unique<TextStream>(std::move(self), id);
          },
          py::arg("prompt"), "Iterate over the text as it comes.")
      .def(
          "transcribe", &transcribe, py::arg("audio"), py::arg("language") = py::none(), py::arg("task") = py::none(),
          py::arg("timestamps") = true, py::arg("temperature") = py::none(),
          py::arg("compression_ratio_threshold") = py::none(), py::arg("logprob_threshold") = py::none(),
          py::arg("no_speech_threshold") = py::none(), py::arg("condition_on_prev_tokens") = false,
          py::arg("prompt_ids") = py::none(), py::arg("prompt_condition_type") = "first-segment",
          "A Transcript of what is said in audio of any length: float32 samples of 16000 a second, or (samples, rate). "
          "language (\"en\"): found out where it is not given; task: \"transcribe\" or \"translate\"; without "
          "timestamps "
          "each window is a segment. temperature: one, or a list whose next one is tried where a window's text is "
          "rejected, by compression_ratio_threshold or logprob_threshold; beside that no_speech_threshold skips "
          "windows "
          "of silence. condition_on_prev_tokens: windows are told what was written before; prompt_ids: text before the "
          "first one, or with prompt_condition_type=\"all-segments\" before each. All are as in transformers, and none "
          "holds unless given. Other parameters are generate's; deadline_ms is each window's, and one that takes "
          "longer "
          "raises an Error.")
      .def("submit", py::overload_cast<const py::object&, const py::kwargs&>(&PythonScheduler::submit),
           py::arg("prompt"), "Queue a request; its id.")
      .def("cancel", &PythonScheduler::cancel, py::arg("request_id"))
      .def("step", &PythonScheduler::step, py::call_guard<py::gil_scoped_release>(),
           "One step; True while there is work.")
      .def(
          "next_event",
          [](PythonScheduler& self, uint64_t request_id) -> py::object {
            std::optional<headrace::Event> event;
            {
              py::gil_scoped_release release;  // another thread may be in a step
              event = self.poll(request_id);
            }
            if (!event) return py::none();
            if (event->type() == headrace::EventType::kFailed) throw event->error();
            py::dict fields = event_dict(*event);
            if (event->type() == headrace::EventType::kHidden) {
              const headrace_hidden_states rows = event->hidden_states();
              fields["layers"] = std::vector<int32_t>(rows.layers, rows.layers + rows.num_layers);
              fields["first_position"] = rows.first_position;
              fields["hidden_states"] = hidden_array(std::move(*event));
            }
            return fields;
          },
          py::arg("request_id"), "The request's next event as a dict, or None; a failed request raises.")
      .def(
          "set_tenant",
          [](PythonScheduler& self, const std::string& tenant, double weight, int64_t max_num_seqs, int64_t max_queue,
             double tokens_per_second) {
            headrace::TenantLimits limits;
            limits.weight = weight;
            limits.max_num_seqs = max_num_seqs;
            limits.max_queue = max_queue;
            limits.tokens_per_second = tokens_per_second;
            self.set_tenant(tenant, limits);
          },
          py::arg("tenant"), py::arg("weight") = 1.0, py::arg("max_num_seqs") = 0, py::arg("max_queue") = 0,
          py::arg("tokens_per_second") = 0.0, "A tenant's share and limits; 0 is no limit.")
      .def_property_readonly(
          "speculation", [](const PythonScheduler& self) { return from_json(self.scheduler().describe_speculation()); },
          "What became of guesses, of all requests.")
      .def_property_readonly("metrics", [](const PythonScheduler& self) { return metrics_dict(self.scheduler()); })
      .def_property_readonly("tenants",
                             [](const PythonScheduler& self) {
                               py::dict out;
                               for (const std::string& tenant : self.scheduler().tenants()) {
                                 out[py::str(tenant)] = tenant_dict(self.scheduler(), tenant);
                               }
                               return out;
                             })
      .def_property_readonly("stats", [](const PythonScheduler& self) {
        const headrace_scheduler_stats stats = self.stats();
        py::dict out;
        out["num_waiting"] = stats.num_waiting;
        out["num_running"] = stats.num_running;
        out["num_steps"] = stats.num_steps;
        out["prefill_tokens"] = stats.prefill_tokens;
        out["cached_tokens"] = stats.cached_tokens;
        out["decode_tokens"] = stats.decode_tokens;
        out["preemptions"] = stats.preemptions;
        out["finished_requests"] = stats.finished_requests;
        return out;
      });
}

}  // namespace headrace_python
