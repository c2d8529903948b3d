// fmt, compiled once (format.cpp) and under names of our own: a host that links libheadrace.a may bring another fmt.
#pragma once

#define FMT_BEGIN_NAMESPACE \
  namespace fmt {           \
  inline namespace headrace_copy {
#define FMT_END_NAMESPACE \
  }                       \
  }

#include <fmt/core.h>
