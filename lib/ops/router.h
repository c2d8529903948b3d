// The choice of experts, shared by every backend on the host: a choice must not depend on how a backend rounds.
#pragma once

#include "tensor/router_params.h"

namespace headrace {

// Routes rows [begin, end) in float64. Rows are independent, so ranges may run on several threads.
void route_rows(const RouteParams& params, int64_t begin, int64_t end);

}  // namespace headrace
