// All of fmt, where base/format.h's numbers and text are not enough: joins, formats known at run time.
#pragma once

#include "base/format.h"

#include <fmt/format.h>
#if FMT_VERSION >= 110000
#include <fmt/ranges.h>  // where joins are since
#endif
