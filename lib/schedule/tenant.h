// On whose behalf requests run: what a tenant may take, what it has received, and what it is told of it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "base/status.h"
#include "schedule/metrics.h"

namespace headrace::schedule {

inline constexpr size_t kMaxTenantName = 256;  // bytes

struct TenantLimits {
  double weight = 1.0;             // share of the service among those that wait
  int64_t max_num_seqs = 0;        // sequences at once; 0: no limit
  int64_t max_queue = 0;           // requests that wait; 0: no limit
  double tokens_per_second = 0.0;  // of service, on average; 0: no limit
};

// kInvalidArgument with the name of what is wrong as place.
Status check_tenant_name(std::string_view name);
Status check_tenant(std::string_view name, const TenantLimits& limits);

struct Tenant {
  explicit Tenant(std::string tenant_name) : name(std::move(tenant_name)) {}

  const std::string name;

  // Of the stepping thread.
  TenantLimits limits;
  double virtual_service = 0.0;  // service by weight, lifted to that of the others when it comes back
  double allowance = 0.0;        // tokens it may still take now, where tokens_per_second limits them
  int64_t allowance_ns = 0;      // when that was so
  int64_t newly_scheduled = 0;   // requests scheduled, or ended, since this was last published
  bool changed = false;          // since then
  TenantMetrics metrics;         // but for submitted and refused requests

  // Guarded by the scheduler's mutex.
  TenantLimits wanted_limits;
  bool configured = false;    // by a call: not forgotten
  int64_t num_live = 0;       // requests without a terminal event
  int64_t num_queued = 0;     // of those, never scheduled as of the last step
  uint64_t last_request = 0;  // id
  uint64_t submitted = 0;     // requests
  uint64_t refused = 0;       // by the tenant's own limits
  TenantMetrics published;

  bool idle() const { return metrics.num_waiting + metrics.num_running == 0; }
};

}  // namespace headrace::schedule
