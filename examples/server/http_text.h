// The words of HTTP/1.1 that the server writes and compares.
#pragma once

#include <string>
#include <string_view>

#include "exchange.h"

namespace server {

const char* reason_phrase(int status);

// ASCII letters alike whatever their case.
bool equals_ignoring_case(std::string_view a, std::string_view b);

// False for a '%' that two hexadecimal digits do not follow, and for a byte of 0.
bool percent_decode(std::string_view text, std::string& decoded);

struct HeadOptions {
  unsigned version = 11;  // 10 or 11
  bool keep_alive = true;
  bool is_stream = false;  // chunked in HTTP/1.1, until the end of the connection in 1.0
};

// Status line and headers, with the empty line behind them.
std::string format_head(const Reply& reply, const HeadOptions& options);
// A chunk of "Transfer-Encoding: chunked"; an empty text is the last one.
std::string format_chunk(std::string_view text);

}  // namespace server
