// The coefficients of hyper-connections, shared by every backend on the host: a handful of numbers a row.
#pragma once

#include <cstdint>

#include "tensor/stream_params.h"

namespace headrace {

// Of one row, in float64. Rows are independent, and may be shared out among threads.
void compute_stream_gates(const StreamGatesParams& params, int64_t row);

}  // namespace headrace
