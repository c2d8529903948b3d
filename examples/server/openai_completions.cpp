// POST /v1/completions
#include <utility>

#include "context.h"
#include "openai_format.h"
#include "sampling_fields.h"
#include "sessions.h"
#include "token_text.h"

namespace server {
namespace {

OrderedJson no_logprobs() {
  const OrderedJson none = OrderedJson::array();
  return {{"tokens", none}, {"token_logprobs", none}, {"top_logprobs", none}, {"text_offset", none}};
}

class CompletionFormat : public OpenAiFormat {
 public:
  CompletionFormat(std::shared_ptr<Exchange> exchange, const headrace::Tokenizer& tokenizer, OpenAiOptions options)
      : OpenAiFormat(std::move(exchange), std::move(options), "cmpl-", {"text_completion", "text_completion"}),
        tokenizer_(tokenizer),
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
      send_choice(describe(index, text, std::move(choice.logprobs), nullptr));
    }
  }

  void finish(size_t choice, const std::string& reason) override {
    choices_[choice].finish_reason = reason;
    if (options_.is_stream) send_choice(describe(choice, "", nullptr, reason));
  }

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

  OrderedJson empty_choice(size_t choice) const override { return describe(choice, "", nullptr, nullptr); }

  OrderedJson take_choice(size_t choice) override {
    Choice& whole = choices_[choice];
    return describe(choice, whole.text, std::move(whole.logprobs), whole.finish_reason);
  }

  const headrace::Tokenizer& tokenizer_;
  std::vector<Choice> choices_;
};

// One prompt: a text, or its tokens. place: where it stands in the body.
void add_prompt(headrace::Request& request, const Json& prompt, const std::string& place) {
  if (prompt.is_string()) {
    request.add_text(prompt.get_ref<const std::string&>(), HEADRACE_ADD_SPECIAL | HEADRACE_PARSE_SPECIAL);
    return;
  }
  try {
    request.add_tokens(prompt.get<std::vector<int32_t>>());
  } catch (const headrace::Error& error) {
    throw with_names_of(error, {{"tokens", place}});
  }
}

// Of a text, an array of texts, an array of tokens, or an array of arrays of tokens.
bool is_one_prompt(const Json& field) { return !field.is_array() || field.empty() || field[0].is_number(); }

void complete(Context& context, Call call) {
  const Json& body = call.body;
  const ServedModels::Choice choice = context.models.choose(body);
  ServedModel& served = choice.served;
  Draw draw = read_draw(body, served);
  draw.max_tokens = integer_field(body, "max_tokens", 16);
  if (find_field(body, "logprobs")) {
    draw.sampling.num_logprobs = static_cast<int32_t>(integer_field(body, "logprobs", 0));
  }
  if (integer_field(body, "best_of", draw.sampling.n) != draw.sampling.n) {
    throw ApiError(400, "is not supported where it is not n", "best_of", "unsupported_parameter");
  }
  const bool is_one = is_one_prompt(body.at("prompt"));
  const auto prompts = is_one ? std::vector<Json>{body.at("prompt")} : body.at("prompt").get<std::vector<Json>>();
  OpenAiOptions options = read_openai_options(body, choice.name);
  options.num_choices = prompts.size() * draw.sampling.n;
  options.has_logprobs = draw.sampling.num_logprobs >= 0;
  std::vector<headrace::Request> requests;
  for (size_t i = 0; i < prompts.size(); ++i) {
    requests.push_back(make_request(call, context, choice, draw));
    requests.back().set_progress(options.has_progress);
    add_prompt(requests.back(), prompts[i], is_one ? "prompt" : "prompt[" + std::to_string(i) + "]");
  }
  std::unique_ptr<AnswerFormat> format = std::make_unique<CompletionFormat>(call.exchange, served.tokenizer(), options);
  if (const Json* session = find_field(body, "session")) {
    if (requests.size() > 1) throw ApiError(400, "must be one, in a session", "prompt");
    auto lease = context.sessions.lease(call.caller.tenant, served, session->get<std::string>());
    requests.back().set_session(lease->fork());
    format = commit_when_done(std::move(format), std::move(lease));
  }
  context.generate(call, served, requests, draw.sampling.n, std::move(format));
}

}  // namespace

void add_completions(Router& router, Context& context) {
  router.add({"POST",
              "/v1/completions",
              Access::kKey,
              Place::kPrepare,
              "CompletionRequest",
              [&context](Call call) { complete(context, std::move(call)); },
              ErrorShape::kOpenAi,
              false,
              {{"stop_tokens", "stop_token_ids"}}});
}

}  // namespace server
