// From a method and a path to the handler: keys, limits and schemas are checked on the way.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <boost/asio/thread_pool.hpp>

#include "api_error.h"
#include "api_keys.h"
#include "connection.h"
#include "json.h"
#include "origins.h"
#include "schema_check.h"
#include "settings.h"

namespace server {

// A request on its way through a handler.
struct Call {
  std::shared_ptr<Exchange> exchange;
  HttpRequest request;
  std::string parameter;  // what stands for "*" in the route's path
  Json body;              // checked; null where the route has no schema
  Caller caller;

  void reply(const OrderedJson& value) const { exchange->reply({200, dump(value), "application/json", {}}); }
};

enum class Access { kOpen, kKey, kAdmin };
// Where a handler runs. kIo is for what answers at once. kPrepare is a thread for what parses and tokenizes, kCompute one
// for what computes for long.
enum class Place { kIo, kPrepare, kCompute };

struct Route {
  std::string method, path;  // a path may hold one "*", for anything but nothing
  Access access = Access::kKey;
  Place place = Place::kPrepare;
  std::string schema;  // of the body, in the OpenAPI file; empty: a body is not looked at
  // Fails by throwing ApiError or headrace::Error, which are answered.
  std::function<void(Call)> handler;
  ErrorShape errors = ErrorShape::kOpenAi;
  bool is_body_optional = false;  // none stands for {}
  FieldNames names = {};          // for the library's errors
};

// Thread rule: the I/O thread.
class Router : public RequestHandler {
 public:
  Router(const Limits& limits, const SchemaCheck& schemas, ApiKeys keys, Origins origins);
  ~Router() override;

  void add(Route route) { routes_.push_back(std::move(route)); }
  // A server loads its models, serves, and completes what runs. Only while it serves are requests let in that are not open
  // to everybody; before and after they are answered with 503.
  enum class Phase { kLoading, kServing, kDraining };
  Phase phase() const { return phase_; }
  void open() { phase_ = Phase::kServing; }
  void drain() { phase_ = Phase::kDraining; }
  // Requests read, or being read, by the handlers' threads.
  size_t num_pending() const { return num_pending_; }
  uint64_t num_requests() const { return num_requests_; }
  uint64_t num_refused() const { return num_refused_; }
  // Waits for the handlers that run.
  void join();

  Admission admit(const HttpRequest& request) override;
  Headers headers_for(const HttpRequest& request) override { return origins_.headers_for(request); }
  Reply refuse(const HttpRequest& request, int status, const std::string& message) override;

 private:
  struct Match {
    const Route* route = nullptr;
    std::string parameter, allowed;  // methods, where the path is known and the method is not
  };
  Match find(const HttpRequest& request) const;
  std::optional<Caller> caller_of(const HttpRequest& request) const;
  void handle(const Route& route, Call call);
  static void run(const Route& route, Call call, const SchemaCheck& schemas);

  const Limits& limits_;
  const SchemaCheck& schemas_;
  const ApiKeys keys_;
  const Origins origins_;
  std::vector<Route> routes_;
  Phase phase_ = Phase::kLoading;
  std::atomic<size_t> num_pending_ = 0;
  uint64_t num_requests_ = 0, num_refused_ = 0;
  boost::asio::thread_pool prepare_{1}, compute_{1};
};

}  // namespace server
