// The text format of Prometheus.
#pragma once

#include <headrace/headrace.hpp>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace server {

class MetricsText {
 public:
  using Labels = std::vector<std::pair<std::string, std::string>>;

  // Begins a family: type is "counter" (whose name ends in _total), "gauge" or "histogram".
  void family(const std::string& name, const char* type, const std::string& help);
  // A value of the family begun last.
  void value(double value, const Labels& labels = {});
  // A histogram, in seconds, of the family begun last: every fourth bound of the library's, an octave each.
  void latency(const headrace_latency& latency, const Labels& labels = {});

  // The same for a family of one value.
  void gauge(const std::string& name, const std::string& help, double value);
  void counter(const std::string& name, const std::string& help, double value);

  const std::string& text() const { return text_; }

 private:
  void line(const std::string& name, const Labels& labels, double value);
  std::string name_, text_;
};

}  // namespace server
