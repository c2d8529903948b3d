#include "text/detokenizer.h"

#include "text/tokenizer_parts.h"

namespace headrace::text {

struct StreamingDetokenizer::State {
  std::shared_ptr<const Tokenizer> tokenizer;
  const TokenizerParts* parts = nullptr;
  bool skip_special = false;
  Decoder::State decoder;
};

StreamingDetokenizer::StreamingDetokenizer(std::shared_ptr<const Tokenizer> tokenizer, bool skip_special)
    : state_(std::make_unique<State>()) {
  state_->parts = tokenizer->parts_.get();
  state_->tokenizer = std::move(tokenizer);
  state_->skip_special = skip_special;
  state_->decoder = state_->parts->decoder.start();
}

StreamingDetokenizer::~StreamingDetokenizer() = default;
StreamingDetokenizer::StreamingDetokenizer(StreamingDetokenizer&&) noexcept = default;
StreamingDetokenizer& StreamingDetokenizer::operator=(StreamingDetokenizer&&) noexcept = default;

std::string StreamingDetokenizer::push(int32_t id) {
  std::string out;
  std::string_view spelling;
  if (decode_spelling(*state_->parts, id, state_->skip_special, spelling)) {
    state_->parts->decoder.push(state_->decoder, spelling, out);
  }
  return out;
}

std::string StreamingDetokenizer::flush() {
  std::string out;
  state_->parts->decoder.finish(state_->decoder, out);
  return out;
}

}  // namespace headrace::text
