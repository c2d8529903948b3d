// POST /v1/chat/completions
#include <utility>

#include "chat_messages.h"
#include "context.h"
#include "openai_format.h"
#include "sampling_fields.h"
#include "sessions.h"
#include "token_text.h"

namespace server {
namespace {

class ChatFormat : public OpenAiFormat {
 public:
  ChatFormat(std::shared_ptr<Exchange> exchange, const headrace::Tokenizer& tokenizer, OpenAiOptions options)
      : OpenAiFormat(std::move(exchange), std::move(options), "chatcmpl-",
                     {"chat.completion", "chat.completion.chunk"}),
        tokenizer_(tokenizer),
        choices_(options_.num_choices) {}

  void begin() override {
    if (!options_.is_stream) return;
    exchange_->begin_stream();
    for (size_t choice = 0; choice < choices_.size(); ++choice) {
      send_choice(delta_of(choice, {{"role", "assistant"}, {"content", ""}}));
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
      return send_choice(delta_of(choice, {{"content", text}}, std::move(logprobs)));
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
    if (options_.is_stream) send_choice(delta_of(choice, OrderedJson::object(), nullptr, reason));
  }

 private:
  struct Choice {
    std::string text, finish_reason;
    OrderedJson logprobs;
  };

  static OrderedJson delta_of(size_t choice, OrderedJson delta, OrderedJson logprobs = nullptr,
                              OrderedJson finish_reason = nullptr) {
    return {{"index", choice},
            {"delta", std::move(delta)},
            {"logprobs", std::move(logprobs)},
            {"finish_reason", std::move(finish_reason)}};
  }

  OrderedJson empty_choice(size_t choice) const override { return delta_of(choice, OrderedJson::object()); }

  OrderedJson take_choice(size_t choice) override {
    Choice& whole = choices_[choice];
    return {{"index", choice},
            {"message", {{"role", "assistant"}, {"content", whole.text}, {"refusal", nullptr}}},
            {"logprobs", std::move(whole.logprobs)},
            {"finish_reason", whole.finish_reason}};
  }

  const headrace::Tokenizer& tokenizer_;
  std::vector<Choice> choices_;
};

void chat(Context& context, Call call) {
  const Json& body = call.body;
  const ServedModels::Choice choice = context.models.choose(body);
  ServedModel& served = choice.served;
  Draw draw = read_draw(body, served);
  draw.max_tokens = integer_field(body, "max_completion_tokens", integer_field(body, "max_tokens", 0));
  OpenAiOptions options = read_openai_options(body, choice.name);
  options.num_choices = draw.sampling.n;
  options.has_logprobs = flag_field(body, "logprobs", false);
  if (options.has_logprobs) {
    draw.sampling.num_logprobs = static_cast<int32_t>(integer_field(body, "top_logprobs", 0));
  } else if (integer_field(body, "top_logprobs", 0) > 0) {
    throw ApiError(400, "needs \"logprobs\": true", "top_logprobs");
  }
  std::vector<headrace::Request> requests;
  requests.push_back(make_request(call, context, choice, draw));
  requests.back().set_progress(options.has_progress);
  std::unique_ptr<AnswerFormat> format = std::make_unique<ChatFormat>(call.exchange, served.tokenizer(), options);
  const Json* variables = find_field(body, "chat_template_kwargs");
  if (const Json* session = find_field(body, "session")) {
    if (variables != nullptr)
      throw ApiError(400, "is not supported in a session", "chat_template_kwargs", "unsupported_parameter");
    auto lease = context.sessions.lease(call.caller.tenant, served, session->get<std::string>());
    const Conversation conversation = read_messages(body.at("messages"), served, lease->pixels_left());
    lease->set_pixels_left(conversation.pixels_left);
    conversation.append_to(lease->fork());
    requests.back().set_session(lease->fork());
    format = commit_when_done(std::move(format), std::move(lease));
  } else {
    read_messages(body.at("messages"), served).put_into(requests.back(), served, variables);
  }
  context.generate(call, served, requests, options.num_choices, std::move(format));
}

}  // namespace

void add_chat(Router& router, Context& context) {
  router.add({"POST",
              "/v1/chat/completions",
              Access::kKey,
              Place::kPrepare,
              "ChatRequest",
              [&context](Call call) { chat(context, std::move(call)); },
              ErrorShape::kOpenAi,
              false,
              {{"prompt", "messages"}, {"variables", "chat_template_kwargs"}, {"stop_tokens", "stop_token_ids"}}});
}

}  // namespace server
