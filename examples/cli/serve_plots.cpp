#include "serve_plots.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "line_chart.h"

namespace cli {
namespace {

constexpr size_t kMostPoints = 120;  // of a line

// The share of values that are no larger than each of some of them, in percent.
ChartLine distribution(const std::string& label, std::vector<double> values) {
  ChartLine line{label, {}};
  std::sort(values.begin(), values.end());
  const size_t size = values.size(), points = std::min(size, kMostPoints);
  for (size_t i = 0; i < points; ++i) {
    const size_t index = points == 1 ? 0 : i * (size - 1) / (points - 1);
    const double share = 100.0 * static_cast<double>(index + 1) / static_cast<double>(size);
    line.points.emplace_back(std::max(values[index], 1e-3), share);
  }
  return line;
}

using Groups = std::map<std::string, Latencies>;

LineChart distributions(const std::string& title, const Groups& groups, std::vector<double> Latencies::*times) {
  LineChart chart{title, "milliseconds", "% that take no longer", {}, ChartAxis::kLogarithmic, false};
  for (const auto& [name, latencies] : groups) {
    if (!(latencies.*times).empty())
      chart.lines.push_back(distribution(name.empty() ? "(none)" : name, latencies.*times));
  }
  return chart;
}

// Tokens a second between the ends of equal parts of the time.
ChartLine rate(const std::string& label, const std::vector<EngineMoment>& moments, double EngineMoment::*count) {
  ChartLine line{label, {}};
  const double part = moments.back().seconds / static_cast<double>(kMostPoints / 2);
  EngineMoment last;
  for (const EngineMoment& moment : moments) {
    const double passed = moment.seconds - last.seconds;
    if (passed <= 0 || (passed < part && &moment != &moments.back())) continue;
    line.points.emplace_back(moment.seconds, (moment.*count - last.*count) / passed);
    last = moment;
  }
  return line;
}

ChartLine level(const std::string& label, const std::vector<EngineMoment>& moments, double EngineMoment::*value) {
  ChartLine line{label, {}};
  const size_t stride = std::max<size_t>(moments.size() / (4 * kMostPoints), 1);
  for (size_t i = 0; i < moments.size(); i += stride) line.points.emplace_back(moments[i].seconds, moments[i].*value);
  return line;
}

}  // namespace

std::map<std::string, std::string> serve_plots(const ReplayRecord& record, const std::string& title) {
  const auto pair_of = [&](const std::string& what, std::vector<double> Latencies::*times) {
    std::vector<LineChart> charts;
    for (const auto& [groups, by] : {std::pair(&record.classes, "class"), std::pair(&record.tenants, "tenant")}) {
      LineChart chart = distributions(title + ": " + what + " by " + by, *groups, times);
      if (!chart.lines.empty()) charts.push_back(std::move(chart));
    }
    return svg_of(charts);
  };
  const LineChart rates = {title + ": tokens",
                           "seconds",
                           "tokens per second",
                           {rate("output", record.moments, &EngineMoment::output_tokens),
                            rate("prompt", record.moments, &EngineMoment::prompt_tokens)},
                           ChartAxis::kLinear,
                           false};
  const LineChart sequences = {title + ": sequences",
                               "seconds",
                               "sequences",
                               {level("running", record.moments, &EngineMoment::running),
                                level("waiting", record.moments, &EngineMoment::waiting)},
                               ChartAxis::kLinear,
                               false};
  return {{"first_token.svg", pair_of("time to the first token", &Latencies::first_token_ms)},
          {"inter_token.svg", pair_of("time between tokens", &Latencies::inter_token_ms)},
          {"timeline.svg", svg_of({rates, sequences})}};
}

}  // namespace cli
