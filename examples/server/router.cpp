#include "router.h"

#include <utility>

#include <boost/asio/post.hpp>

#include "http_text.h"

namespace server {
namespace {

bool has_body(const HttpRequest& request) {
  const std::string_view length = request.header("Content-Length");
  return !request.header("Transfer-Encoding").empty() || (!length.empty() && length != "0");
}

// More than clients send where nothing is asked for, or of a length that is not said.
bool has_long_body(const HttpRequest& request) {
  constexpr size_t kMostDigits = 4;
  return request.header("Content-Length").size() > kMostDigits || !request.header("Transfer-Encoding").empty();
}

ErrorShape shape_of(const HttpRequest& request) {
  return request.path.starts_with("/v1/messages") ? ErrorShape::kAnthropic : ErrorShape::kOpenAi;
}

bool matches(const std::string& pattern, const std::string& path, std::string& parameter) {
  const size_t star = pattern.find('*');
  if (star == std::string::npos) return pattern == path;
  const std::string_view before(pattern.data(), star), after(pattern.data() + star + 1, pattern.size() - star - 1);
  if (path.size() <= before.size() + after.size() || !path.starts_with(before) || !path.ends_with(after)) return false;
  parameter = path.substr(before.size(), path.size() - before.size() - after.size());
  return true;
}

// "application/json" and "application/json; charset=utf-8".
bool is_json(std::string_view content_type) {
  std::string_view type = content_type.substr(0, content_type.find(';'));
  while (type.ends_with(' ')) type.remove_suffix(1);
  return equals_ignoring_case(type, "application/json");
}

}  // namespace

Router::Router(const Limits& limits, const SchemaCheck& schemas, ApiKeys keys, Origins origins)
    : limits_(limits), schemas_(schemas), keys_(std::move(keys)), origins_(std::move(origins)) {}

Router::~Router() { join(); }

void Router::join() {
  prepare_.join();
  compute_.join();
}

Router::Match Router::find(const HttpRequest& request) const {
  Match match;
  const std::string method = request.method == "HEAD" ? "GET" : request.method;
  for (const Route& route : routes_) {
    std::string parameter;
    if (!matches(route.path, request.path, parameter)) continue;
    if (route.method == method) return {&route, parameter, {}};
    match.allowed += (match.allowed.empty() ? "" : ", ") + route.method;
  }
  return match;
}

std::optional<Caller> Router::caller_of(const HttpRequest& request) const {
  if (!keys_.are_needed()) return Caller{"", true};
  std::string_view key = request.header("X-Api-Key");
  const std::string_view authorization = request.header("Authorization");
  constexpr std::string_view kBearer = "Bearer ";
  if (key.empty() && equals_ignoring_case(authorization.substr(0, kBearer.size()), kBearer)) {
    key = authorization.substr(kBearer.size());
  }
  return keys_.find(key);
}

RequestHandler::Admission Router::admit(const HttpRequest& request) {
  ++num_requests_;
  const auto refuse_with = [&](int status, const std::string& message, const std::string& code = {}) -> Admission {
    ++num_refused_;
    return {error_reply(ApiError(status, message, "", code), shape_of(request))};
  };
  if (!origins_.is_host_allowed(request))
    return refuse_with(421, "the server has no such name; use localhost or a key");
  if (!origins_.is_allowed(request)) return refuse_with(403, "pages of this origin are not allowed");
  if (request.method == "OPTIONS") return {Reply{204, "", "", {}}};
  const Match match = find(request);
  if (match.route == nullptr) {
    if (match.allowed.empty()) return refuse_with(404, "there is nothing at " + request.path);
    Admission admission = refuse_with(405, "the method here is " + match.allowed);
    admission.answer->headers.emplace_back("Allow", match.allowed);
    return admission;
  }
  const Route& route = *match.route;
  const std::optional<Caller> caller = caller_of(request);
  if (route.access != Access::kOpen) {
    if (!caller) return refuse_with(401, "a valid API key is needed", "invalid_api_key");
    if (route.access == Access::kAdmin && !caller->is_admin) {
      return refuse_with(403, "the key is not one of an administrator");
    }
  }
  if (phase_ != Phase::kServing && route.access != Access::kOpen) {
    const bool is_loading = phase_ == Phase::kLoading;
    return refuse_with(503, is_loading ? "the models are still being loaded" : "the server is shutting down");
  }
  if (route.schema.empty() && has_long_body(request)) {
    return refuse_with(413, "a body is not looked at at " + request.path);
  }
  const bool may_lack_body = route.schema.empty() || (route.is_body_optional && !has_body(request));
  if (!may_lack_body && !is_json(request.header("Content-Type"))) {
    return refuse_with(415, "Content-Type must be application/json");
  }
  Call call;
  call.parameter = match.parameter;
  call.caller = caller.value_or(Caller());
  return {std::nullopt, [this, &route, call = std::move(call)](HttpRequest taken, std::shared_ptr<Exchange> exchange) {
            Call whole = call;
            whole.request = std::move(taken);
            whole.exchange = std::move(exchange);
            handle(route, std::move(whole));
          }};
}

void Router::handle(const Route& route, Call call) {
  if (route.place == Place::kIo) return run(route, std::move(call), schemas_);
  if (num_pending_ >= limits_.max_pending_requests) {
    ++num_refused_;
    return call.exchange->reply(error_reply(ApiError(429, "too many requests wait", "", "queue_full"), route.errors));
  }
  ++num_pending_;
  boost::asio::post(route.place == Place::kPrepare ? prepare_ : compute_,
                    [this, &route, call = std::move(call)]() mutable {
                      if (!call.exchange->is_gone()) run(route, std::move(call), schemas_);
                      --num_pending_;
                    });
}

void Router::run(const Route& route, Call call, const SchemaCheck& schemas) {
  const std::shared_ptr<Exchange> exchange = call.exchange;
  try {
    if (!route.schema.empty()) {
      const bool has_none = route.is_body_optional && call.request.body.empty();
      call.body = has_none ? Json::object() : parse_json(call.request.body);
      call.request.body = std::string();
      schemas.check(call.body, route.schema);
    }
    route.handler(std::move(call));
  } catch (const ApiError& error) {
    exchange->reply(error_reply(error, route.errors));
  } catch (const headrace::Error& error) {
    exchange->reply(error_reply(with_names_of(error, route.names), route.errors));
  } catch (const std::exception& error) {
    exchange->reply(error_reply(ApiError(500, error.what()), route.errors));
  }
}

Reply Router::refuse(const HttpRequest& request, int status, const std::string& message) {
  ++num_refused_;
  Reply reply = error_reply(ApiError(status, message), shape_of(request));
  for (auto& header : headers_for(request)) reply.headers.push_back(std::move(header));
  return reply;
}

}  // namespace server
