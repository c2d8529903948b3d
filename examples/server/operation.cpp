// What an operator asks: /health, /metrics and /v1/cache; and the page and the description of the API.
#include "context.h"
#include "metrics_text.h"
#include "pages.h"
#include "sessions.h"

namespace server {
namespace {

// Healthy is an engine that is idle, or whose step is no older than the limit.
void health(const Context& context, const Router& router, const Call& call) {
  OrderedJson body = {{"status", "ok"}, {"model", context.served.name()}};
  int status = 200;
  if (context.engine != nullptr) {
    const EngineThread::Health health = context.engine->health();
    const double limit = std::chrono::duration<double>(context.settings.limits.stall_timeout).count();
    if (health.num_requests > 0 && health.last_step_age_s > limit) body["status"] = "stalled";
    if (!health.failure.empty()) body["status"] = "failing";
    if (router.is_draining()) body["status"] = "draining";
    status = body["status"] == "ok" ? 200 : 503;
    body["requests"] = health.num_requests;
    body["last_step_age_s"] = health.last_step_age_s < 0 ? OrderedJson() : OrderedJson(health.last_step_age_s);
  }
  call.exchange->reply({status, dump(body), "application/json", {}});
}

void add_engine_metrics(MetricsText& text, Context& context) {
  headrace::Scheduler& scheduler = context.served.scheduler();
  const headrace_scheduler_metrics now = scheduler.metrics();
  const headrace_scheduler_stats stats = scheduler.stats();
  const headrace_kv_cache_stats kv = context.served.kv_cache().stats();
  const EngineThread::Health health = context.engine->health();
  const auto counter = [&text](const char* name, const char* help, uint64_t value) {
    text.counter(std::string("headrace_") + name + "_total", help, static_cast<double>(value));
  };
  const auto gauge = [&text](const char* name, const char* help, int64_t value) {
    text.gauge(std::string("headrace_") + name, help, static_cast<double>(value));
  };
  gauge("requests_in_engine", "Requests that are queued or run.", static_cast<int64_t>(health.num_requests));
  gauge("sequences_waiting", "Sequences queued or preempted.", stats.num_waiting);
  gauge("sequences_running", "Sequences of the current step.", stats.num_running);
  gauge("max_sequences", "Sequences that may run at once.", now.max_num_seqs);
  gauge("max_batched_tokens", "Rows that a step may have.", now.max_num_batched_tokens);
  text.gauge("headrace_last_step_age_seconds", "Time since the last step of the engine; -1 before the first.",
             health.last_step_age_s);
  counter("requests_submitted", "Requests taken into the queue.", now.submitted_requests);
  counter("requests_refused", "Requests that the engine did not take.", now.refused_requests);
  counter("requests_finished", "Requests that ended.", now.finished_requests);
  counter("requests_failed", "Of those, the ones that failed.", now.failed_requests);
  text.family("headrace_samples_finished_total", "counter", "Samples of requests by how they ended.");
  text.value(static_cast<double>(now.stop_samples), {{"reason", "stop"}});
  text.value(static_cast<double>(now.length_samples), {{"reason", "length"}});
  text.value(static_cast<double>(now.cancelled_samples), {{"reason", "cancelled"}});
  text.value(static_cast<double>(now.deadline_samples), {{"reason", "deadline"}});
  counter("steps", "Forward passes.", now.num_steps);
  text.counter("headrace_step_seconds_total", "Time in forward passes.", static_cast<double>(now.step_ns) / 1e9);
  counter("step_rows", "Rows of the forward passes.", now.step_rows);
  counter("step_sequences", "Sequences of the forward passes.", now.step_sequences);
  counter("prefill_tokens", "Prompt tokens computed.", stats.prefill_tokens);
  counter("decode_tokens", "Rows of sequences that decode.", stats.decode_tokens);
  counter("prompt_tokens", "Prompt tokens of scheduled requests, cached ones included.", now.prompt_tokens);
  counter("cached_tokens", "Of those, found in the cache.", now.cached_tokens);
  counter("output_tokens", "Tokens drawn.", now.output_tokens);
  counter("preemptions", "Sequences that gave their cache up to others.", now.preemptions);
  counter("prefix_waits", "Requests that waited for a prefix another one was computing.", now.prefix_waits);
  counter("prefix_lookup_tokens", "Tokens asked of the prefix index.", static_cast<uint64_t>(kv.lookup_tokens));
  counter("prefix_hit_tokens", "Tokens found there.", static_cast<uint64_t>(kv.hit_tokens));
  counter("kv_evictions", "Cached blocks that gave way to others.", now.evictions);
  gauge("kv_blocks", "Blocks of the KV cache.", kv.num_blocks);
  gauge("kv_free_blocks", "Blocks held by no session or request.", kv.free_blocks);
  gauge("kv_cached_blocks", "Blocks found by their prefix.", kv.cached_blocks);
  counter("disk_tokens", "Tokens read from disk in place of being computed.", now.disk_tokens);
  gauge("sequences_loading", "Sequences whose values are on their way from disk.", now.num_loading);
  gauge("kv_disk_bytes", "Bytes of the files in the folder of kv.disk_path.", static_cast<int64_t>(now.disk_bytes));
  gauge("kv_disk_max_bytes", "Bytes that they may have.", static_cast<int64_t>(now.disk_max_bytes));
  gauge("kv_disk_files", "Files there.", now.disk_files);
  counter("kv_disk_written_files", "Files written there.", now.disk_written_files);
  counter("kv_disk_written_bytes", "Bytes written there.", now.disk_written_bytes);
  counter("kv_disk_read_files", "Files read there.", now.disk_read_files);
  counter("kv_disk_read_bytes", "Bytes read there, before compression.", now.disk_read_bytes);
  counter("kv_disk_evicted_files", "Files that gave way to others.", now.disk_evicted_files);
  counter("kv_disk_dropped_writes", "Blocks lost because too many waited to be written.", now.disk_dropped_writes);
  counter("kv_disk_failed_writes", "Files that could not be written.", now.disk_failed_writes);
  text.family("headrace_kv_disk_refused_files_total", "counter", "Files that gave nothing, by what they were.");
  text.value(static_cast<double>(now.disk_missing_files), {{"reason", "missing"}});
  text.value(static_cast<double>(now.disk_unreadable_files), {{"reason", "unreadable"}});
  text.value(static_cast<double>(now.disk_truncated_files), {{"reason", "truncated"}});
  text.value(static_cast<double>(now.disk_damaged_files), {{"reason", "damaged"}});
  text.value(static_cast<double>(now.disk_foreign_files), {{"reason", "foreign"}});
  const auto latency = [&](const char* name, const char* help, int32_t kind) {
    text.family(name, "histogram", help);
    text.latency(scheduler.latency(kind));
  };
  latency("headrace_queue_time_seconds", "From submit to the first step.", HEADRACE_LATENCY_QUEUE);
  latency("headrace_time_to_first_token_seconds", "From submit to the first token.", HEADRACE_LATENCY_FIRST_TOKEN);
  latency("headrace_inter_token_latency_seconds", "From one token of a sample to the next.",
          HEADRACE_LATENCY_INTER_TOKEN);
  latency("headrace_step_duration_seconds", "Of a forward pass.", HEADRACE_LATENCY_STEP);
}

void add_speculation_metrics(MetricsText& text, const headrace::Scheduler& scheduler) {
  const Json told = Json::parse(scheduler.describe_speculation());
  const auto family = [&](const std::string& name, const std::string& help, const char* key, double unit) {
    text.family("headrace_" + name + "_total", "counter", help);
    for (const Json& drafter : told.at("drafters")) {
      text.value(drafter.at(key).get<double>() * unit, {{"drafter", drafter.at("name").get<std::string>()}});
    }
  };
  family("draft_tokens", "Guesses that were verified.", "drafted", 1);
  family("accepted_draft_tokens", "Of those, the ones that stood.", "accepted", 1);
  family("draft_seconds", "Time spent on guessing.", "draft_ns", 1e-9);
  text.gauge("headrace_speculation_saved_seconds", "Time won against plain decoding, by the scheduler's estimate.",
             told.at("saved_ns").get<double>() / 1e9);
}

// The same of each tenant, in families of their own.
void add_tenant_metrics(MetricsText& text, const headrace::Scheduler& scheduler) {
  struct Tenant {
    std::string name;
    headrace_tenant_metrics metrics;
  };
  std::vector<Tenant> tenants;
  for (const std::string& name : scheduler.tenants()) {
    try {
      tenants.push_back({name, scheduler.tenant_metrics(name)});
    } catch (const headrace::Error&) {
      continue;  // forgotten in between
    }
  }
  const auto family = [&](const std::string& name, const char* type, const char* help, auto value) {
    text.family("headrace_tenant_" + name, type, help);
    for (const Tenant& tenant : tenants) {
      text.value(static_cast<double>(value(tenant.metrics)), {{"tenant", tenant.name}});
    }
  };
  using Metrics = const headrace_tenant_metrics&;
  family("weight", "gauge", "Share of the service among tenants that wait.", [](Metrics m) { return m.weight; });
  family("sequences_waiting", "gauge", "Sequences queued or preempted.", [](Metrics m) { return m.num_waiting; });
  family("sequences_running", "gauge", "Sequences that run.", [](Metrics m) { return m.num_running; });
  family("service_total", "counter", "Computed prompt tokens and weighted output tokens.",
         [](Metrics m) { return m.service; });
  family("requests_submitted_total", "counter", "Requests taken into the queue.",
         [](Metrics m) { return m.submitted_requests; });
  family("requests_refused_total", "counter", "Requests beyond the tenant's limits.",
         [](Metrics m) { return m.refused_requests; });
  family("requests_finished_total", "counter", "Requests that ended.", [](Metrics m) { return m.finished_requests; });
  family("prompt_tokens_total", "counter", "Prompt tokens, cached ones included.",
         [](Metrics m) { return m.prompt_tokens; });
  family("cached_tokens_total", "counter", "Of those, found in the cache.", [](Metrics m) { return m.cached_tokens; });
  family("output_tokens_total", "counter", "Tokens drawn.", [](Metrics m) { return m.output_tokens; });
  family("preemptions_total", "counter", "Sequences that gave their cache up.",
         [](Metrics m) { return m.preemptions; });
}

void metrics(Context& context, const Router& router, const Call& call) {
  MetricsText text;
  if (context.engine != nullptr) {
    add_engine_metrics(text, context);
    add_speculation_metrics(text, context.served.scheduler());
    add_tenant_metrics(text, context.served.scheduler());
  }
  text.counter("headrace_clients_vanished_total", "Requests whose client went before the answer was complete.",
               static_cast<double>(context.num_vanished));
  text.counter("headrace_http_requests_total", "Requests whose headers were read.",
               static_cast<double>(router.num_requests()));
  text.counter("headrace_http_refused_total", "Of them, and of what could not be read, those refused.",
               static_cast<double>(router.num_refused()));
  text.gauge("headrace_http_pending_requests",
             "Requests read or being read, and not answered nor queued in the engine.",
             static_cast<double>(router.num_pending()));
  text.gauge("headrace_sessions", "Sessions kept.", static_cast<double>(context.sessions.size()));
  call.exchange->reply({200, text.text(), "text/plain; version=0.0.4; charset=utf-8", {}});
}

OrderedJson cache_json(Context& context) {
  const headrace_kv_cache_stats kv = context.served.kv_cache().stats();
  return {{"object", "cache"},
          {"block_size", kv.block_size},
          {"num_blocks", kv.num_blocks},
          {"free_blocks", kv.free_blocks},
          {"cached_blocks", kv.cached_blocks},
          {"lookup_tokens", kv.lookup_tokens},
          {"hit_tokens", kv.hit_tokens},
          {"pool_bytes", kv.pool_bytes}};
}

void clear_cache(Context& context, const Call& call) {
  context.served.kv_cache().clear();
  call.reply(cache_json(context));
}

// A page may load nothing from elsewhere, nor be shown inside another.
Reply page() {
  return {200,
          std::string(kPageHtml),
          "text/html; charset=utf-8",
          {{"Content-Security-Policy",
            "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; "
            "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"}}};
}

}  // namespace

void add_operation(Router& router, Context& context) {
  const auto add = [&](const char* method, const char* path, Access access, std::function<void(Call)> handler) {
    router.add({method, path, access, Place::kIo, "", std::move(handler)});
  };
  add("GET", "/health", Access::kOpen, [&](Call call) { health(context, router, call); });
  add("GET", "/metrics", Access::kAdmin, [&](Call call) { metrics(context, router, call); });
  add("GET", "/v1/cache", Access::kAdmin, [&](Call call) { call.reply(cache_json(context)); });
  add("DELETE", "/v1/cache", Access::kAdmin, [&](Call call) { clear_cache(context, call); });
  add("GET", "/", Access::kOpen, [](Call call) { call.exchange->reply(page()); });
  add("GET", "/openapi.json", Access::kOpen, [](Call call) {
    call.exchange->reply({200, std::string(kOpenApiJson), "application/json", {}});
  });
}

}  // namespace server
