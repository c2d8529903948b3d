// POST /v1/messages and /v1/messages/count_tokens, as Anthropic's clients ask.
#include <utility>

#include "chat_messages.h"
#include "context.h"
#include "sampling_fields.h"
#include "sse.h"

namespace server {
namespace {

struct MessageOptions {
  bool is_stream = false;
  std::string model;
  std::vector<std::string> stop;
};

class MessageFormat : public AnswerFormat {
 public:
  MessageFormat(std::shared_ptr<Exchange> exchange, const headrace::Tokenizer& tokenizer, MessageOptions options,
                int64_t prompt_tokens)
      : exchange_(std::move(exchange)),
        tokenizer_(tokenizer),
        options_(std::move(options)),
        id_(new_id("msg_")),
        prompt_tokens_(prompt_tokens) {}

  void begin() override {
    if (!options_.is_stream) return;
    exchange_->begin_stream();
    OrderedJson start = message(OrderedJson::array());
    start["usage"] = {{"input_tokens", prompt_tokens_}, {"output_tokens", 0}};
    send("message_start", {{"message", std::move(start)}});
    send("content_block_start", {{"index", 0}, {"content_block", {{"type", "text"}, {"text", ""}}}});
  }

  void tokens(size_t, const headrace::Event& event) override {
    const std::string text = event.text();
    text_ += text;
    if (!options_.stop.empty()) {
      for (const int32_t token : event.tokens()) tokens_.push_back(token);
    }
    if (!options_.is_stream || text.empty()) return;
    send("content_block_delta", {{"index", 0}, {"delta", {{"type", "text_delta"}, {"text", text}}}});
  }

  void finish(size_t, const std::string& reason) override {
    stop_reason_ = reason == "length" ? "max_tokens" : "end_turn";
    if (reason == "stop") find_stop();
  }

  void done(const TokenUsage& usage) override {
    const OrderedJson counts = {{"input_tokens", usage.prompt_tokens - usage.cached_tokens},
                                {"cache_creation_input_tokens", 0},
                                {"cache_read_input_tokens", usage.cached_tokens},
                                {"output_tokens", usage.output_tokens}};
    if (options_.is_stream) {
      send("content_block_stop", {{"index", 0}});
      send("message_delta",
           {{"delta", {{"stop_reason", stop_reason_}, {"stop_sequence", stop_sequence_}}}, {"usage", counts}});
      send("message_stop", OrderedJson::object());
      return exchange_->end_stream();
    }
    OrderedJson body = message(OrderedJson::array({{{"type", "text"}, {"text", text_}}}));
    body["usage"] = counts;
    exchange_->reply({200, dump(body), "application/json", {}});
  }

  void fail(const ApiError& error) override {
    if (!options_.is_stream) return exchange_->reply(error_reply(error, ErrorShape::kAnthropic));
    exchange_->write(format_event("error", dump(error_body(error, ErrorShape::kAnthropic))));
    exchange_->end_stream();
  }

 private:
  OrderedJson message(OrderedJson content) const {
    return {{"id", id_},
            {"type", "message"},
            {"role", "assistant"},
            {"model", options_.model},
            {"content", std::move(content)},
            {"stop_reason", stop_reason_},
            {"stop_sequence", stop_sequence_}};
  }

  // The text is cut before the stop sequence that ended it; the tokens are not.
  void find_stop() {
    if (options_.stop.empty()) return;
    const std::string whole = tokenizer_.decode(tokens_, true);
    if (!whole.starts_with(text_)) return;
    const std::string rest = whole.substr(text_.size());
    for (const std::string& stop : options_.stop) {
      if (!rest.starts_with(stop)) continue;
      stop_reason_ = "stop_sequence";
      stop_sequence_ = stop;
      return;
    }
  }

  void send(const std::string& type, OrderedJson fields) {
    OrderedJson event = {{"type", type}};
    event.update(fields);
    exchange_->write(format_event(type, dump(event)));
  }

  const std::shared_ptr<Exchange> exchange_;
  const headrace::Tokenizer& tokenizer_;
  const MessageOptions options_;
  const std::string id_;
  const int64_t prompt_tokens_;
  std::string text_;
  std::vector<int32_t> tokens_;
  OrderedJson stop_reason_, stop_sequence_;
};

Conversation read_conversation(const Json& body, const ServedModel& served) {
  Conversation conversation;
  if (const Json* system = find_field(body, "system")) conversation.add("system", *system, served, "system");
  const Json& messages = body.at("messages");
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string place = "messages[" + std::to_string(i) + "]";
    const std::string role = messages[i].at("role").get<std::string>();
    if (role == "assistant" && i + 1 == messages.size()) {
      throw ApiError(400, "the last message is the assistant's, and continuing one is not supported", place + ".role");
    }
    conversation.add(role, messages[i].at("content"), served, place + ".content");
  }
  return conversation;
}

void generate_message(Context& context, Call call) {
  const Json& body = call.body;
  const ServedModels::Choice choice = context.models.choose(body);
  ServedModel& served = choice.served;
  Draw draw = read_draw(body, served);
  draw.max_tokens = integer_field(body, "max_tokens", 0);
  draw.stop = strings_field(body, "stop_sequences");
  MessageOptions options{flag_field(body, "stream", false), choice.name, draw.stop};
  std::vector<headrace::Request> requests;
  requests.push_back(make_request(call, context, choice, draw));
  const Conversation conversation = read_conversation(body, served);
  conversation.put_into(requests.back(), served, nullptr);
  // A stream says at its beginning how long the prompt is.
  const size_t prompt_tokens = options.is_stream ? conversation.tokens(served).size() : 0;
  context.generate(
      call, served, requests, 1,
      std::make_unique<MessageFormat>(call.exchange, served.tokenizer(), options, static_cast<int64_t>(prompt_tokens)));
}

void count(Context& context, const Call& call) {
  const ServedModel& served = context.models.choose(call.body).served;
  call.reply({{"input_tokens", read_conversation(call.body, served).tokens(served).size()}});
}

}  // namespace

void add_messages(Router& router, Context& context) {
  router.add({"POST",
              "/v1/messages",
              Access::kKey,
              Place::kPrepare,
              "MessageRequest",
              [&context](Call call) { generate_message(context, std::move(call)); },
              ErrorShape::kAnthropic,
              false,
              {{"prompt", "messages"}}});
  router.add({"POST", "/v1/messages/count_tokens", Access::kKey, Place::kPrepare, "CountTokensRequest",
              [&context](Call call) { count(context, call); }, ErrorShape::kAnthropic});
}

}  // namespace server
