// One client's connection: reads requests, writes answers, and keeps to the limits of size and time.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>

#include "exchange.h"
#include "settings.h"

namespace server {

// What a connection asks of the server. Called on the I/O thread.
class RequestHandler {
 public:
  virtual ~RequestHandler() = default;
  using Taker = std::function<void(HttpRequest request, std::shared_ptr<Exchange> exchange)>;
  // An answer that needs no body, or that refuses to read it; otherwise who takes the request with its body.
  struct Admission {
    std::optional<Reply> answer;
    Taker taker = nullptr;
  };
  virtual Admission admit(const HttpRequest& request) = 0;
  // What is added to every answer to the request.
  virtual Headers headers_for(const HttpRequest& request) = 0;
  // The answer to what cannot be read: 400, 408, 413, 431 or 503. request: what of it was read.
  virtual Reply refuse(const HttpRequest& request, int status, const std::string& message) = 0;
};

// Thread rule: the I/O thread; lives as long as its operations.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  // closed: called once, at the end.
  Connection(boost::asio::ip::tcp::socket socket, RequestHandler& handler, const Limits& limits,
             std::function<void(Connection*)> closed);
  ~Connection();

  void start();
  // Answers with this and closes, without reading.
  void turn_away();
  // The request in hand is the last; a connection without one closes.
  void drain();
  void close();

 private:
  class HttpExchange;
  using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;
  using Error = boost::system::error_code;

  void await_request();
  void read_head();
  void on_head(Error error);
  void read_body();
  void on_body(Error error);
  void answer(const Reply& reply, bool may_keep_alive);
  void refuse(int status, const std::string& message);
  void watch_for_end();
  void finish_answer();
  void linger();

  // What is left to write goes out in order; more may be added meanwhile.
  void send(std::string text);
  void write_some();

  // What happens after a time, unless the timer is set anew or cancelled.
  void arm(boost::asio::steady_timer& timer, std::chrono::steady_clock::duration after, void (Connection::*action)());
  void on_read_timeout();
  void on_quiet_stream();

  boost::asio::ip::tcp::socket socket_;
  boost::asio::steady_timer read_timer_, write_timer_;
  RequestHandler& handler_;
  const Limits& limits_;
  std::function<void(Connection*)> closed_;

  boost::beast::flat_buffer buffer_;
  std::optional<Parser> parser_;
  HttpRequest request_;
  RequestHandler::Taker taker_;             // of the request whose body is read
  std::shared_ptr<HttpExchange> exchange_;  // of the request in hand

  std::string unsent_, sending_;
  size_t sent_ = 0;  // of sending_
  bool is_writing_ = false, is_watching_ = false, is_draining_ = false, is_open_ = true;
  bool closes_after_answer_ = false, is_answer_complete_ = false, is_stream_ = false, is_lingering_ = false;
};

}  // namespace server
