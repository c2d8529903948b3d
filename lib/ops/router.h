// The choice of experts, shared by every backend on the host: a choice must not depend on how a backend rounds.
#pragma once

#include <vector>

#include "tensor/router_params.h"

namespace headrace {

// Routes single rows in float64. Rows are independent, so that each of several threads may have a router of its own.
class RowRouter {
 public:
  // All memory is taken here; params must outlive the router.
  explicit RowRouter(const RouteParams& params);
  void route(int64_t row);

 private:
  void choose();
  void drop_groups();

  const RouteParams& p_;
  std::vector<double> scores_, choice_, groups_;
  std::vector<int32_t> chosen_;
};

}  // namespace headrace
