#include "metrics_text.h"

#include <charconv>
#include <cmath>

namespace server {
namespace {

// The shortest digits that read back as the same number.
std::string number(double value) {
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  if (std::isnan(value)) return "NaN";
  char digits[40];
  return std::string(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
}

std::string escaped(std::string_view text, bool is_label) {
  std::string out;
  for (const char c : text) {
    if (c == '\n') {
      out += "\\n";
    } else {
      if (c == '\\' || (is_label && c == '"')) out += '\\';
      out += c;
    }
  }
  return out;
}

}  // namespace

void MetricsText::family(const std::string& name, const char* type, const std::string& help) {
  name_ = name;
  text_ += "# HELP " + name + " " + escaped(help, false) + "\n# TYPE " + name + " " + type + "\n";
}

void MetricsText::value(double value, const Labels& labels) { line(name_, labels, value); }

void MetricsText::gauge(const std::string& name, const std::string& help, double value) {
  family(name, "gauge", help);
  line(name, {}, value);
}

void MetricsText::counter(const std::string& name, const std::string& help, double value) {
  family(name, "counter", help);
  line(name, {}, value);
}

void MetricsText::latency(const headrace_latency& latency, const Labels& labels) {
  Labels bucket_labels = labels;
  bucket_labels.emplace_back("le", "");
  uint64_t count = 0;
  for (uint32_t bucket = 0; bucket < HEADRACE_LATENCY_BUCKETS; ++bucket) {
    count += latency.buckets[bucket];
    const bool is_last = bucket + 1 == HEADRACE_LATENCY_BUCKETS;
    if (bucket % 4 != 3 && !is_last) continue;
    bucket_labels.back().second =
        number(is_last ? INFINITY : static_cast<double>(headrace_latency_get_bound(bucket)) / 1e9);
    line(name_ + "_bucket", bucket_labels, static_cast<double>(count));
  }
  line(name_ + "_sum", labels, static_cast<double>(latency.sum_ns) / 1e9);
  line(name_ + "_count", labels, static_cast<double>(count));
}

void MetricsText::line(const std::string& name, const Labels& labels, double value) {
  text_ += name;
  for (size_t i = 0; i < labels.size(); ++i) {
    text_ += (i == 0 ? "{" : ",") + labels[i].first + "=\"" + escaped(labels[i].second, true) + "\"";
  }
  text_ += (labels.empty() ? " " : "} ") + number(value) + "\n";
}

}  // namespace server
