#include "schedule/tenant.h"

namespace headrace::schedule {

Status check_tenant_name(std::string_view name) {
  if (name.size() > kMaxTenantName) {
    return invalid_argument("tenant", "a name of {} bytes is longer than {}", name.size(), kMaxTenantName);
  }
  if (name.find('\0') != std::string_view::npos) return invalid_argument("tenant", "holds a zero byte");
  return Status();
}

Status check_tenant(std::string_view name, const TenantLimits& limits) {
  HEADRACE_RETURN_IF_ERROR(check_tenant_name(name));
  // Written so that no number is refused too.
  if (!(limits.weight >= 0.001 && limits.weight <= 1000.0)) {
    return invalid_argument("weight", "{} is not in [0.001, 1000]", limits.weight);
  }
  if (limits.max_num_seqs < 0) return invalid_argument("max_num_seqs", "{} is negative", limits.max_num_seqs);
  if (limits.max_queue < 0) return invalid_argument("max_queue", "{} is negative", limits.max_queue);
  if (!(limits.tokens_per_second >= 0.0 && limits.tokens_per_second <= 1e12)) {
    return invalid_argument("tokens_per_second", "{} is not in [0, 10^12]", limits.tokens_per_second);
  }
  return Status();
}

}  // namespace headrace::schedule
