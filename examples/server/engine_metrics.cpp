#include "engine_metrics.h"

#include <string>
#include <utility>
#include <vector>

#include "json.h"

namespace server {
namespace {

// One reading of a model's engine.
struct Reading {
  MetricsText::Labels labels;
  const headrace::Scheduler* scheduler;
  headrace_scheduler_metrics now;
  headrace_scheduler_stats stats;
  headrace_kv_cache_stats kv;
  EngineThread::Health health;
};

struct TenantReading {
  MetricsText::Labels labels;
  headrace_tenant_metrics metrics;
  headrace_latency queue, first_token, inter_token;
};

// A family of values that the readings give.
template <class Readings, class Value>
void add_family(MetricsText& text, const Readings& readings, const std::string& name, const char* type,
                const char* help, const Value& value) {
  text.family("headrace_" + name, type, help);
  for (const auto& reading : readings) text.value(static_cast<double>(value(reading)), reading.labels);
}

// Values of a family that stand apart by their reason, of each reading.
template <class Values>
void add_reasons(MetricsText& text, const std::vector<Reading>& readings, const Values& values_of) {
  for (const Reading& reading : readings) {
    for (const auto& [reason, count] : values_of(reading)) {
      MetricsText::Labels labels = reading.labels;
      labels.emplace_back("reason", reason);
      text.value(static_cast<double>(count), labels);
    }
  }
}

using Reasons = std::vector<std::pair<const char*, uint64_t>>;

// Of the cache's tiers beyond its pool: in memory, and on disk.
void add_tiers(MetricsText& text, const std::vector<Reading>& readings) {
  using R = const Reading&;
  const auto counter = [&](const std::string& name, const char* help, auto value) {
    add_family(text, readings, name + "_total", "counter", help, value);
  };
  const auto gauge = [&](const std::string& name, const char* help, auto value) {
    add_family(text, readings, name, "gauge", help, value);
  };
  counter("disk_tokens", "Tokens read from memory beyond the pool or from disk in place of being computed.",
          [](R r) { return r.now.disk_tokens; });
  gauge("sequences_loading", "Sequences whose values are on their way from there.",
        [](R r) { return r.now.num_loading; });
  counter("forgone_loads", "Times that computing was predicted to be sooner than reading.",
          [](R r) { return r.now.forgone_loads; });
  gauge("kv_host_bytes", "Bytes of copies of blocks that left the pool.", [](R r) { return r.now.host_bytes; });
  gauge("kv_host_max_bytes", "Bytes that they may have.", [](R r) { return r.now.host_max_bytes; });
  gauge("kv_host_copies", "Copies there.", [](R r) { return r.now.host_copies; });
  counter("kv_host_kept_copies", "Copies made.", [](R r) { return r.now.host_kept_copies; });
  counter("kv_host_read_copies", "Copies read back.", [](R r) { return r.now.host_read_copies; });
  counter("kv_host_read_bytes", "Bytes read back of them.", [](R r) { return r.now.host_read_bytes; });
  counter("kv_host_evicted_copies", "Copies that gave way to others.", [](R r) { return r.now.host_evicted_copies; });
  gauge("kv_disk_bytes", "Bytes of the files in the folder of kv.disk_path.", [](R r) { return r.now.disk_bytes; });
  gauge("kv_disk_max_bytes", "Bytes that they may have.", [](R r) { return r.now.disk_max_bytes; });
  gauge("kv_disk_files", "Files there.", [](R r) { return r.now.disk_files; });
  counter("kv_disk_written_files", "Files written there.", [](R r) { return r.now.disk_written_files; });
  counter("kv_disk_written_bytes", "Bytes written there.", [](R r) { return r.now.disk_written_bytes; });
  counter("kv_disk_read_files", "Files read there.", [](R r) { return r.now.disk_read_files; });
  counter("kv_disk_read_bytes", "Bytes read there, before compression.", [](R r) { return r.now.disk_read_bytes; });
  counter("kv_disk_evicted_files", "Files that gave way to others.", [](R r) { return r.now.disk_evicted_files; });
  counter("kv_disk_dropped_writes", "Blocks lost because too many waited to be written.",
          [](R r) { return r.now.disk_dropped_writes; });
  counter("kv_disk_failed_writes", "Files that could not be written.", [](R r) { return r.now.disk_failed_writes; });
  text.family("headrace_kv_disk_refused_files_total", "counter", "Files that gave nothing, by what they were.");
  add_reasons(text, readings, [](R r) {
    return Reasons{{"missing", r.now.disk_missing_files},
                   {"unreadable", r.now.disk_unreadable_files},
                   {"truncated", r.now.disk_truncated_files},
                   {"damaged", r.now.disk_damaged_files},
                   {"foreign", r.now.disk_foreign_files}};
  });
}

void add_speculation(MetricsText& text, const std::vector<Reading>& readings) {
  std::vector<Json> told;  // of each reading
  for (const Reading& reading : readings) told.push_back(Json::parse(reading.scheduler->describe_speculation()));
  const auto family = [&](const std::string& name, const char* help, const auto& write) {
    text.family("headrace_" + name + "_total", "counter", help);
    for (size_t i = 0; i < readings.size(); ++i) {
      for (const Json& drafter : told[i].at("drafters")) {
        MetricsText::Labels labels = readings[i].labels;
        labels.emplace_back("drafter", drafter.at("name").get<std::string>());
        write(drafter, labels);
      }
    }
  };
  const auto total = [&](const std::string& name, const char* help, const char* key, double unit) {
    family(name, help, [&](const Json& drafter, const MetricsText::Labels& labels) {
      text.value(drafter.at(key).get<double>() * unit, labels);
    });
  };
  total("draft_tokens", "Guesses that were verified.", "drafted", 1);
  total("accepted_draft_tokens", "Of those, the ones that stood.", "accepted", 1);
  total("draft_seconds", "Time spent on guessing.", "draft_ns", 1e-9);
  // By how far ahead the guess stood, from 1; those beyond the last position are counted with it.
  const auto by_position = [&](const std::string& name, const char* help, const char* key) {
    family(name + "_by_position", help, [&](const Json& drafter, MetricsText::Labels& labels) {
      labels.emplace_back("position", "1");
      const Json& counts = drafter.at(key);
      if (counts.empty()) text.value(0, labels);  // none yet
      for (size_t position = 0; position < counts.size(); ++position) {
        labels.back().second = std::to_string(position + 1);
        text.value(counts[position].get<double>(), labels);
      }
    });
  };
  by_position("draft_tokens", "Guesses that were verified, by how far ahead they stood.", "drafted_at");
  by_position("accepted_draft_tokens", "Of those, the ones that stood.", "accepted_at");
  text.family("headrace_speculation_saved_seconds", "gauge",
              "Time won against plain decoding, by the scheduler's estimate.");
  for (size_t i = 0; i < readings.size(); ++i) {
    text.value(told[i].at("saved_ns").get<double>() / 1e9, readings[i].labels);
  }
}

void add_schedulers(MetricsText& text, const std::vector<Reading>& readings) {
  using R = const Reading&;
  const auto counter = [&](const std::string& name, const char* help, auto value) {
    add_family(text, readings, name + "_total", "counter", help, value);
  };
  const auto gauge = [&](const std::string& name, const char* help, auto value) {
    add_family(text, readings, name, "gauge", help, value);
  };
  gauge("requests_in_engine", "Requests that are queued or run.", [](R r) { return r.health.num_requests; });
  gauge("sequences_waiting", "Sequences queued or preempted.", [](R r) { return r.stats.num_waiting; });
  gauge("sequences_running", "Sequences of the current step.", [](R r) { return r.stats.num_running; });
  gauge("max_sequences", "Sequences that may run at once.", [](R r) { return r.now.max_num_seqs; });
  gauge("max_batched_tokens", "Rows that a step may have.", [](R r) { return r.now.max_num_batched_tokens; });
  gauge("last_step_age_seconds", "Time since the last step of the engine; -1 before the first.",
        [](R r) { return r.health.last_step_age_s; });
  counter("requests_submitted", "Requests taken into the queue.", [](R r) { return r.now.submitted_requests; });
  counter("requests_refused", "Requests that the engine did not take.", [](R r) { return r.now.refused_requests; });
  counter("requests_finished", "Requests that ended.", [](R r) { return r.now.finished_requests; });
  counter("requests_failed", "Of those, the ones that failed.", [](R r) { return r.now.failed_requests; });
  text.family("headrace_samples_finished_total", "counter", "Samples of requests by how they ended.");
  add_reasons(text, readings, [](R r) {
    return Reasons{{"stop", r.now.stop_samples},
                   {"length", r.now.length_samples},
                   {"cancelled", r.now.cancelled_samples},
                   {"deadline", r.now.deadline_samples}};
  });
  counter("steps", "Forward passes.", [](R r) { return r.now.num_steps; });
  counter("step_seconds", "Time in forward passes.", [](R r) { return static_cast<double>(r.now.step_ns) / 1e9; });
  counter("step_rows", "Rows of the forward passes.", [](R r) { return r.now.step_rows; });
  counter("step_sequences", "Sequences of the forward passes.", [](R r) { return r.now.step_sequences; });
  counter("prefill_tokens", "Prompt tokens computed.", [](R r) { return r.stats.prefill_tokens; });
  counter("decode_tokens", "Rows of sequences that decode.", [](R r) { return r.stats.decode_tokens; });
  counter("prompt_tokens", "Prompt tokens of scheduled requests, cached ones included.",
          [](R r) { return r.now.prompt_tokens; });
  counter("cached_tokens", "Of those, found in the cache.", [](R r) { return r.now.cached_tokens; });
  counter("output_tokens", "Tokens drawn.", [](R r) { return r.now.output_tokens; });
  counter("preemptions", "Sequences that gave their cache up to others.", [](R r) { return r.now.preemptions; });
  counter("prefix_waits", "Requests that waited for a prefix another one was computing.",
          [](R r) { return r.now.prefix_waits; });
  counter("prefix_lookup_tokens", "Tokens asked of the prefix index.", [](R r) { return r.kv.lookup_tokens; });
  counter("prefix_hit_tokens", "Tokens found there.", [](R r) { return r.kv.hit_tokens; });
  counter("kv_evictions", "Cached blocks that gave way to others.", [](R r) { return r.now.evictions; });
  gauge("kv_blocks", "Blocks of the KV cache.", [](R r) { return r.kv.num_blocks; });
  gauge("kv_free_blocks", "Blocks held by no session or request.", [](R r) { return r.kv.free_blocks; });
  gauge("kv_cached_blocks", "Blocks found by their prefix.", [](R r) { return r.kv.cached_blocks; });
  add_tiers(text, readings);
  const auto latency = [&](const char* name, const char* help, int32_t kind) {
    text.family(name, "histogram", help);
    for (R r : readings) text.latency(r.scheduler->latency(kind), r.labels);
  };
  latency("headrace_queue_time_seconds", "From submit to the first step.", HEADRACE_LATENCY_QUEUE);
  latency("headrace_time_to_first_token_seconds", "From submit to the first token.", HEADRACE_LATENCY_FIRST_TOKEN);
  latency("headrace_inter_token_latency_seconds", "From one token of a sample to the next.",
          HEADRACE_LATENCY_INTER_TOKEN);
  latency("headrace_step_duration_seconds", "Of a forward pass.", HEADRACE_LATENCY_STEP);
}

void add_tenants(MetricsText& text, const std::vector<TenantReading>& readings) {
  using R = const TenantReading&;
  const auto family = [&](const std::string& name, const char* type, const char* help, auto value) {
    add_family(text, readings, "tenant_" + name, type, help, value);
  };
  family("weight", "gauge", "Share of the service among tenants that wait.", [](R r) { return r.metrics.weight; });
  family("sequences_waiting", "gauge", "Sequences queued or preempted.", [](R r) { return r.metrics.num_waiting; });
  family("sequences_running", "gauge", "Sequences that run.", [](R r) { return r.metrics.num_running; });
  family("service_total", "counter", "Computed prompt tokens and weighted output tokens.",
         [](R r) { return r.metrics.service; });
  family("requests_submitted_total", "counter", "Requests taken into the queue.",
         [](R r) { return r.metrics.submitted_requests; });
  family("requests_refused_total", "counter", "Requests beyond the tenant's limits.",
         [](R r) { return r.metrics.refused_requests; });
  family("requests_finished_total", "counter", "Requests that ended.", [](R r) { return r.metrics.finished_requests; });
  family("prompt_tokens_total", "counter", "Prompt tokens, cached ones included.",
         [](R r) { return r.metrics.prompt_tokens; });
  family("cached_tokens_total", "counter", "Of those, found in the cache.",
         [](R r) { return r.metrics.cached_tokens; });
  family("output_tokens_total", "counter", "Tokens drawn.", [](R r) { return r.metrics.output_tokens; });
  family("preemptions_total", "counter", "Sequences that gave their cache up.",
         [](R r) { return r.metrics.preemptions; });
  const auto latency = [&](const std::string& name, const char* help, headrace_latency TenantReading::*member) {
    text.family("headrace_tenant_" + name + "_seconds", "histogram", help);
    for (R r : readings) text.latency(r.*member, r.labels);
  };
  latency("queue_time", "From submit to the first step.", &TenantReading::queue);
  latency("time_to_first_token", "From submit to the first token.", &TenantReading::first_token);
  latency("inter_token_latency", "From one token of a sample to the next.", &TenantReading::inter_token);
}

}  // namespace

void add_engine_metrics(MetricsText& text, const ServedModels& models) {
  std::vector<Reading> readings;
  std::vector<TenantReading> tenants;
  for (const auto& served : models.all()) {
    if (served->engine() == nullptr) continue;
    const headrace::Scheduler& scheduler = served->scheduler();
    const MetricsText::Labels labels = {{"model", served->name()}};
    readings.push_back({labels, &scheduler, scheduler.metrics(), scheduler.stats(), served->kv_cache().stats(),
                        served->engine()->health()});
    for (const std::string& name : scheduler.tenants()) {
      try {
        tenants.push_back({{labels.front(), {"tenant", name}},
                           scheduler.tenant_metrics(name),
                           scheduler.tenant_latency(name, HEADRACE_LATENCY_QUEUE),
                           scheduler.tenant_latency(name, HEADRACE_LATENCY_FIRST_TOKEN),
                           scheduler.tenant_latency(name, HEADRACE_LATENCY_INTER_TOKEN)});
      } catch (const headrace::Error&) {
        continue;  // forgotten in between
      }
    }
  }
  if (readings.empty()) return;
  add_schedulers(text, readings);
  add_speculation(text, readings);
  add_tenants(text, tenants);
}

}  // namespace server
