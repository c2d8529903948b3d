// Which web pages may talk to the server (CORS), and under which names it is called.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "exchange.h"

namespace server {

class Origins {
 public:
  // allowed: "https://example.org" and the like. checks_host: the server has no keys and listens on loopback, where a page
  // could reach it under a name of its own that is made to point there; then only the machine's own names are served.
  Origins(std::vector<std::string> allowed, bool checks_host);

  // A browser sends Origin with what a page asks: nothing, the server's own or an allowed one will do.
  bool is_allowed(const HttpRequest& request) const;
  bool is_host_allowed(const HttpRequest& request) const;
  // The headers that let the page see the answer; none for pages of the server itself.
  Headers headers_for(const HttpRequest& request) const;

 private:
  std::vector<std::string> allowed_;
  bool checks_host_;
};

bool is_loopback(std::string_view host);

}  // namespace server
