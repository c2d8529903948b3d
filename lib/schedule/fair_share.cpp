#include "schedule/fair_share.h"

#include <algorithm>
#include <cmath>

namespace headrace::schedule {

void FairShare::activate(const std::shared_ptr<Tenant>& tenant) {
  if (std::find(active_.begin(), active_.end(), tenant) == active_.end()) active_.push_back(tenant);
  if (!tenant->idle()) return;
  double least = tenant->virtual_service;
  bool others = false;
  for (const auto& other : active_) {
    if (other == tenant || other->idle()) continue;
    least = others ? std::min(least, other->virtual_service) : other->virtual_service;
    others = true;
  }
  tenant->virtual_service = std::max(tenant->virtual_service, least);
}

void FairShare::refresh(int64_t now_ns) {
  std::erase_if(active_, [](const auto& tenant) { return tenant->idle(); });
  for (const auto& tenant : active_) {
    const double rate = tenant->limits.tokens_per_second;
    if (rate <= 0.0) {
      tenant->allowance_ns = 0;
      continue;
    }
    // A second's worth at most is saved up.
    const double seconds = static_cast<double>(now_ns - tenant->allowance_ns) * 1e-9;
    tenant->allowance =
        tenant->allowance_ns == 0 ? rate : std::min(tenant->allowance + rate * std::max(seconds, 0.0), rate);
    tenant->allowance_ns = now_ns;
  }
}

bool FairShare::before(const Tenant& a, const Tenant& b) const {
  const double start_a = start_of(a), start_b = start_of(b);
  if (start_a != start_b) return start_a < start_b;
  return a.metrics.num_running < b.metrics.num_running;
}

bool FairShare::near(const Tenant& a, const Tenant& b, double tokens) const {
  return std::abs(start_of(a) - start_of(b)) * std::min(a.limits.weight, b.limits.weight) <= tokens;
}

void FairShare::begin_turn(Tenant& tenant) { last_start_ = tenant.virtual_service = start_of(tenant); }

double FairShare::weights(const Tenant* besides) const {
  double sum = 0.0;
  for (const auto& tenant : active_) {
    if (!tenant->idle() || tenant.get() == besides) sum += tenant->limits.weight;
  }
  return sum;
}

int64_t FairShare::share(const Tenant& tenant, int64_t max_num_seqs) const {
  const double sum = weights(&tenant);
  const double part = sum > 0.0 ? tenant.limits.weight / sum : 1.0;
  return std::max<int64_t>(static_cast<int64_t>(std::floor(part * static_cast<double>(max_num_seqs))), 1);
}

void FairShare::charge(Tenant& tenant, double tokens) const {
  tenant.virtual_service += tokens / tenant.limits.weight;
  if (tenant.limits.tokens_per_second > 0.0) tenant.allowance -= tokens;
  tenant.metrics.service += tokens;
  tenant.changed = true;
}

}  // namespace headrace::schedule
