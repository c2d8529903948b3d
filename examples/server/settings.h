// What a server is told at its start.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace server {

struct Limits {
  size_t max_connections = 1024;
  size_t max_header_bytes = 16 << 10;
  size_t max_body_bytes = 32 << 20;
  size_t max_unread_bytes = 1 << 20;  // of a stream, before its client is dropped
  size_t max_pending_requests = 256;  // that wait to be read and checked, before the engine's own queue
  size_t max_sessions = 256;
  std::chrono::seconds header_timeout{10};  // from a request's first byte to its last header
  std::chrono::seconds body_timeout{60};
  std::chrono::seconds idle_timeout{75};   // between the requests of a connection
  std::chrono::seconds write_timeout{30};  // without a byte taken
  std::chrono::seconds request_timeout{600};
  std::chrono::seconds drain_timeout{30};
  std::chrono::seconds stall_timeout{60};  // age of a step from which on /health says so
};

struct Settings {
  std::string host = "127.0.0.1";
  uint16_t port = 8080;  // 0: one that is free
  std::string api_key_file;
  std::vector<std::string> origins;                           // that pages may come from, besides the server's own
  std::vector<std::pair<std::string, std::string>> adapters;  // name and folder, of a server of one model
  std::string adapter_folder;                                 // whose folders may be loaded by request; empty: none
  Limits limits;
};

}  // namespace server
