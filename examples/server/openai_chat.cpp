// POST /v1/chat/completions
#include <optional>
#include <utility>

#include "chat_messages.h"
#include "context.h"
#include "openai_usage.h"
#include "sampling_fields.h"
#include "sessions.h"
#include "sse.h"
#include "token_text.h"

namespace server {
namespace {

struct ChatOptions {
  bool is_stream = false, has_usage_chunk = false, has_logprobs = false;
  std::string model;
  size_t num_choices = 1;
};

class ChatFormat : public AnswerFormat {
 public:
  ChatFormat(std::shared_ptr<Exchange> exchange, const headrace::Tokenizer& tokenizer, ChatOptions options)
      : exchange_(std::move(exchange)),
        tokenizer_(tokenizer),
        options_(std::move(options)),
        id_(new_id("chatcmpl-")),
        created_(unix_seconds()),
        choices_(options_.num_choices) {}

  void begin() override {
    if (!options_.is_stream) return;
    exchange_->begin_stream();
    for (size_t choice = 0; choice < choices_.size(); ++choice) {
      send_delta(choice, {{"role", "assistant"}, {"content", ""}}, nullptr, nullptr);
    }
  }

  void tokens(size_t choice, const headrace::Event& event) override {
    OrderedJson logprobs;
    if (options_.has_logprobs) {
      logprobs = {{"content", OrderedJson::array()}, {"refusal", nullptr}};
      add_token_logprobs(logprobs["content"], tokenizer_, event);
    }
    const std::string text = event.text();
    if (options_.is_stream) {
      if (text.empty() && !options_.has_logprobs) return;
      return send_delta(choice, {{"content", text}}, std::move(logprobs), nullptr);
    }
    choices_[choice].text += text;
    if (!options_.has_logprobs) return;
    if (choices_[choice].logprobs.is_null()) {
      choices_[choice].logprobs = std::move(logprobs);
    } else {
      for (OrderedJson& token : logprobs["content"]) choices_[choice].logprobs["content"].push_back(std::move(token));
    }
  }

  void finish(size_t choice, const std::string& reason) override {
    choices_[choice].finish_reason = reason;
    if (options_.is_stream) send_delta(choice, OrderedJson::object(), nullptr, reason);
  }

  void done(const TokenUsage& usage) override {
    if (options_.is_stream) {
      if (options_.has_usage_chunk) send_chunk(OrderedJson::array(), openai_usage(usage));
      exchange_->write(kDoneEvent);
      return exchange_->end_stream();
    }
    OrderedJson choices = OrderedJson::array();
    for (size_t i = 0; i < choices_.size(); ++i) {
      choices.push_back({{"index", i},
                         {"message", {{"role", "assistant"}, {"content", choices_[i].text}, {"refusal", nullptr}}},
                         {"logprobs", choices_[i].logprobs},
                         {"finish_reason", choices_[i].finish_reason}});
    }
    OrderedJson body = head("chat.completion");
    body["choices"] = std::move(choices);
    body["usage"] = openai_usage(usage);
    exchange_->reply({200, dump(body), "application/json", {}});
  }

  void fail(const ApiError& error) override { fail_openai(*exchange_, options_.is_stream, error); }

 private:
  struct Choice {
    std::string text, finish_reason;
    OrderedJson logprobs;
  };

  OrderedJson head(const char* object) const {
    return {{"id", id_}, {"object", object}, {"created", created_}, {"model", options_.model}};
  }

  void send_delta(size_t choice, OrderedJson delta, OrderedJson logprobs, OrderedJson finish_reason) {
    OrderedJson one = {{"index", choice},
                       {"delta", std::move(delta)},
                       {"logprobs", std::move(logprobs)},
                       {"finish_reason", std::move(finish_reason)}};
    send_chunk(OrderedJson::array({std::move(one)}), nullptr);
  }

  void send_chunk(OrderedJson choices, OrderedJson usage) {
    OrderedJson chunk = head("chat.completion.chunk");
    chunk["choices"] = std::move(choices);
    if (options_.has_usage_chunk) chunk["usage"] = std::move(usage);  // null but in the last
    exchange_->write(format_event(dump(chunk)));
  }

  const std::shared_ptr<Exchange> exchange_;
  const headrace::Tokenizer& tokenizer_;
  const ChatOptions options_;
  const std::string id_;
  const int64_t created_;
  std::vector<Choice> choices_;
};

void chat(Context& context, Call call) {
  const Json& body = call.body;
  Draw draw = read_draw(body, context.served);
  draw.max_tokens = integer_field(body, "max_completion_tokens", integer_field(body, "max_tokens", 0));
  ChatOptions options;
  options.model = text_field(body, "model", context.served.name());
  options.num_choices = draw.sampling.n;
  options.is_stream = flag_field(body, "stream", false);
  options.has_logprobs = flag_field(body, "logprobs", false);
  const Json* stream_options = find_field(body, "stream_options");
  if (stream_options && !options.is_stream) throw ApiError(400, "is for streams only", "stream_options");
  options.has_usage_chunk = stream_options && flag_field(*stream_options, "include_usage", false);
  if (options.has_logprobs) {
    draw.sampling.num_logprobs = static_cast<int32_t>(integer_field(body, "top_logprobs", 0));
  } else if (integer_field(body, "top_logprobs", 0) > 0) {
    throw ApiError(400, "needs \"logprobs\": true", "top_logprobs");
  }
  std::vector<headrace::Request> requests;
  requests.push_back(make_request(call, context, draw));
  const Conversation conversation = read_messages(body.at("messages"), context.served);
  std::unique_ptr<AnswerFormat> format =
      std::make_unique<ChatFormat>(call.exchange, context.served.tokenizer(), options);
  const Json* variables = find_field(body, "chat_template_kwargs");
  if (const Json* session = find_field(body, "session")) {
    if (variables != nullptr)
      throw ApiError(400, "is not supported in a session", "chat_template_kwargs", "unsupported_parameter");
    auto lease = context.sessions.lease(call.caller.tenant, session->get<std::string>());
    conversation.append_to(lease->fork());
    requests.back().set_session(lease->fork());
    format = commit_when_done(std::move(format), std::move(lease));
  } else {
    conversation.put_into(requests.back(), context.served, variables);
  }
  context.generate(call, requests, options.num_choices, std::move(format));
}

}  // namespace

void add_chat(Router& router, Context& context) {
  router.add({"POST", "/v1/chat/completions", Access::kKey, Place::kPrepare, "ChatRequest",
              [&context](Call call) { chat(context, std::move(call)); }});
}

}  // namespace server
