// Where the time of a run went, op by op, against what the machine can do.
#pragma once

#include <map>
#include <ostream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "roofline.h"

namespace cli {

// Numbers of one row of headrace_model_describe_profile.
struct OpTotals {
  std::string name;        // "linear Q4_K", "attention", "sample"
  std::string arithmetic;  // "int8", "int16", "float32"; empty for spans
  uint64_t calls = 0, rows = 0, nanoseconds = 0, bytes = 0, multiply_adds = 0;
};

// A reading of a model's profile; what lies between two is their difference.
class OpReading {
 public:
  OpReading() = default;
  explicit OpReading(const std::string& profile_json);
  OpReading operator-(const OpReading& earlier) const;

  const std::vector<OpTotals>& ops() const { return ops_; }
  // Spans: "sample", "forward", "step"; all zero where there was none.
  OpTotals span(const std::string& name) const;

 private:
  std::vector<OpTotals> ops_;
  std::map<std::string, OpTotals> spans_;
};

// One object for each op, sampling, "rest of the steps" (what steps spend outside of both: planning, commits and the passage
// from op to op) and "between steps" (the caller's time), the largest first: op, calls, seconds, share (of wall_seconds)
// and, for ops, bytes_per_second, multiply_adds_per_second, bandwidth_share and arithmetic_share of the roofline.
nlohmann::ordered_json report_ops(const OpReading& taken, double wall_seconds, const Roofline& roofline);

// The same as a table of text.
void print_ops(std::ostream& out, const std::string& title, const nlohmann::ordered_json& report);

}  // namespace cli
