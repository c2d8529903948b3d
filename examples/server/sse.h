// Server-sent events.
#pragma once

#include <string>

namespace server {

// data: of one line.
inline std::string format_event(const std::string& data) { return "data: " + data + "\n\n"; }
inline std::string format_event(const std::string& name, const std::string& data) {
  return "event: " + name + "\ndata: " + data + "\n\n";
}
inline constexpr const char* kDoneEvent = "data: [DONE]\n\n";

}  // namespace server
