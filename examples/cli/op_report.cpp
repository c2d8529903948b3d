#include "op_report.h"

#include <algorithm>
#include <cstdio>

namespace cli {
namespace {

double seconds(uint64_t nanoseconds) { return static_cast<double>(nanoseconds) / 1e9; }

double peak_of(const std::string& arithmetic, const Roofline& roofline) {
  if (arithmetic == "int8") return roofline.int8_multiply_adds_per_second;
  // Twice as wide terms, half as many of them in a register.
  if (arithmetic == "int16") return roofline.int8_multiply_adds_per_second / 2;
  return roofline.float_multiply_adds_per_second;
}

nlohmann::ordered_json row_of(const std::string& name, uint64_t calls, double row_seconds, double wall_seconds) {
  return {{"op", name},
          {"calls", calls},
          {"seconds", row_seconds},
          {"share", wall_seconds > 0 ? row_seconds / wall_seconds : 0}};
}

}  // namespace

OpReading::OpReading(const std::string& profile_json) {
  const auto profile = nlohmann::ordered_json::parse(profile_json);
  for (const auto& row : profile.at("ops")) {
    OpTotals& op = ops_.emplace_back();
    op.name = row.at("op");
    for (const auto& type : row.at("weights")) op.name += " " + type.get<std::string>();
    op.arithmetic = row.at("arithmetic");
    op.calls = row.at("calls");
    op.rows = row.at("rows");
    op.nanoseconds = row.at("nanoseconds");
    op.bytes = row.at("bytes");
    op.multiply_adds = row.at("multiply_adds");
  }
  for (const auto& row : profile.at("spans")) {
    OpTotals& span = spans_[row.at("span")];
    span.calls = row.at("calls");
    span.rows = row.at("rows");
    span.nanoseconds = row.at("nanoseconds");
  }
}

OpReading OpReading::operator-(const OpReading& earlier) const {
  const auto subtract = [](OpTotals& from, const OpTotals& what) {
    from.calls -= what.calls;
    from.rows -= what.rows;
    from.nanoseconds -= what.nanoseconds;
    from.bytes -= what.bytes;
    from.multiply_adds -= what.multiply_adds;
  };
  OpReading out = *this;
  // Rows keep their places: a profile only grows.
  for (size_t i = 0; i < earlier.ops_.size(); ++i) subtract(out.ops_[i], earlier.ops_[i]);
  for (const auto& [name, span] : earlier.spans_) subtract(out.spans_[name], span);
  return out;
}

OpTotals OpReading::span(const std::string& name) const {
  const auto found = spans_.find(name);
  return found == spans_.end() ? OpTotals() : found->second;
}

nlohmann::ordered_json report_ops(const OpReading& taken, double wall_seconds, const Roofline& roofline) {
  std::vector<nlohmann::ordered_json> rows;
  double in_ops = 0;
  for (const OpTotals& op : taken.ops()) {
    if (op.calls == 0) continue;
    const double op_seconds = seconds(op.nanoseconds);
    in_ops += op_seconds;
    nlohmann::ordered_json row = row_of(op.name, op.calls, op_seconds, wall_seconds);
    if (op_seconds > 0) {
      const double byte_rate = static_cast<double>(op.bytes) / op_seconds;
      const double multiply_rate = static_cast<double>(op.multiply_adds) / op_seconds;
      row["arithmetic"] = op.arithmetic;
      row["bytes_per_second"] = byte_rate;
      row["multiply_adds_per_second"] = multiply_rate;
      const double peak = peak_of(op.arithmetic, roofline);
      row["bandwidth_share"] = roofline.read_bytes_per_second > 0 ? byte_rate / roofline.read_bytes_per_second : 0;
      row["arithmetic_share"] = peak > 0 ? multiply_rate / peak : 0;
    }
    rows.push_back(std::move(row));
  }
  const OpTotals sample = taken.span("sample"), step = taken.span("step");
  const double in_steps = seconds(step.nanoseconds), sampling = seconds(sample.nanoseconds);
  rows.push_back(row_of("sample", sample.calls, sampling, wall_seconds));
  rows.push_back(row_of("rest of the steps", step.calls, std::max(0.0, in_steps - in_ops - sampling), wall_seconds));
  rows.push_back(row_of("between steps", step.calls, std::max(0.0, wall_seconds - in_steps), wall_seconds));
  std::stable_sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) {
    return a.at("seconds").template get<double>() > b.at("seconds").template get<double>();
  });
  return rows;
}

void print_ops(std::ostream& out, const std::string& title, const nlohmann::ordered_json& report) {
  char line[160];
  std::snprintf(line, sizeof line, "%-28s %7s %9s %8s %8s %9s %8s\n", title.c_str(), "share", "seconds", "GB/s",
                "of peak", "GMAC/s", "of peak");
  out << line;
  for (const auto& row : report) {
    const std::string name = row.at("op");
    const double share = row.at("share"), row_seconds = row.at("seconds");
    std::snprintf(line, sizeof line, "  %-26s %6.1f%% %9.4f", name.c_str(), share * 100, row_seconds);
    out << line;
    if (row.contains("bytes_per_second")) {
      const double bytes = row.at("bytes_per_second"), bandwidth = row.at("bandwidth_share");
      const double multiplies = row.at("multiply_adds_per_second"), arithmetic = row.at("arithmetic_share");
      std::snprintf(line, sizeof line, " %8.2f %7.0f%% %9.1f %7.1f%%", bytes / 1e9, bandwidth * 100, multiplies / 1e9,
                    arithmetic * 100);
      out << line;
    }
    out << "\n";
  }
}

}  // namespace cli
