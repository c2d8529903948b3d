#include "api_error.h"

#include <cstdio>
#include <utility>

namespace server {
namespace {

bool is_queue(const headrace::Error& error) {
  return error.place().starts_with("scheduler.") || error.place() == "tenant";
}

int status_of(const headrace::Error& error) {
  switch (error.code()) {
    case HEADRACE_INVALID_ARGUMENT:
    case HEADRACE_MALFORMED:
    case HEADRACE_UNSUPPORTED: return 400;
    case HEADRACE_NOT_FOUND: return 404;
    case HEADRACE_FAILED_PRECONDITION: return 409;
    // A prompt that is too long is the client's; a full queue is the server's, or the tenant's.
    case HEADRACE_RESOURCE_EXHAUSTED: return is_queue(error) ? 429 : 400;
    case HEADRACE_CANCELLED:
    case HEADRACE_OUT_OF_MEMORY: return 503;
    case HEADRACE_DEADLINE_EXCEEDED: return 504;
    default: return 500;
  }
}

std::string code_of(const headrace::Error& error) {
  if (error.code() == HEADRACE_RESOURCE_EXHAUSTED) {
    return is_queue(error) ? "queue_full" : "context_length_exceeded";
  }
  return error.code() == HEADRACE_UNSUPPORTED ? "unsupported" : "";
}

const char* openai_type(int status) {
  if (status == 403) return "permission_error";
  if (status == 429) return "rate_limit_error";
  return status >= 500 ? "server_error" : "invalid_request_error";
}

const char* anthropic_type(int status) {
  if (status == 401) return "authentication_error";
  if (status == 404) return "not_found_error";
  if (status == 413) return "request_too_large";
  if (status == 503) return "overloaded_error";
  if (status == 504) return "timeout_error";
  return status >= 500 ? "api_error" : openai_type(status);
}

}  // namespace

ApiError::ApiError(int status, std::string message, std::string field, std::string code)
    : status_(status), message_(std::move(message)), field_(std::move(field)), code_(std::move(code)) {}

ApiError::ApiError(const headrace::Error& error)
    : ApiError(status_of(error), error.what(), status_of(error) < 500 ? error.place() : std::string(), code_of(error)) {
}

ApiError::ApiError(const headrace::Error& error, std::string field)
    : ApiError(status_of(error), error.message(), status_of(error) < 500 ? std::move(field) : std::string(),
               code_of(error)) {}

ApiError with_names_of(const headrace::Error& error, const FieldNames& names) {
  const std::string& place = error.place();
  for (const auto& [theirs, ours] : names) {
    if (!place.starts_with(theirs)) continue;
    const std::string rest = place.substr(theirs.size());
    if (rest.empty() || rest[0] == '[' || rest[0] == '.') return ApiError(error, ours + rest);
  }
  return ApiError(error);
}

ApiError at_element(const headrace::Error& error, const std::string& field, size_t first) {
  size_t index = 0;
  if (std::sscanf(error.place().c_str(), "sequences[%zu]", &index) != 1) return ApiError(error, field);
  return ApiError(error, field + "[" + std::to_string(first + index) + "]");
}

OrderedJson error_body(const ApiError& error, ErrorShape shape) {
  const std::string message = error.field().empty() || error.message().starts_with(error.field())
                                  ? error.message()
                                  : error.field() + ": " + error.message();
  if (shape == ErrorShape::kAnthropic) {
    return {{"type", "error"}, {"error", {{"type", anthropic_type(error.status())}, {"message", message}}}};
  }
  const auto or_null = [](const std::string& text) { return text.empty() ? OrderedJson() : OrderedJson(text); };
  return {{"error",
           {{"message", message},
            {"type", openai_type(error.status())},
            {"param", or_null(error.field())},
            {"code", or_null(error.code())}}}};
}

Reply error_reply(const ApiError& error, ErrorShape shape) {
  Reply reply;
  reply.status = error.status();
  reply.body = dump(error_body(error, shape));
  if (error.status() == 401) reply.headers.emplace_back("WWW-Authenticate", "Bearer");
  if (error.status() == 429 || error.status() == 503) reply.headers.emplace_back("Retry-After", "1");
  return reply;
}

}  // namespace server
