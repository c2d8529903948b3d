// POST /v1/responses: one answer of text; nothing is stored.
#include <utility>

#include "chat_messages.h"
#include "context.h"
#include "sampling_fields.h"
#include "sse.h"

namespace server {
namespace {

class ResponseFormat : public AnswerFormat {
 public:
  // fields: of the request, which every state of the response repeats.
  ResponseFormat(std::shared_ptr<Exchange> exchange, bool is_stream, OrderedJson fields)
      : exchange_(std::move(exchange)),
        is_stream_(is_stream),
        id_(new_id("resp_")),
        item_id_(new_id("msg_")),
        created_(unix_seconds()),
        fields_(std::move(fields)) {}

  void begin() override {
    if (!is_stream_) return;
    exchange_->begin_stream();
    send("response.created", {{"response", response("in_progress")}});
    send("response.in_progress", {{"response", response("in_progress")}});
    OrderedJson item = message("in_progress");
    item["content"] = OrderedJson::array();
    send("response.output_item.added", {{"output_index", 0}, {"item", std::move(item)}});
    send("response.content_part.added", in_part({{"part", part("")}}));
  }

  void tokens(size_t, const headrace::Event& event) override {
    const std::string text = event.text();
    text_ += text;
    if (!is_stream_ || text.empty()) return;
    send("response.output_text.delta", in_part({{"delta", text}, {"logprobs", OrderedJson::array()}}));
  }

  void finish(size_t, const std::string& reason) override { is_cut_ = reason == "length"; }

  void done(const TokenUsage& usage) override {
    usage_ = {{"input_tokens", usage.prompt_tokens},
              {"input_tokens_details", {{"cached_tokens", usage.cached_tokens}}},
              {"output_tokens", usage.output_tokens},
              {"output_tokens_details", {{"reasoning_tokens", 0}}},
              {"total_tokens", usage.prompt_tokens + usage.output_tokens}};
    const char* status = is_cut_ ? "incomplete" : "completed";
    if (!is_stream_) return exchange_->reply({200, dump(response(status)), "application/json", {}});
    send("response.output_text.done", in_part({{"text", text_}, {"logprobs", OrderedJson::array()}}));
    send("response.content_part.done", in_part({{"part", part(text_)}}));
    send("response.output_item.done", {{"output_index", 0}, {"item", message(status)}});
    send(std::string("response.") + status, {{"response", response(status)}});
    exchange_->end_stream();
  }

  void fail(const ApiError& error) override {
    if (!is_stream_) return exchange_->reply(error_reply(error, ErrorShape::kOpenAi));
    OrderedJson failed = response("failed");
    failed["error"] = {{"code", error.code().empty() ? "server_error" : error.code()}, {"message", error.message()}};
    send("response.failed", {{"response", std::move(failed)}});
    exchange_->end_stream();
  }

 private:
  static OrderedJson part(const std::string& text) {
    return {{"type", "output_text"},
            {"text", text},
            {"annotations", OrderedJson::array()},
            {"logprobs", OrderedJson::array()}};
  }

  OrderedJson message(const char* status) const {
    return {{"id", item_id_},
            {"type", "message"},
            {"status", status},
            {"role", "assistant"},
            {"content", OrderedJson::array({part(text_)})}};
  }

  OrderedJson in_part(OrderedJson fields) const {
    OrderedJson event = {{"item_id", item_id_}, {"output_index", 0}, {"content_index", 0}};
    event.update(fields);
    return event;
  }

  OrderedJson response(const std::string& status) const {
    const bool is_over = status != "in_progress";
    OrderedJson out = {{"id", id_}, {"object", "response"}, {"created_at", created_}, {"status", status}};
    out["error"] = nullptr;
    out["incomplete_details"] = status == "incomplete" ? OrderedJson({{"reason", "max_output_tokens"}}) : OrderedJson();
    out.update(fields_);
    out["output"] = is_over ? OrderedJson::array({message(status.c_str())}) : OrderedJson::array();
    out["usage"] = usage_;
    return out;
  }

  void send(const std::string& type, OrderedJson fields) {
    OrderedJson event = {{"type", type}, {"sequence_number", sequence_number_++}};
    event.update(fields);
    exchange_->write(format_event(type, dump(event)));
  }

  const std::shared_ptr<Exchange> exchange_;
  const bool is_stream_;
  const std::string id_, item_id_;
  const int64_t created_;
  const OrderedJson fields_;
  std::string text_;
  OrderedJson usage_;
  int64_t sequence_number_ = 0;
  bool is_cut_ = false;
};

// "instructions" and "input" as a conversation.
Conversation read_input(const Json& body, const ServedModel& served) {
  Conversation conversation;
  if (const Json* instructions = find_field(body, "instructions")) {
    conversation.add("system", *instructions, served, "instructions");
  }
  const Json& input = body.at("input");
  if (input.is_string()) {
    conversation.add("user", input, served, "input");
    return conversation;
  }
  for (size_t i = 0; i < input.size(); ++i) {
    std::string role = input[i].at("role").get<std::string>();
    if (role == "developer") role = "system";
    conversation.add(role, input[i].at("content"), served, "input[" + std::to_string(i) + "].content");
  }
  return conversation;
}

OrderedJson copied_fields(const Json& body, const Draw& draw, const std::string& model) {
  const auto copy = [&body](const char* name) {
    const Json* field = find_field(body, name);
    return field == nullptr ? OrderedJson() : OrderedJson::parse(field->dump());
  };
  const Json* metadata = find_field(body, "metadata");
  return {{"instructions", copy("instructions")},
          {"max_output_tokens", copy("max_output_tokens")},
          {"metadata", metadata == nullptr ? OrderedJson::object() : copy("metadata")},
          {"model", model},
          {"parallel_tool_calls", false},
          {"previous_response_id", nullptr},
          {"store", false},
          {"temperature", draw.sampling.temperature},
          {"text", {{"format", {{"type", "text"}}}}},
          {"tool_choice", "none"},
          {"tools", OrderedJson::array()},
          {"top_p", draw.sampling.top_p},
          {"truncation", "disabled"}};
}

void respond(Context& context, Call call) {
  const Json& body = call.body;
  const ServedModels::Choice choice = context.models.choose(body);
  ServedModel& served = choice.served;
  Draw draw = read_draw(body, served);
  draw.max_tokens = integer_field(body, "max_output_tokens", 0);
  std::vector<headrace::Request> requests;
  requests.push_back(make_request(call, context, choice, draw));
  read_input(body, served).put_into(requests.back(), served, find_field(body, "chat_template_kwargs"));
  context.generate(call, served, requests, 1,
                   std::make_unique<ResponseFormat>(call.exchange, flag_field(body, "stream", false),
                                                    copied_fields(body, draw, choice.name)));
}

}  // namespace

void add_responses(Router& router, Context& context) {
  router.add({"POST",
              "/v1/responses",
              Access::kKey,
              Place::kPrepare,
              "ResponseRequest",
              [&context](Call call) { respond(context, std::move(call)); },
              ErrorShape::kOpenAi,
              false,
              {{"prompt", "input"}, {"variables", "chat_template_kwargs"}, {"stop_tokens", "stop_token_ids"}}});
}

}  // namespace server
