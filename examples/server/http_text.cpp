#include "http_text.h"

#include <algorithm>
#include <cstdio>

namespace server {
namespace {

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  c = lower(c);
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

}  // namespace

std::string_view HttpRequest::header(std::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (equals_ignoring_case(key, name)) return value;
  }
  return {};
}

const char* reason_phrase(int status) {
  switch (status) {
    case 200: return "OK";
    case 204: return "No Content";
    case 400: return "Bad Request";
    case 401: return "Unauthorized";
    case 403: return "Forbidden";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 408: return "Request Timeout";
    case 409: return "Conflict";
    case 413: return "Content Too Large";
    case 415: return "Unsupported Media Type";
    case 421: return "Misdirected Request";
    case 429: return "Too Many Requests";
    case 431: return "Request Header Fields Too Large";
    case 501: return "Not Implemented";
    case 503: return "Service Unavailable";
    case 504: return "Gateway Timeout";
    default: return "Internal Server Error";
  }
}

bool equals_ignoring_case(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) { return lower(x) == lower(y); });
}

bool percent_decode(std::string_view text, std::string& decoded) {
  decoded.clear();
  for (size_t i = 0; i < text.size(); ++i) {
    char byte = text[i];
    if (byte == '%') {
      if (i + 2 >= text.size()) return false;
      const int high = hex_value(text[i + 1]), low = hex_value(text[i + 2]);
      if (high < 0 || low < 0) return false;
      byte = static_cast<char>(high * 16 + low);
      i += 2;
    }
    if (byte == '\0') return false;
    decoded += byte;
  }
  return true;
}

std::string format_head(const Reply& reply, const HeadOptions& options) {
  std::string head = "HTTP/1.1 " + std::to_string(reply.status) + " " + reason_phrase(reply.status) + "\r\n";
  const auto add = [&head](std::string_view name, std::string_view value) {
    head.append(name).append(": ").append(value).append("\r\n");
  };
  if (options.is_stream) {
    add("Content-Type", "text/event-stream");
    add("Cache-Control", "no-cache");
    if (options.version >= 11) add("Transfer-Encoding", "chunked");
  } else {
    if (!reply.content_type.empty()) add("Content-Type", reply.content_type);
    if (reply.status != 204) add("Content-Length", std::to_string(reply.body.size()));
  }
  for (const auto& [name, value] : reply.headers) add(name, value);
  add("X-Content-Type-Options", "nosniff");
  add("Connection", options.keep_alive ? "keep-alive" : "close");
  return head + "\r\n";
}

std::string format_chunk(std::string_view text) {
  char size[24];
  std::snprintf(size, sizeof size, "%zx\r\n", text.size());
  return std::string(size).append(text).append("\r\n");
}

}  // namespace server
