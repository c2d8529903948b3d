#include "engine/suppressed_tokens.h"

#include <algorithm>
#include <memory>
#include <vector>

namespace headrace::engine {

namespace {

using Words = std::vector<uint32_t>;

void forbid(Words& words, std::span<const int32_t> tokens) {
  for (const int32_t token : tokens) {
    const auto bit = static_cast<uint32_t>(token);
    words[bit / 32] &= ~(1u << (bit % 32));
  }
}

// Which tokens may come first, and which later.
struct Allowed {
  Words first, later;
};

class SuppressedTokens final : public TokenMask {
 public:
  explicit SuppressedTokens(std::shared_ptr<const Allowed> allowed) : allowed_(std::move(allowed)) {}

  bool fill(std::span<uint32_t> words) override {
    std::ranges::copy(here(), words.begin());
    return true;
  }
  bool advance(int32_t token) override {
    if (!mask_allows(here(), token)) return false;
    ++num_tokens_;
    return true;
  }
  void retreat(int32_t num_tokens) override { num_tokens_ -= num_tokens; }

 private:
  const Words& here() const { return num_tokens_ == 0 ? allowed_->first : allowed_->later; }

  std::shared_ptr<const Allowed> allowed_;
  int64_t num_tokens_ = 0;
};

}  // namespace

TokenMaskSource suppress_tokens(std::span<const int32_t> never, std::span<const int32_t> not_first,
                                int32_t vocab_size) {
  if (never.empty() && not_first.empty()) return nullptr;
  const auto allowed = std::make_shared<Allowed>();
  allowed->later.assign(mask_words(vocab_size), ~0u);
  forbid(allowed->later, never);
  allowed->first = allowed->later;
  forbid(allowed->first, not_first);
  return [allowed] { return std::make_unique<SuppressedTokens>(allowed); };
}

}  // namespace headrace::engine
