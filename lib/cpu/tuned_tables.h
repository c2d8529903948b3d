// The tables of tuned/ as constants: choices alone, without what was measured.
#pragma once

#include <span>
#include <string_view>

#include "cpu/tuning_table.h"

namespace headrace {

struct TunedEntry {
  TuningKey key;
  LinearChoice choice;
};

struct TunedTable {
  std::string_view vendor;
  int32_t family, model;
  std::string_view isa;
  int32_t kernels;
  std::span<const TunedEntry> entries;
};

std::span<const TunedTable> tuned_tables();

}  // namespace headrace
