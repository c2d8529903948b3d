// POST /tokenize and /detokenize
#include "chat_messages.h"
#include "context.h"
#include "sampling_fields.h"

namespace server {
namespace {

void tokenize(Context& context, const Call& call) {
  const Json& body = call.body;
  const ServedModel& served = context.models.choose(body).served;
  const headrace::Tokenizer& tokenizer = served.tokenizer();
  const Json *prompt = find_field(body, "prompt"), *messages = find_field(body, "messages");
  if ((prompt == nullptr) == (messages == nullptr)) throw ApiError(400, "give one of prompt and messages", "prompt");
  std::vector<int32_t> tokens;
  if (prompt != nullptr) {
    tokens =
        tokenizer.encode(prompt->get_ref<const std::string&>(), true, flag_field(body, "add_special_tokens", true));
  } else {
    tokens =
        read_messages(*messages, served)
            .tokens(served, find_field(body, "chat_template_kwargs"), flag_field(body, "add_generation_prompt", true));
  }
  call.reply({{"count", tokens.size()}, {"max_model_len", served.context()}, {"tokens", tokens}});
}

void detokenize(Context& context, const Call& call) {
  const ServedModel& served = context.models.choose(call.body).served;
  const auto tokens = call.body.at("tokens").get<std::vector<int32_t>>();
  call.reply({{"prompt", served.tokenizer().decode(tokens)}});
}

}  // namespace

void add_tokenize(Router& router, Context& context) {
  router.add({"POST", "/tokenize", Access::kKey, Place::kPrepare, "TokenizeRequest",
              [&context](Call call) { tokenize(context, call); }});
  router.add({"POST", "/detokenize", Access::kKey, Place::kPrepare, "DetokenizeRequest",
              [&context](Call call) { detokenize(context, call); }});
}

}  // namespace server
