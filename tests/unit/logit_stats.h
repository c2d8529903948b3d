// Stats of one row of logits, by the scalar reference.
#pragma once

#include <span>

#include "ops/reference_backend.h"

namespace headrace::test {

inline LogitStats logit_stats(std::span<const float> logits) {
  LogitStats stats;
  reference_logit_stats({logits.data(), 1, static_cast<int64_t>(logits.size()), &stats});
  return stats;
}

}  // namespace headrace::test
