#include "listener.h"

#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

namespace server {

namespace asio = boost::asio;
using asio::ip::tcp;

namespace {

constexpr std::chrono::milliseconds kPause{100};  // where no more files can be opened
constexpr size_t kMaxTurningAway = 64;            // connections beyond the limit that are told so at a time

}  // namespace

Listener::Listener(asio::io_context& io, const std::string& host, uint16_t port, RequestHandler& handler,
                   const Limits& limits)
    : acceptor_(io), pause_(io), handler_(handler), limits_(limits) {
  try {
    tcp::resolver resolver(io);
    const auto results =
        resolver.resolve(host, std::to_string(port), tcp::resolver::passive | tcp::resolver::numeric_service);
    const tcp::endpoint endpoint = results.begin()->endpoint();
    acceptor_.open(endpoint.protocol());
    acceptor_.set_option(tcp::acceptor::reuse_address(true));
    acceptor_.bind(endpoint);
    acceptor_.listen();
  } catch (const boost::system::system_error& error) {
    throw std::runtime_error("cannot listen at " + host + " port " + std::to_string(port) + ": " +
                             error.code().message());
  }
}

uint16_t Listener::port() const { return acceptor_.local_endpoint().port(); }

void Listener::accept() {
  acceptor_.async_accept([this](boost::system::error_code error, tcp::socket socket) {
    if (!acceptor_.is_open()) return;
    if (!error) {
      take(std::move(socket));
    } else if (error != asio::error::connection_aborted) {
      pause_.expires_after(kPause);
      pause_.async_wait([this](boost::system::error_code) {
        if (acceptor_.is_open()) accept();
      });
      return;
    }
    accept();
  });
}

void Listener::take(tcp::socket socket) {
  const bool is_full = connections_.size() >= limits_.max_connections;
  if (connections_.size() >= limits_.max_connections + kMaxTurningAway) return;  // the socket closes
  const auto connection = std::make_shared<Connection>(std::move(socket), handler_, limits_,
                                                       [this](Connection* closed) { connections_.erase(closed); });
  connections_.insert(connection.get());
  if (is_full) {
    connection->turn_away();
  } else {
    connection->start();
  }
}

void Listener::drain() {
  boost::system::error_code ignored;
  acceptor_.close(ignored);
  pause_.cancel();
  for (Connection* connection : std::vector<Connection*>(connections_.begin(), connections_.end())) {
    connection->drain();
  }
}

void Listener::close_all() {
  for (Connection* connection : std::vector<Connection*>(connections_.begin(), connections_.end())) {
    connection->close();
  }
}

}  // namespace server
