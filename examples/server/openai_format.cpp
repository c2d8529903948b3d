#include "openai_format.h"

#include <chrono>
#include <utility>

#include "api_error.h"
#include "context.h"
#include "sampling_fields.h"
#include "sse.h"

namespace server {
namespace {

OrderedJson usage_json(const TokenUsage& usage) {
  OrderedJson details = {{"cached_tokens", usage.cached_tokens}};
  if (!usage.reuse_miss.empty()) details["reuse_miss"] = usage.reuse_miss;
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.output_tokens},
          {"total_tokens", usage.prompt_tokens + usage.output_tokens},
          {"prompt_tokens_details", std::move(details)}};
}

}  // namespace

OpenAiOptions read_openai_options(const Json& body, const std::string& model) {
  OpenAiOptions options;
  options.model = model;
  options.is_stream = flag_field(body, "stream", false);
  options.has_progress = flag_field(body, "return_progress", false);
  const Json* stream_options = find_field(body, "stream_options");
  if (stream_options && !options.is_stream) throw ApiError(400, "is for streams only", "stream_options");
  if (options.has_progress && !options.is_stream) throw ApiError(400, "is for streams only", "return_progress");
  options.has_usage_chunk = stream_options && flag_field(*stream_options, "include_usage", false);
  return options;
}

OpenAiFormat::OpenAiFormat(std::shared_ptr<Exchange> exchange, OpenAiOptions options, const std::string& id_prefix,
                           Objects objects)
    : exchange_(std::move(exchange)),
      options_(std::move(options)),
      objects_(objects),
      id_(new_id(id_prefix)),
      created_(unix_seconds()) {}

OrderedJson OpenAiFormat::head(const char* object) const {
  return {{"id", id_}, {"object", object}, {"created", created_}, {"model", options_.model}};
}

void OpenAiFormat::send_choice(OrderedJson choice) { send_chunk(OrderedJson::array({std::move(choice)}), {}); }

void OpenAiFormat::send_chunk(OrderedJson choices, OrderedJson fields) {
  OrderedJson chunk = head(objects_.chunk);
  chunk["choices"] = std::move(choices);
  if (options_.has_usage_chunk) chunk["usage"] = nullptr;  // but in the last
  if (!fields.is_null()) chunk.update(fields);
  exchange_->write(format_event(dump(chunk)));
}

void OpenAiFormat::progress(size_t choice, const headrace_prompt_progress& progress) {
  if (!options_.has_progress) return;
  const auto elapsed = std::chrono::steady_clock::now() - begun_;
  send_chunk(OrderedJson::array({empty_choice(choice)}),
             {{"prompt_progress",
               {{"total", progress.total},
                {"cache", progress.cached},
                {"processed", progress.computed},
                {"time_ms", std::chrono::duration_cast<std::chrono::milliseconds>(elapsed).count()}}}});
}

void OpenAiFormat::done(const TokenUsage& usage) {
  if (options_.is_stream) {
    if (options_.has_usage_chunk) send_chunk(OrderedJson::array(), {{"usage", usage_json(usage)}});
    exchange_->write(kDoneEvent);
    return exchange_->end_stream();
  }
  OrderedJson body = head(objects_.whole);
  body["choices"] = OrderedJson::array();
  for (size_t choice = 0; choice < options_.num_choices; ++choice) body["choices"].push_back(take_choice(choice));
  body["usage"] = usage_json(usage);
  exchange_->reply({200, dump(body), "application/json", {}});
}

void OpenAiFormat::fail(const ApiError& error) {
  if (!options_.is_stream) return exchange_->reply(error_reply(error, ErrorShape::kOpenAi));
  exchange_->write(format_event(dump(error_body(error, ErrorShape::kOpenAi))));
  exchange_->write(kDoneEvent);
  exchange_->end_stream();
}

}  // namespace server
