// What an operator asks: /health, /metrics and /v1/cache; and the page and the description of the API.
#include <algorithm>
#include <string>

#include "context.h"
#include "engine_metrics.h"
#include "pages.h"
#include "sessions.h"

namespace server {
namespace {

// Healthy is a server whose engines are idle, or whose steps are no older than the limit.
void health(const Context& context, const Router& router, const Call& call) {
  OrderedJson body = {{"status", "ok"}, {"models", OrderedJson::array()}};
  if (router.phase() == Router::Phase::kLoading) {
    body["status"] = "loading";
  } else {
    const double limit_s = std::chrono::duration<double>(context.settings.limits.stall_timeout).count();
    body["engines"] = OrderedJson::array();
    for (const auto& served : context.models.all()) {
      body["models"].push_back(served->name());
      if (served->engine() == nullptr) continue;
      const EngineThread::Health health = served->engine()->health();
      const char* status = health.status(limit_s);
      if (body["status"] == "ok") body["status"] = status;
      body["engines"].push_back(
          {{"model", served->name()},
           {"status", status},
           {"requests", health.num_requests},
           {"last_step_age_s", health.last_step_age_s < 0 ? OrderedJson() : OrderedJson(health.last_step_age_s)}});
    }
    if (router.phase() == Router::Phase::kDraining) body["status"] = "draining";
  }
  Reply reply{body["status"] == "ok" ? 200 : 503, dump(body), "application/json", {}};
  if (reply.status == 503) reply.headers.emplace_back("Retry-After", "1");
  call.exchange->reply(std::move(reply));
}

void metrics(const Context& context, const Router& router, const Call& call) {
  MetricsText text;
  add_engine_metrics(text, context.models);
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

OrderedJson cache_json(ServedModel& served) {
  const headrace_kv_cache_stats kv = served.kv_cache().stats();
  return {{"object", "cache"},
          {"model", served.name()},
          {"block_size", kv.block_size},
          {"num_blocks", kv.num_blocks},
          {"free_blocks", kv.free_blocks},
          {"cached_blocks", kv.cached_blocks},
          {"lookup_tokens", kv.lookup_tokens},
          {"hit_tokens", kv.hit_tokens},
          {"pool_bytes", kv.pool_bytes}};
}

// Of one model itself; of several a list.
void caches(const Context& context, const Call& call, bool clears) {
  OrderedJson data = OrderedJson::array();
  for (const auto& served : context.models.all()) {
    if (!served->generates() && context.models.generate()) continue;
    if (clears) served->kv_cache().clear();
    data.push_back(cache_json(*served));
  }
  call.reply(data.size() == 1 ? data.front() : OrderedJson({{"object", "list"}, {"data", std::move(data)}}));
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
  add("GET", "/v1/cache", Access::kAdmin, [&](Call call) { caches(context, call, false); });
  add("DELETE", "/v1/cache", Access::kAdmin, [&](Call call) { caches(context, call, true); });
  add("GET", "/", Access::kOpen, [](Call call) { call.exchange->reply(page()); });
  add("GET", "/openapi.json", Access::kOpen, [](Call call) {
    call.exchange->reply({200, std::string(kOpenApiJson), "application/json", {}});
  });
}

}  // namespace server
