// A line chart as SVG text: what a table of rates looks like.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace cli {

struct ChartLine {
  std::string label;                              // empty: no line of the legend
  std::vector<std::pair<double, double>> points;  // x > 0, y >= 0, in the order of x
};

struct LineChart {
  std::string title, x_label, y_label;
  std::vector<ChartLine> lines;  // at least one point among them
};

// A document with the charts below each other. The x axis is in powers of two, the y axis is linear from 0.
std::string svg_of(const std::vector<LineChart>& charts);

}  // namespace cli
