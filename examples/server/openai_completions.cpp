// POST /v1/completions
#include <utility>

#include "context.h"
#include "openai_usage.h"
#include "sampling_fields.h"
#include "sessions.h"
#include "token_text.h"

namespace server {
namespace {

struct CompletionOptions {
  bool is_stream = false, has_usage_chunk = false, has_logprobs = false;
  std::string model;
  size_t num_choices = 1;
};

OrderedJson no_logprobs() {
  const OrderedJson none = OrderedJson::array();
  return {{"tokens", none}, {"token_logprobs", none}, {"top_logprobs", none}, {"text_offset", none}};
}

class CompletionFormat : public AnswerFormat {
 public:
  CompletionFormat(std::shared_ptr<Exchange> exchange, const headrace::Tokenizer& tokenizer, CompletionOptions options)
      : exchange_(std::move(exchange)),
        tokenizer_(tokenizer),
        options_(std::move(options)),
        id_(new_id("cmpl-")),
        created_(unix_seconds()),
        choices_(options_.num_choices) {}

  void begin() override {
    if (options_.is_stream) exchange_->begin_stream();
  }

  void tokens(size_t index, const headrace::Event& event) override {
    Choice& choice = choices_[index];
    if (options_.has_logprobs) {
      if (options_.is_stream || choice.logprobs.is_null()) choice.logprobs = no_logprobs();
      add_legacy_logprobs(choice.logprobs, choice.offset, tokenizer_, event);
    }
    const std::string text = event.text();
    if (!options_.is_stream) {
      choice.text += text;
    } else if (!text.empty() || options_.has_logprobs) {
      send_chunk(OrderedJson::array({describe(index, text, std::move(choice.logprobs), nullptr)}), nullptr);
    }
  }

  void finish(size_t choice, const std::string& reason) override {
    choices_[choice].finish_reason = reason;
    if (options_.is_stream) send_chunk(OrderedJson::array({describe(choice, "", nullptr, reason)}), nullptr);
  }

  void done(const TokenUsage& usage) override {
    if (options_.is_stream) {
      if (options_.has_usage_chunk) send_chunk(OrderedJson::array(), openai_usage(usage));
      exchange_->write(kDoneEvent);
      return exchange_->end_stream();
    }
    OrderedJson body = head();
    body["choices"] = OrderedJson::array();
    for (size_t i = 0; i < choices_.size(); ++i) {
      body["choices"].push_back(
          describe(i, choices_[i].text, std::move(choices_[i].logprobs), choices_[i].finish_reason));
    }
    body["usage"] = openai_usage(usage);
    exchange_->reply({200, dump(body), "application/json", {}});
  }

  void fail(const ApiError& error) override { fail_openai(*exchange_, options_.is_stream, error); }

 private:
  struct Choice {
    std::string text, finish_reason;
    OrderedJson logprobs;
    size_t offset = 0;
  };

  static OrderedJson describe(size_t index, const std::string& text, OrderedJson logprobs, OrderedJson finish_reason) {
    return {{"index", index},
            {"text", text},
            {"logprobs", std::move(logprobs)},
            {"finish_reason", std::move(finish_reason)}};
  }

  OrderedJson head() const {
    return {{"id", id_}, {"object", "text_completion"}, {"created", created_}, {"model", options_.model}};
  }

  void send_chunk(OrderedJson choices, OrderedJson usage) {
    OrderedJson chunk = head();
    chunk["choices"] = std::move(choices);
    if (options_.has_usage_chunk) chunk["usage"] = std::move(usage);
    exchange_->write(format_event(dump(chunk)));
  }

  const std::shared_ptr<Exchange> exchange_;
  const headrace::Tokenizer& tokenizer_;
  const CompletionOptions options_;
  const std::string id_;
  const int64_t created_;
  std::vector<Choice> choices_;
};

// One prompt: a text, or its tokens.
void add_prompt(headrace::Request& request, const Json& prompt) {
  if (prompt.is_string()) {
    request.add_text(prompt.get_ref<const std::string&>(), HEADRACE_ADD_SPECIAL | HEADRACE_PARSE_SPECIAL);
  } else {
    request.add_tokens(prompt.get<std::vector<int32_t>>());
  }
}

// A text, an array of texts, an array of tokens, or an array of arrays of tokens.
std::vector<Json> prompts_of(const Json& field) {
  if (field.is_array() && !field.empty() && !field[0].is_number()) return field.get<std::vector<Json>>();
  return {field};
}

void complete(Context& context, Call call) {
  const Json& body = call.body;
  Draw draw = read_draw(body, context.served);
  draw.max_tokens = integer_field(body, "max_tokens", 16);
  if (find_field(body, "logprobs")) {
    draw.sampling.num_logprobs = static_cast<int32_t>(integer_field(body, "logprobs", 0));
  }
  if (integer_field(body, "best_of", draw.sampling.n) != draw.sampling.n) {
    throw ApiError(400, "is not supported where it is not n", "best_of", "unsupported_parameter");
  }
  const std::vector<Json> prompts = prompts_of(body.at("prompt"));
  CompletionOptions options;
  options.model = text_field(body, "model", context.served.name());
  options.num_choices = prompts.size() * draw.sampling.n;
  options.is_stream = flag_field(body, "stream", false);
  options.has_logprobs = draw.sampling.num_logprobs >= 0;
  const Json* stream_options = find_field(body, "stream_options");
  if (stream_options && !options.is_stream) throw ApiError(400, "is for streams only", "stream_options");
  options.has_usage_chunk = stream_options && flag_field(*stream_options, "include_usage", false);
  std::vector<headrace::Request> requests;
  for (const Json& prompt : prompts) {
    requests.push_back(make_request(call, context, draw));
    add_prompt(requests.back(), prompt);
  }
  std::unique_ptr<AnswerFormat> format =
      std::make_unique<CompletionFormat>(call.exchange, context.served.tokenizer(), options);
  if (const Json* session = find_field(body, "session")) {
    if (requests.size() > 1) throw ApiError(400, "must be one, in a session", "prompt");
    auto lease = context.sessions.lease(call.caller.tenant, session->get<std::string>());
    requests.back().set_session(lease->fork());
    format = commit_when_done(std::move(format), std::move(lease));
  }
  context.generate(call, requests, draw.sampling.n, std::move(format));
}

}  // namespace

void add_completions(Router& router, Context& context) {
  router.add({"POST", "/v1/completions", Access::kKey, Place::kPrepare, "CompletionRequest",
              [&context](Call call) { complete(context, std::move(call)); }});
}

}  // namespace server
