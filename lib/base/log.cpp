#include "base/log.h"

namespace headrace {

void log_line(const LogSink& sink, LogLevel level, std::string_view component, std::string_view line) {
  if (sink) sink(level, component, line);
}

}  // namespace headrace
