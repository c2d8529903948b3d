// Log sink: the library never prints; what it has to say goes to the host's callback, or nowhere.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

namespace headrace {

enum class LogLevel : int32_t { kDebug = 0, kInfo = 1, kWarning = 2, kError = 3 };

// Receives whole lines without a newline. Called from any thread, never under a lock of the library.
using LogSink = std::function<void(LogLevel, std::string_view component, std::string_view line)>;

// Hands a line to `sink`; an empty sink swallows it.
void log_line(const LogSink& sink, LogLevel level, std::string_view component, std::string_view line);

}  // namespace headrace
