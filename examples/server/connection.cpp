#include "connection.h"

#include <utility>

#include <boost/asio/dispatch.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/read.hpp>

#include "http_text.h"

namespace server {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;

namespace {

constexpr size_t kBufferBytes = 128 << 10;    // of what was read and not parsed
constexpr size_t kMaxEarlyBytes = 64 << 10;   // of requests sent before the answer to the one in hand
constexpr size_t kMaxLingerBytes = 16 << 20;  // of a refused body that are read and dropped
constexpr std::chrono::seconds kLingerTimeout{2};
constexpr std::chrono::seconds kQuietStream{10};  // until a comment shows both ends that the other is there

// Bytes that are no HTTP, where the others are of a client that went away.
bool is_malformed(const boost::system::error_code& error) {
  return error.category() == make_error_code(http::error::bad_method).category() &&
         error != http::error::end_of_stream && error != http::error::partial_message;
}

}  // namespace

// What handlers hold. It outlives its request, and then does nothing.
class Connection::HttpExchange : public Exchange, public std::enable_shared_from_this<HttpExchange> {
 public:
  HttpExchange(std::shared_ptr<Connection> connection, const HttpRequest& request, unsigned version, bool keep_alive)
      : executor_(connection->socket_.get_executor()),
        connection_(std::move(connection)),
        version_(version),
        keep_alive_(keep_alive),
        is_head_(request.method == "HEAD"),
        headers_(connection_->handler_.headers_for(request)) {}

  void reply(Reply reply) override {
    asio::dispatch(executor_, [self = shared_from_this(), reply = std::move(reply)]() mutable {
      Connection* connection = self->connection_.get();
      if (connection == nullptr) return;
      connection->send(self->head(reply, false) + (self->is_head_ ? std::string() : std::move(reply.body)));
      self->complete();
    });
  }

  void begin_stream() override {
    asio::dispatch(executor_, [self = shared_from_this()] {
      if (self->connection_ == nullptr) return;
      self->connection_->is_stream_ = true;
      self->connection_->send(self->head(Reply(), true));
    });
  }

  void write(std::string text) override {
    asio::dispatch(executor_, [self = shared_from_this(), text = std::move(text)]() mutable {
      Connection* connection = self->connection_.get();
      if (connection == nullptr || text.empty()) return;
      // What waits already counts: an answer that is written at once may be longer.
      if (connection->unsent_.size() > connection->limits_.max_unread_bytes) return connection->close();
      connection->send(self->version_ >= 11 ? format_chunk(text) : std::move(text));
    });
  }

  void end_stream() override {
    asio::dispatch(executor_, [self = shared_from_this()] {
      if (self->connection_ == nullptr) return;
      if (self->version_ >= 11) self->connection_->send(format_chunk(""));
      self->complete();
    });
  }

  void on_gone(std::function<void()> action) override {
    asio::dispatch(executor_, [self = shared_from_this(), action = std::move(action)]() mutable {
      if (self->is_gone()) return action();
      self->on_gone_ = std::move(action);
    });
  }

  // The client has gone.
  void abandon() {
    gone_.store(true, std::memory_order_relaxed);
    connection_.reset();
    if (auto action = std::exchange(on_gone_, nullptr)) action();
  }

 private:
  std::string head(Reply reply, bool is_stream) {
    for (auto& header : headers_) reply.headers.push_back(std::move(header));
    if (connection_->is_draining_ || (is_stream && version_ < 11)) keep_alive_ = false;
    return format_head(reply, {version_, keep_alive_, is_stream});
  }

  void complete() {
    on_gone_ = nullptr;
    const std::shared_ptr<Connection> connection = std::move(connection_);
    connection->closes_after_answer_ = !keep_alive_;
    connection->is_answer_complete_ = true;
    connection->is_stream_ = false;
    if (!connection->is_writing_) connection->finish_answer();
  }

  tcp::socket::executor_type executor_;
  std::shared_ptr<Connection> connection_;  // null once the answer is complete or the client gone
  unsigned version_;
  bool keep_alive_, is_head_;
  Headers headers_;
  std::function<void()> on_gone_;
};

Connection::Connection(tcp::socket socket, RequestHandler& handler, const Limits& limits,
                       std::function<void(Connection*)> closed)
    : socket_(std::move(socket)),
      read_timer_(socket_.get_executor()),
      write_timer_(socket_.get_executor()),
      handler_(handler),
      limits_(limits),
      closed_(std::move(closed)),
      buffer_(kBufferBytes) {}

Connection::~Connection() = default;

void Connection::start() {
  Error ignored;
  socket_.set_option(tcp::no_delay(true), ignored);
  await_request();
}

void Connection::turn_away() {
  closes_after_answer_ = is_answer_complete_ = true;
  Reply reply = handler_.refuse(request_, 503, "too many connections");
  send(format_head(reply, {11, false, false}) + reply.body);
}

void Connection::drain() {
  is_draining_ = true;
  if (exchange_ == nullptr && !is_writing_ && !parser_) close();
}

void Connection::close() {
  if (!is_open_) return;
  is_open_ = false;
  const auto self = shared_from_this();
  read_timer_.cancel();
  write_timer_.cancel();
  Error ignored;
  socket_.close(ignored);
  if (const auto exchange = std::move(exchange_)) exchange->abandon();
  closed_(this);
}

void Connection::await_request() {
  exchange_.reset();
  parser_.reset();
  is_answer_complete_ = false;
  if (is_draining_) return close();
  if (buffer_.size() > 0) return read_head();
  arm(read_timer_, limits_.idle_timeout, &Connection::close);
  socket_.async_wait(tcp::socket::wait_read, [self = shared_from_this()](Error error) {
    if (error) return self->close();
    self->read_head();
  });
}

void Connection::read_head() {
  request_ = HttpRequest();
  parser_.emplace();
  parser_->header_limit(static_cast<std::uint32_t>(limits_.max_header_bytes));
  parser_->body_limit(limits_.max_body_bytes);
  arm(read_timer_, limits_.header_timeout, &Connection::on_read_timeout);
  http::async_read_header(socket_, buffer_, *parser_,
                          [self = shared_from_this()](Error error, size_t) { self->on_head(error); });
}

void Connection::on_head(Error error) {
  if (!is_open_ || is_answer_complete_) return;
  const auto& head = parser_->get();
  const std::string_view target(head.target().data(), head.target().size());
  const bool has_path = percent_decode(target.substr(0, target.find('?')), request_.path);
  request_.method = std::string(head.method_string());
  for (const auto& field : head) {
    request_.headers.emplace_back(std::string(field.name_string()), std::string(field.value()));
  }
  if (error == http::error::header_limit || error == http::error::buffer_overflow) {
    return refuse(431, "the headers are larger than " + std::to_string(limits_.max_header_bytes) + " bytes");
  }
  if (error == http::error::body_limit) {
    return refuse(413, "the body is larger than " + std::to_string(limits_.max_body_bytes) + " bytes");
  }
  if (is_malformed(error)) return refuse(400, "no HTTP request: " + error.message());
  if (error) return close();
  if (!has_path) return refuse(400, "the path is badly encoded");
  RequestHandler::Admission admission = handler_.admit(request_);
  if (admission.answer) return answer(*admission.answer, parser_->is_done());
  taker_ = std::move(admission.taker);
  if (equals_ignoring_case(request_.header("Expect"), "100-continue")) send("HTTP/1.1 100 Continue\r\n\r\n");
  read_body();
}

void Connection::read_body() {
  arm(read_timer_, limits_.body_timeout, &Connection::on_read_timeout);
  http::async_read(socket_, buffer_, *parser_,
                   [self = shared_from_this()](Error error, size_t) { self->on_body(error); });
}

void Connection::on_body(Error error) {
  if (!is_open_ || is_answer_complete_) return;
  if (error == http::error::body_limit) {
    return refuse(413, "the body is larger than " + std::to_string(limits_.max_body_bytes) + " bytes");
  }
  if (is_malformed(error)) return refuse(400, "no HTTP request: " + error.message());
  if (error) return close();
  read_timer_.cancel();
  auto message = parser_->release();
  request_.body = std::move(message.body());
  exchange_ = std::make_shared<HttpExchange>(shared_from_this(), request_, message.version(),
                                             message.keep_alive() && !is_draining_);
  watch_for_end();
  std::exchange(taker_, nullptr)(std::move(request_), exchange_);
}

// An answer given before the body was read. The connection can only go on where there was none.
void Connection::answer(const Reply& reply, bool may_keep_alive) {
  read_timer_.cancel();
  const bool keep_alive = may_keep_alive && parser_->get().keep_alive();
  exchange_ = std::make_shared<HttpExchange>(shared_from_this(), request_, parser_->get().version(), keep_alive);
  exchange_->reply(reply);
}

void Connection::refuse(int status, const std::string& message) {
  read_timer_.cancel();
  Reply reply = handler_.refuse(request_, status, message);
  closes_after_answer_ = is_answer_complete_ = true;
  send(format_head(reply, {11, false, false}) + reply.body);
}

// While a request is in hand nothing is expected of the client but further requests, or its end.
void Connection::watch_for_end() {
  if (buffer_.size() > kMaxEarlyBytes) return;
  is_watching_ = true;
  socket_.async_read_some(buffer_.prepare(4096), [self = shared_from_this()](Error error, size_t size) {
    self->is_watching_ = false;
    if (!self->is_open_ || self->is_lingering_) return;
    self->buffer_.commit(size);
    if (self->is_answer_complete_ && !self->is_writing_) {
      if (error && error != asio::error::operation_aborted) return self->close();
      return self->await_request();
    }
    if (error == asio::error::operation_aborted) return;
    if (error) return self->close();
    self->watch_for_end();
  });
}

void Connection::finish_answer() {
  if (closes_after_answer_) return linger();
  exchange_.reset();
  if (!is_watching_) return await_request();
  Error ignored;
  socket_.cancel(ignored);  // the watch's handler goes on
}

// Closing with unread bytes resets the connection, and the client might never see the answer: they are read first.
void Connection::linger() {
  exchange_.reset();
  is_lingering_ = true;
  Error ignored;
  socket_.cancel(ignored);
  socket_.shutdown(tcp::socket::shutdown_send, ignored);
  arm(read_timer_, kLingerTimeout, &Connection::close);
  struct Drain {
    std::shared_ptr<Connection> self;
    std::shared_ptr<std::string> bytes = std::make_shared<std::string>(16 << 10, '\0');
    size_t total = 0;
    void operator()(Error error, size_t size) {
      total += size;
      if (error && error != asio::error::operation_aborted) return self->close();
      if (!self->is_open_ || total > kMaxLingerBytes) return self->close();
      self->socket_.async_read_some(asio::buffer(*bytes), Drain(*this));
    }
  };
  Drain{shared_from_this()}(Error(), 0);
}

void Connection::send(std::string text) {
  if (!is_open_) return;
  unsent_ += text;
  if (!is_writing_) write_some();
}

void Connection::write_some() {
  if (sent_ == sending_.size()) {
    sending_ = std::exchange(unsent_, std::string());
    sent_ = 0;
  }
  if (sending_.empty()) {
    is_writing_ = false;
    write_timer_.cancel();
    if (is_answer_complete_) return finish_answer();
    if (is_stream_) arm(write_timer_, kQuietStream, &Connection::on_quiet_stream);
    return;
  }
  is_writing_ = true;
  arm(write_timer_, limits_.write_timeout, &Connection::close);
  socket_.async_write_some(asio::buffer(sending_.data() + sent_, sending_.size() - sent_),
                           [self = shared_from_this()](Error error, size_t size) {
                             if (!self->is_open_) return;
                             if (error) return self->close();
                             self->sent_ += size;
                             self->write_some();
                           });
}

void Connection::arm(asio::steady_timer& timer, std::chrono::steady_clock::duration after,
                     void (Connection::*action)()) {
  timer.expires_after(after);
  timer.async_wait([self = shared_from_this(), &timer, action](Error error) {
    // A handler that was on its way when the timer was set anew comes with success, but too early.
    if (error || !self->is_open_ || timer.expiry() > std::chrono::steady_clock::now()) return;
    ((*self).*action)();
  });
}

void Connection::on_read_timeout() {
  Error ignored;
  socket_.cancel(ignored);
  refuse(408, "the request did not arrive in time");
}

void Connection::on_quiet_stream() {
  if (exchange_) exchange_->write(": waiting\n\n");
}

}  // namespace server
