#include "origins.h"

#include <algorithm>
#include <utility>

#include <boost/asio/ip/address.hpp>

#include "http_text.h"

namespace server {
namespace {

// "[::1]:8080" -> "::1", "localhost:80" -> "localhost".
std::string_view without_port(std::string_view host) {
  if (host.starts_with('[')) {
    const size_t end = host.find(']');
    return end == std::string_view::npos ? host : host.substr(1, end - 1);
  }
  return host.substr(0, host.find(':'));
}

bool is_own(std::string_view origin, std::string_view host) {
  const size_t scheme = origin.find("://");
  return scheme != std::string_view::npos && !host.empty() && equals_ignoring_case(origin.substr(scheme + 3), host);
}

}  // namespace

bool is_loopback(std::string_view host) {
  boost::system::error_code error;
  const auto address = boost::asio::ip::make_address(std::string(host), error);
  return error ? equals_ignoring_case(host, "localhost") : address.is_loopback();
}

Origins::Origins(std::vector<std::string> allowed, bool checks_host)
    : allowed_(std::move(allowed)), checks_host_(checks_host) {}

bool Origins::is_allowed(const HttpRequest& request) const {
  const std::string_view origin = request.header("Origin");
  return origin.empty() || is_own(origin, request.header("Host")) ||
         std::find(allowed_.begin(), allowed_.end(), origin) != allowed_.end();
}

bool Origins::is_host_allowed(const HttpRequest& request) const {
  const std::string_view host = request.header("Host");
  return !checks_host_ || host.empty() || is_loopback(without_port(host));
}

Headers Origins::headers_for(const HttpRequest& request) const {
  const std::string_view origin = request.header("Origin");
  if (std::find(allowed_.begin(), allowed_.end(), origin) == allowed_.end()) return {};
  Headers headers = {{"Access-Control-Allow-Origin", std::string(origin)}, {"Vary", "Origin"}};
  if (request.method == "OPTIONS") {
    headers.emplace_back("Access-Control-Allow-Methods", "GET, POST, DELETE");
    // What the official clients for browsers send.
    std::string_view asked = request.header("Access-Control-Request-Headers");
    if (!asked.empty()) headers.emplace_back("Access-Control-Allow-Headers", std::string(asked));
    headers.emplace_back("Access-Control-Max-Age", "600");
  }
  return headers;
}

}  // namespace server
