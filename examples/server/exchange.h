// One request and the way back to its client. Nothing here knows of sockets.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace server {

using Headers = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;
  std::string path;  // percent-decoded, without the query
  Headers headers;
  std::string body;

  // The first of this name, whatever its case; empty where there is none.
  std::string_view header(std::string_view name) const;
};

struct Reply {
  int status = 200;
  std::string body;
  std::string content_type = "application/json";
  Headers headers;
};

// Thread rule: any thread. What other threads give is handed to the I/O thread in order.
class Exchange {
 public:
  virtual ~Exchange() = default;
  // The whole answer.
  virtual void reply(Reply reply) = 0;
  // An answer of events: the header goes out at once, then what is written, until it ends. A client that does not read
  // as fast as is written is dropped, and the exchange is gone, once more waits for it than the server's limit.
  virtual void begin_stream() = 0;
  virtual void write(std::string text) = 0;
  virtual void end_stream() = 0;
  // The client is gone, or dropped: what is said from now on is heard by nobody.
  bool is_gone() const { return gone_.load(std::memory_order_relaxed); }
  // Called once on the I/O thread when the client goes; at once where it has gone.
  virtual void on_gone(std::function<void()> action) = 0;

 protected:
  std::atomic<bool> gone_ = false;
};

}  // namespace server
