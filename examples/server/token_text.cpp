#include "token_text.h"

#include <cmath>
#include <vector>

namespace server {
namespace {

// JSON has no infinity: what cannot be drawn at all gets the least number OpenAI uses.
double finite(float logprob) { return std::isfinite(logprob) ? logprob : -9999.0; }

// As a client can read it: bytes that are no UTF-8 become U+FFFD when it is written.
std::string spelling(const headrace::Tokenizer& tokenizer, int32_t id) { return tokenizer.bytes(id); }

OrderedJson one(const headrace::Tokenizer& tokenizer, int32_t id, float logprob) {
  const std::string text = spelling(tokenizer, id);
  OrderedJson bytes = OrderedJson::array();
  for (const char byte : text) bytes.push_back(static_cast<unsigned char>(byte));
  return {{"token", text}, {"logprob", finite(logprob)}, {"bytes", std::move(bytes)}};
}

}  // namespace

void add_token_logprobs(OrderedJson& content, const headrace::Tokenizer& tokenizer, const headrace::Event& event) {
  const std::vector<int32_t> tokens = event.tokens();
  const std::vector<float> logprobs = event.logprobs();
  for (size_t i = 0; i < tokens.size() && i < logprobs.size(); ++i) {
    OrderedJson token = one(tokenizer, tokens[i], logprobs[i]);
    token["top_logprobs"] = OrderedJson::array();
    for (const auto& [id, logprob] : event.top_logprobs(i))
      token["top_logprobs"].push_back(one(tokenizer, id, logprob));
    content.push_back(std::move(token));
  }
}

void add_legacy_logprobs(OrderedJson& logprobs, size_t& offset, const headrace::Tokenizer& tokenizer,
                         const headrace::Event& event) {
  const std::vector<int32_t> tokens = event.tokens();
  const std::vector<float> values = event.logprobs();
  for (size_t i = 0; i < tokens.size() && i < values.size(); ++i) {
    const std::string text = spelling(tokenizer, tokens[i]);
    logprobs["tokens"].push_back(text);
    logprobs["token_logprobs"].push_back(finite(values[i]));
    OrderedJson top = OrderedJson::object();
    for (const auto& [id, logprob] : event.top_logprobs(i)) top[spelling(tokenizer, id)] = finite(logprob);
    logprobs["top_logprobs"].push_back(std::move(top));
    logprobs["text_offset"].push_back(offset);
    for (const char byte : text) offset += (static_cast<unsigned char>(byte) & 0xC0) != 0x80;
  }
}

}  // namespace server
