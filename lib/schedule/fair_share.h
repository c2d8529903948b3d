// Service shared between tenants by weight: who is served next, and who holds more than its share. Pure arithmetic, of the
// stepping thread.
//
// As in VTC, a tenant's virtual service grows with what was computed for it (prompt tokens that were not cached, and weighted
// output tokens) over its weight, and the one with the least that waits is next. One that comes back from rest starts at no
// less than the least of those that are active: rest saves nothing up. And as in start-time fair queueing, nobody starts
// before the turn that was served last: what another received while one had nothing to be served with is no debt. So of two
// tenants that keep waiting, neither gets ahead by more than what one step and one request give.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "schedule/tenant.h"

namespace headrace::schedule {

class FairShare {
 public:
  explicit FairShare(double output_weight) : output_weight_(output_weight) {}

  // Before the tenant gets something to wait for or to run; it is kept until it has been idle at a refresh.
  void activate(const std::shared_ptr<Tenant>& tenant);
  // Forgets idle tenants and gives allowances of tokens_per_second as of now.
  void refresh(int64_t now_ns);
  const std::vector<std::shared_ptr<Tenant>>& active() const { return active_; }

  void charge_prompt(Tenant& tenant, int64_t rows) const { charge(tenant, static_cast<double>(rows)); }
  void charge_output(Tenant& tenant) const { charge(tenant, output_weight_); }

  // Whether a is to be served before b: less virtual service, then fewer running sequences.
  bool before(const Tenant& a, const Tenant& b) const;
  // Whether neither is ahead of the other by more than so many tokens of service.
  bool near(const Tenant& a, const Tenant& b, double tokens) const;
  // The tenant's turn is served now; charges follow.
  void begin_turn(Tenant& tenant);
  // Whether tokens_per_second lets the tenant begin another request.
  static bool allowed(const Tenant& tenant) { return tenant.limits.tokens_per_second <= 0.0 || tenant.allowance > 0.0; }
  // The tenant's part by weight of max_num_seqs sequences among active tenants, rounded down, at least 1.
  int64_t share(const Tenant& tenant, int64_t max_num_seqs) const;
  // Of active tenants that are not idle, together.
  double total_weight() const { return weights(nullptr); }
  bool above_share(const Tenant& tenant, int64_t max_num_seqs) const {
    return tenant.metrics.num_running > share(tenant, max_num_seqs);
  }

 private:
  void charge(Tenant& tenant, double tokens) const;
  // Of active tenants that are not idle, and of one besides, idle or not; null: none.
  double weights(const Tenant* besides) const;
  double start_of(const Tenant& tenant) const { return std::max(tenant.virtual_service, last_start_); }

  double output_weight_;
  double last_start_ = 0.0;  // virtual service at which the last turn started
  std::vector<std::shared_ptr<Tenant>> active_;
};

}  // namespace headrace::schedule
