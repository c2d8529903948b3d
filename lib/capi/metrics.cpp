#include "engine/scheduler.h"

#include "capi/guard.h"
#include "capi/handles.h"
#include "schedule/latency_histogram.h"

using namespace headrace;
using namespace headrace::capi;
using schedule::LatencyHistogram;

namespace {

constexpr size_t kMetricsSize1 = offsetof(headrace_scheduler_metrics, prefix_waits) + sizeof(uint64_t);
constexpr size_t kLatencySize1 = offsetof(headrace_latency, buckets) + sizeof(uint64_t) * HEADRACE_LATENCY_BUCKETS;
constexpr size_t kTenantSize1 = offsetof(headrace_tenant_metrics, preemptions) + sizeof(uint64_t);
constexpr size_t kLimitsSize1 = offsetof(headrace_tenant_limits, tokens_per_second) + sizeof(double);
static_assert(HEADRACE_LATENCY_BUCKETS == LatencyHistogram::kNumBuckets);

Status write_latency(const LatencyHistogram& histogram, headrace_latency* latency) {
  headrace_latency values = {};
  values.count = histogram.count();
  values.sum_ns = histogram.sum_ns();
  values.p50_ns = histogram.quantile_ns(0.50);
  values.p95_ns = histogram.quantile_ns(0.95);
  values.p99_ns = histogram.quantile_ns(0.99);
  std::copy(histogram.buckets().begin(), histogram.buckets().end(), values.buckets);
  return write_struct("latency", values, latency, kLatencySize1);
}

Status unknown_kind(int32_t kind) { return invalid_argument("kind", "{} is no kind of latency kept here", kind); }

Result<engine::TenantReport> tenant_of(const headrace_scheduler* scheduler, const char* tenant, size_t tenant_size) {
  if (scheduler == nullptr) return null_argument("scheduler");
  HEADRACE_ASSIGN_OR_RETURN(const std::string_view name, text_argument("tenant", tenant, tenant_size));
  return scheduler->scheduler->tenant(std::string(name));
}

}  // namespace

extern "C" {

void headrace_tenant_limits_init(headrace_tenant_limits* limits) {
  if (limits == nullptr) return;
  *limits = headrace_tenant_limits{};
  limits->struct_size = sizeof *limits;
  limits->weight = 1.0;
}

headrace_status headrace_scheduler_set_tenant(headrace_scheduler* scheduler, const char* tenant, size_t tenant_size,
                                              const headrace_tenant_limits* limits, headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (scheduler == nullptr) return null_argument("scheduler");
    HEADRACE_ASSIGN_OR_RETURN(const std::string_view name, text_argument("tenant", tenant, tenant_size));
    HEADRACE_ASSIGN_OR_RETURN(const headrace_tenant_limits given, read_struct("limits", limits, kLimitsSize1));
    if (given.reserved != 0) return invalid_argument("limits.reserved", "must be 0");
    return scheduler->scheduler->set_tenant(
        std::string(name), {given.weight, given.max_num_seqs, given.max_queue, given.tokens_per_second});
  });
}

void headrace_scheduler_metrics_init(headrace_scheduler_metrics* metrics) { init_struct(metrics); }

headrace_status headrace_scheduler_get_metrics(const headrace_scheduler* scheduler, headrace_scheduler_metrics* metrics,
                                               headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (scheduler == nullptr) return null_argument("scheduler");
    const engine::SchedulerReport report = scheduler->scheduler->report();
    const schedule::SchedulerMetrics& now = report.metrics;
    headrace_scheduler_metrics values = {};
    values.num_tenants = static_cast<uint32_t>(report.num_tenants);
    values.num_waiting = now.num_waiting;
    values.num_running = now.num_running;
    values.kv_blocks = report.kv.num_blocks;
    values.kv_used_blocks = report.kv.num_blocks - report.kv.free_blocks;
    values.kv_cached_blocks = report.kv.cached_blocks;
    values.step_age_ns = report.step_age_ns;
    values.submitted_requests = now.submitted_requests;
    values.refused_requests = now.refused_requests;
    values.finished_requests = now.finished_requests;
    values.failed_requests = now.failed_requests;
    values.stop_samples = now.stop_samples;
    values.length_samples = now.length_samples;
    values.cancelled_samples = now.cancelled_samples;
    values.deadline_samples = now.deadline_samples;
    values.prompt_tokens = now.prompt_tokens;
    values.cached_tokens = now.cached_tokens;
    values.output_tokens = now.output_tokens;
    values.lookup_tokens = static_cast<uint64_t>(report.kv.lookup_tokens);
    values.hit_tokens = static_cast<uint64_t>(report.kv.hit_tokens);
    values.num_steps = now.num_steps;
    values.step_ns = now.step_ns;
    values.step_rows = now.step_rows;
    values.step_sequences = now.step_sequences;
    values.max_num_batched_tokens = report.max_num_batched_tokens;
    values.max_num_seqs = report.max_num_seqs;
    values.preemptions = now.preemptions;
    values.evictions = static_cast<uint64_t>(report.kv.evictions);
    values.prefix_waits = now.prefix_waits;
    values.num_loading = now.num_loading;
    values.disk_tokens = now.disk_tokens;
    const KvDiskStats& disk = report.kv.disk;
    values.disk_max_bytes = disk.max_bytes;
    values.disk_bytes = disk.bytes;
    values.disk_files = disk.files;
    values.disk_written_files = disk.written_files;
    values.disk_written_bytes = disk.written_bytes;
    values.disk_read_files = disk.read_files;
    values.disk_read_bytes = disk.read_bytes;
    values.disk_evicted_files = disk.evicted_files;
    values.disk_dropped_writes = disk.dropped_writes;
    values.disk_failed_writes = disk.failed_writes;
    values.disk_missing_files = disk.missing_files;
    values.disk_unreadable_files = disk.unreadable_files;
    values.disk_truncated_files = disk.truncated_files;
    values.disk_damaged_files = disk.damaged_files;
    values.disk_foreign_files = disk.foreign_files;
    values.forgone_loads = now.forgone_loads;
    const KvHostStats& host = report.kv.host;
    values.host_max_bytes = host.max_bytes;
    values.host_bytes = host.bytes;
    values.host_copies = host.copies;
    values.host_kept_copies = host.kept_copies;
    values.host_read_copies = host.read_copies;
    values.host_read_bytes = host.read_bytes;
    values.host_evicted_copies = host.evicted_copies;
    return write_struct("metrics", values, metrics, kMetricsSize1);
  });
}

void headrace_latency_init(headrace_latency* latency) { init_struct(latency); }

uint64_t headrace_latency_get_bound(uint32_t bucket) { return LatencyHistogram::bound_ns(bucket); }

headrace_status headrace_scheduler_get_latency(const headrace_scheduler* scheduler, int32_t kind,
                                               headrace_latency* latency, headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (scheduler == nullptr) return null_argument("scheduler");
    const schedule::SchedulerMetrics now = scheduler->scheduler->report().metrics;
    switch (kind) {
      case HEADRACE_LATENCY_QUEUE: return write_latency(now.queue, latency);
      case HEADRACE_LATENCY_FIRST_TOKEN: return write_latency(now.first_token, latency);
      case HEADRACE_LATENCY_INTER_TOKEN: return write_latency(now.inter_token, latency);
      case HEADRACE_LATENCY_STEP: return write_latency(now.step, latency);
      default: return unknown_kind(kind);
    }
  });
}

headrace_status headrace_scheduler_get_tenants(const headrace_scheduler* scheduler, char* buffer, size_t capacity,
                                               size_t* needed, headrace_error** error) {
  return guarded(error, [&]() -> Status {
    if (scheduler == nullptr) return null_argument("scheduler");
    std::string names;
    for (const std::string& name : scheduler->scheduler->tenants()) names.append(name).push_back('\0');
    return copy_text(names, buffer, capacity, needed);
  });
}

void headrace_tenant_metrics_init(headrace_tenant_metrics* metrics) { init_struct(metrics); }

headrace_status headrace_scheduler_get_tenant_metrics(const headrace_scheduler* scheduler, const char* tenant,
                                                      size_t tenant_size, headrace_tenant_metrics* metrics,
                                                      headrace_error** error) {
  return guarded(error, [&]() -> Status {
    HEADRACE_ASSIGN_OR_RETURN(const engine::TenantReport report, tenant_of(scheduler, tenant, tenant_size));
    headrace_tenant_metrics values = {};
    values.weight = report.limits.weight;
    values.service = report.metrics.service;
    values.num_waiting = report.metrics.num_waiting;
    values.num_running = report.metrics.num_running;
    values.submitted_requests = report.metrics.submitted_requests;
    values.refused_requests = report.metrics.refused_requests;
    values.finished_requests = report.metrics.finished_requests;
    values.prompt_tokens = report.metrics.prompt_tokens;
    values.cached_tokens = report.metrics.cached_tokens;
    values.output_tokens = report.metrics.output_tokens;
    values.preemptions = report.metrics.preemptions;
    return write_struct("metrics", values, metrics, kTenantSize1);
  });
}

headrace_status headrace_scheduler_get_tenant_latency(const headrace_scheduler* scheduler, const char* tenant,
                                                      size_t tenant_size, int32_t kind, headrace_latency* latency,
                                                      headrace_error** error) {
  return guarded(error, [&]() -> Status {
    HEADRACE_ASSIGN_OR_RETURN(const engine::TenantReport report, tenant_of(scheduler, tenant, tenant_size));
    switch (kind) {
      case HEADRACE_LATENCY_QUEUE: return write_latency(report.metrics.queue, latency);
      case HEADRACE_LATENCY_FIRST_TOKEN: return write_latency(report.metrics.first_token, latency);
      case HEADRACE_LATENCY_INTER_TOKEN: return write_latency(report.metrics.inter_token, latency);
      default: return unknown_kind(kind);
    }
  });
}

}  // extern "C"
