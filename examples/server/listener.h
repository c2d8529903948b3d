// Takes connections up to a number, and lets go of them when the server ends.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_set>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>

#include "connection.h"
#include "settings.h"

namespace server {

// Thread rule: the I/O thread.
class Listener {
 public:
  // Binds at once. Throws std::runtime_error naming host and port.
  Listener(boost::asio::io_context& io, const std::string& host, uint16_t port, RequestHandler& handler,
           const Limits& limits);

  void start() { accept(); }
  uint16_t port() const;
  size_t num_connections() const { return connections_.size(); }
  // Takes no more, and ends each connection with its answer in hand.
  void drain();
  void close_all();

 private:
  void accept();
  void take(boost::asio::ip::tcp::socket socket);

  boost::asio::ip::tcp::acceptor acceptor_;
  boost::asio::steady_timer pause_;
  RequestHandler& handler_;
  const Limits& limits_;
  std::unordered_set<Connection*> connections_;  // each keeps itself alive while it is here
};

}  // namespace server
