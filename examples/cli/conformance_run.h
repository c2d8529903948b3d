// One model against what the reference implementation makes of it, and against itself under other cuts, batches, caches and
// threads.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "arguments.h"
#include "golden_folder.h"
#include "row_errors.h"

namespace cli {

struct CaseResult {
  std::string name;
  size_t num_tokens = 0;
  RowErrors errors;
  size_t greedy_compared = 0, greedy_equal = 0;
};

struct ConformanceResult {
  std::string name, path, architecture;
  double noise = 0, tolerance = 0;
  std::vector<CaseResult> cases;
  std::vector<std::pair<std::string, bool>> same_bits;  // by kind of run
  std::string not_supported;                            // why, where the library does not run (all of) it
  std::vector<std::string> failures;
  double seconds = 0;

  bool passed() const { return not_supported.empty() && failures.empty(); }
  CaseResult total() const;
};

// Settings that a run chooses itself.
extern const std::initializer_list<std::string_view> kConformanceSettings;

// What goes wrong is in the result; only bad settings are thrown (headrace::Error).
ConformanceResult run_conformance(const GoldenFolder& golden, const std::string& model_path,
                                  const SettingArguments& settings);

}  // namespace cli
