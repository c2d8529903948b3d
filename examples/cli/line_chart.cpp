#include "line_chart.h"

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <set>

namespace cli {
namespace {

constexpr double kWidth = 720, kHeight = 360, kLeft = 80, kRight = 150, kTop = 40, kBottom = 50;
constexpr double kPlotWidth = kWidth - kLeft - kRight, kPlotHeight = kHeight - kTop - kBottom;

__attribute__((format(printf, 2, 3))) void append(std::string& out, const char* format, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  out += text;
}

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      default: out += c;
    }
  }
  return out;
}

// The distance of grid lines, 1, 2 or 5 times a power of ten, that makes four to ten of them.
double grid_distance(double largest) {
  const double power = std::pow(10.0, std::floor(std::log10(largest / 4)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (largest / (power * factor) <= 10) return power * factor;
  }
  return power * 10;
}

// From values to places in the document.
struct Scale {
  bool is_logarithmic = true;
  double low = 0, high = 1, largest = 1;  // of x, or of its logarithm; of y

  explicit Scale(const LineChart& chart) : is_logarithmic(chart.x_axis != ChartAxis::kLinear) {
    std::vector<double> xs;
    largest = 0;
    for (const ChartLine& line : chart.lines) {
      for (const auto& [x, y] : line.points) {
        xs.push_back(is_logarithmic ? std::log2(x) : x);
        largest = std::max(largest, y);
      }
    }
    if (xs.empty()) xs = {0};
    low = *std::min_element(xs.begin(), xs.end());
    high = *std::max_element(xs.begin(), xs.end());
    if (high == low) high = low + 1;
    largest = largest > 0 ? largest * 1.05 : 1;
  }
  double x(double value) const {
    return kLeft + ((is_logarithmic ? std::log2(value) : value) - low) / (high - low) * kPlotWidth;
  }
  double y(double value) const { return kTop + (1 - value / largest) * kPlotHeight; }
};

// Where the x axis has numbers, rising.
std::set<double> marks_of(const LineChart& chart, const Scale& scale) {
  std::set<double> marks;
  switch (chart.x_axis) {
    case ChartAxis::kValues:
      for (const ChartLine& line : chart.lines) {
        for (const auto& point : line.points) marks.insert(point.first);
      }
      break;
    case ChartAxis::kLinear: {
      const double distance = grid_distance(scale.high - scale.low);
      for (double mark = std::ceil(scale.low / distance) * distance; mark <= scale.high; mark += distance) {
        marks.insert(mark);
      }
      break;
    }
    case ChartAxis::kLogarithmic:
      for (double power = std::pow(10.0, std::floor(scale.low * std::log10(2.0))); power <= std::exp2(scale.high);
           power *= 10) {
        for (const double factor : {1.0, 2.0, 5.0}) {
          const double mark = power * factor, place = std::log2(mark);
          if (place >= scale.low && place <= scale.high) marks.insert(mark);
        }
      }
      break;
  }
  return marks;
}

std::string colour(size_t index, size_t count) {
  char text[40];
  const double hue = count > 1 ? 260.0 * static_cast<double>(index) / static_cast<double>(count - 1) : 210;
  std::snprintf(text, sizeof text, "hsl(%.0f,70%%,40%%)", hue);
  return text;
}

void draw_axes(std::string& out, const LineChart& chart, const Scale& scale) {
  append(out, "<text x=\"%g\" y=\"22\" font-weight=\"bold\">", kLeft);
  out += escaped(chart.title) + "</text>\n";
  const double distance = grid_distance(scale.largest);
  for (double value = 0; value <= scale.largest; value += distance) {
    append(out, "<line x1=\"%g\" y1=\"%.1f\" x2=\"%g\" y2=\"%.1f\" stroke=\"#ddd\"/>\n", kLeft, scale.y(value),
           kLeft + kPlotWidth, scale.y(value));
    append(out, "<text x=\"%g\" y=\"%.1f\" text-anchor=\"end\">%g</text>\n", kLeft - 8, scale.y(value) + 4, value);
  }
  constexpr double kMarkWidth = 40;
  double free_from = 0;  // a mark that would lie on the one before it is left out
  for (const double mark : marks_of(chart, scale)) {
    if (scale.x(mark) < free_from) continue;
    free_from = scale.x(mark) + kMarkWidth;
    append(out, "<text x=\"%.1f\" y=\"%g\" text-anchor=\"middle\">%g</text>\n", scale.x(mark), kTop + kPlotHeight + 18,
           mark);
  }
  append(out, "<text x=\"%g\" y=\"%g\" text-anchor=\"middle\">", kLeft + kPlotWidth / 2, kHeight - 12);
  out += escaped(chart.x_label) + "</text>\n";
  append(out, "<text transform=\"translate(18,%g) rotate(-90)\" text-anchor=\"middle\">", kTop + kPlotHeight / 2);
  out += escaped(chart.y_label) + "</text>\n";
}

void draw_line(std::string& out, const ChartLine& line, bool has_dots, const Scale& scale, size_t index, size_t count) {
  if (line.points.empty()) return;
  const std::string stroke = colour(index, count);
  out += "<polyline fill=\"none\" stroke-width=\"2\" stroke=\"" + stroke + "\" points=\"";
  for (const auto& [x, y] : line.points) append(out, "%.1f,%.1f ", scale.x(x), scale.y(y));
  out += "\"/>\n";
  for (const auto& [x, y] : line.points) {
    if (!has_dots) break;
    append(out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\"/>\n", scale.x(x), scale.y(y), stroke.c_str());
  }
  if (line.label.empty()) return;
  const double y = kTop + 10 + 18 * static_cast<double>(index);
  append(out, "<line x1=\"%g\" y1=\"%g\" x2=\"%g\" y2=\"%g\" stroke-width=\"2\" stroke=\"%s\"/>\n",
         kLeft + kPlotWidth + 14, y, kLeft + kPlotWidth + 34, y, stroke.c_str());
  append(out, "<text x=\"%g\" y=\"%g\">", kLeft + kPlotWidth + 40, y + 4);
  out += escaped(line.label) + "</text>\n";
}

}  // namespace

std::string svg_of(const std::vector<LineChart>& charts) {
  std::string out;
  const double height = kHeight * static_cast<double>(charts.size());
  append(out,
         "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%g\" height=\"%g\" viewBox=\"0 0 %g %g\" "
         "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
         kWidth, height, kWidth, height);
  for (size_t i = 0; i < charts.size(); ++i) {
    const LineChart& chart = charts[i];
    const Scale scale(chart);
    append(out, "<g transform=\"translate(0,%g)\">\n", kHeight * static_cast<double>(i));
    draw_axes(out, chart, scale);
    for (size_t line = 0; line < chart.lines.size(); ++line) {
      draw_line(out, chart.lines[line], chart.has_dots, scale, line, chart.lines.size());
    }
    out += "</g>\n";
  }
  return out + "</svg>\n";
}

}  // namespace cli
