// POST /tokenize and /detokenize
#include "chat_messages.h"
#include "context.h"
#include "sampling_fields.h"

namespace server {
namespace {

void tokenize(Context& context, const Call& call) {
  const Json& body = call.body;
  context.served.find(text_field(body, "model", context.served.name()));
  const headrace::Tokenizer& tokenizer = context.served.tokenizer();
  const Json *prompt = find_field(body, "prompt"), *messages = find_field(body, "messages");
  if ((prompt == nullptr) == (messages == nullptr)) throw ApiError(400, "give one of prompt and messages", "prompt");
  std::vector<int32_t> tokens;
  if (prompt != nullptr) {
    tokens =
        tokenizer.encode(prompt->get_ref<const std::string&>(), true, flag_field(body, "add_special_tokens", true));
  } else {
    if (!context.served.model().has_chat_template()) throw ApiError(400, "the model has no chat template", "messages");
    headrace::RenderArguments arguments;
    arguments.messages = dump(read_messages(*messages, context.served).messages);
    arguments.add_generation_prompt = flag_field(body, "add_generation_prompt", true);
    if (const Json* variables = find_field(body, "chat_template_kwargs")) arguments.variables = variables->dump();
    tokens = tokenizer.encode(headrace::ChatTemplate(context.served.model()).render(arguments));
  }
  call.reply({{"count", tokens.size()}, {"max_model_len", context.served.context()}, {"tokens", tokens}});
}

void detokenize(Context& context, const Call& call) {
  context.served.find(text_field(call.body, "model", context.served.name()));
  const auto tokens = call.body.at("tokens").get<std::vector<int32_t>>();
  call.reply({{"prompt", context.served.tokenizer().decode(tokens)}});
}

}  // namespace

void add_tokenize(Router& router, Context& context) {
  router.add({"POST", "/tokenize", Access::kKey, Place::kPrepare, "TokenizeRequest",
              [&context](Call call) { tokenize(context, call); }});
  router.add({"POST", "/detokenize", Access::kKey, Place::kPrepare, "DetokenizeRequest",
              [&context](Call call) { detokenize(context, call); }});
}

}  // namespace server
