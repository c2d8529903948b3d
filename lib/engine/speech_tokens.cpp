#include "engine/speech_tokens.h"

#include <algorithm>
#include <cmath>

#include "sampling/portable_exp.h"

namespace headrace::engine {

namespace {

using Words = std::span<uint32_t>;

constexpr int32_t kAll = std::numeric_limits<int32_t>::max();

struct Range {
  int32_t begin = 0, end = 0;
};

void forbid(Words words, int32_t token) {
  const auto bit = static_cast<uint32_t>(token);
  words[bit / 32] &= ~(1u << (bit % 32));
}

void forbid(Words words, Range range) {
  const auto size = static_cast<int32_t>(words.size() * 32);
  int32_t token = std::max(range.begin, 0);
  const int32_t end = std::min(range.end, size);
  while (token < end) {
    if (token % 32 == 0 && end - token >= 32) {
      words[static_cast<size_t>(token) / 32] = 0;
      token += 32;
    } else {
      forbid(words, token++);
    }
  }
}

// Whether the times that the words allow are together likelier than any other token that they allow.
bool times_prevail(std::span<const float> logits, std::span<const uint32_t> words, int32_t zero) {
  const auto allowed = [&](size_t id) { return mask_allows(words, static_cast<int32_t>(id)); };
  const auto first_time = static_cast<size_t>(zero);
  float other = -INFINITY, highest = -INFINITY;
  for (size_t id = 0; id < logits.size(); ++id) {
    if (!allowed(id)) continue;
    highest = std::max(highest, logits[id]);
    if (id < first_time) other = highest;
  }
  if (!std::isfinite(highest)) return false;
  const auto weight = [&](float logit) {
    return portable_exp(static_cast<double>(logit) - static_cast<double>(highest));
  };
  double times = 0;
  for (size_t id = first_time; id < logits.size(); ++id) times += allowed(id) ? weight(logits[id]) : 0.0;
  return times > weight(other);
}

class SpeechMask final : public TokenMask {
 public:
  SpeechMask(std::shared_ptr<const SpeechTokens> tokens, std::unique_ptr<TokenMask> host)
      : tokens_(std::move(tokens)), host_(std::move(host)) {}

  bool fill(std::span<const float> logits, Words words) override {
    const std::vector<uint32_t>& own = here();
    if (host_ != nullptr && host_->fill(logits, words)) {
      for (size_t i = 0; i < words.size(); ++i) words[i] &= own[i];
    } else {
      std::ranges::copy(own, words.begin());
    }
    if (!tokens_->times) return true;
    const int32_t zero = tokens_->times->zero;
    for (const Range& range : forbidden()) forbid(words, range);
    if (times_prevail(logits, words, zero)) forbid(words, {0, zero});
    return true;
  }

  bool advance(int32_t token) override {
    if (!mask_allows(here(), token)) return false;
    for (const Range& range : forbidden()) {
      if (token >= range.begin && token < range.end) return false;
    }
    if (host_ != nullptr && !host_->advance(token)) return false;
    said_.push_back(token);
    return true;
  }

  void retreat(int32_t num_tokens) override {
    if (host_ != nullptr) host_->retreat(num_tokens);
    said_.resize(said_.size() - static_cast<size_t>(num_tokens));
  }

 private:
  const std::vector<uint32_t>& here() const { return said_.empty() ? tokens_->first : tokens_->later; }

  // What the order of times forbids, whatever the model makes of it.
  std::vector<Range> forbidden() const {
    if (!tokens_->times) return {};
    const TimeTokens& times = *tokens_->times;
    std::vector<Range> out = {{times.zero - 1, times.zero}};
    if (said_.empty()) {
      out.push_back({0, times.zero});
      if (times.last_initial != kAll) out.push_back({times.last_initial + 1, kAll});
      return out;
    }
    const auto is_time = [&](int32_t token) { return token >= times.zero; };
    const bool last = is_time(said_.back());
    const bool before = said_.size() < 2 || is_time(said_[said_.size() - 2]);
    if (last) out.push_back(before ? Range{times.zero, kAll} : Range{0, times.end_of_text});
    const auto latest = std::find_if(said_.rbegin(), said_.rend(), is_time);
    if (latest != said_.rend()) out.push_back({times.zero, *latest + (last && !before ? 0 : 1)});
    return out;
  }

  const std::shared_ptr<const SpeechTokens> tokens_;
  const std::unique_ptr<TokenMask> host_;
  std::vector<int32_t> said_;
};

}  // namespace

SpeechTokens suppress_tokens(std::span<const int32_t> never, std::span<const int32_t> not_first, int32_t vocab_size) {
  SpeechTokens out;
  out.later.assign(mask_words(vocab_size), ~0u);
  for (const int32_t token : never) forbid(out.later, token);
  out.first = out.later;
  for (const int32_t token : not_first) forbid(out.first, token);
  return out;
}

SpeechTokens only_tokens(std::span<const int32_t> tokens, int32_t vocab_size) {
  SpeechTokens out;
  out.first.assign(mask_words(vocab_size), 0);
  for (const int32_t token : tokens) out.first[static_cast<size_t>(token) / 32] |= 1u << (token % 32);
  out.later = out.first;
  return out;
}

std::unique_ptr<TokenMask> speech_mask(std::shared_ptr<const SpeechTokens> tokens, std::unique_ptr<TokenMask> host) {
  return std::make_unique<SpeechMask>(std::move(tokens), std::move(host));
}

}  // namespace headrace::engine
