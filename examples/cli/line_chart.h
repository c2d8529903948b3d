// A line chart as SVG text: what a table of rates looks like, or the times of many requests.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace cli {

struct ChartLine {
  std::string label;                              // empty: no line of the legend
  std::vector<std::pair<double, double>> points;  // y >= 0, in the order of x; x > 0 on an axis of logarithms
};

enum class ChartAxis {
  kValues,  // logarithmic, with a mark at each value: few, a power of two apart
  kLinear,
  kLogarithmic,
};

struct LineChart {
  std::string title, x_label, y_label;
  std::vector<ChartLine> lines;  // at least one point among them
  ChartAxis x_axis = ChartAxis::kValues;
  bool has_dots = true;  // at the points
};

// A document with the charts below each other. The y axis is linear from 0.
std::string svg_of(const std::vector<LineChart>& charts);

}  // namespace cli
