#include "speculation/translated_text.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "text/utf8.h"

namespace headrace::speculation {
namespace {

// Bytes that are encoded again with what follows, and how many of them are left when the tail was longer: words are shorter.
constexpr size_t kMostTail = 384, kKeptTail = 96;
// That a guess which ends where the drafter's guesses do is a token of the model, and not the beginning of one.
constexpr float kEndsThere = 0.75f;

// Bytes at the end that more bytes could complete to a character.
size_t incomplete_end(std::string_view bytes) {
  for (size_t n = std::min<size_t>(bytes.size(), 3); n > 0; --n) {
    const text::Utf8Step step = text::utf8_step(bytes.substr(bytes.size() - n));
    if (step.kind == text::Utf8Step::Kind::kIncomplete && step.size == n) return n;
  }
  return 0;
}

bool begins_character(char byte) { return (static_cast<unsigned char>(byte) & 0xC0u) != 0x80u; }

}  // namespace

void TranslatedText::restart(const VocabularyPair& pair) {
  *this = TranslatedText();
  if (pair.draft_beginning()) tokens_.push_back(*pair.draft_beginning());
  num_frozen_ = tokens_.size();
}

void TranslatedText::follow(const VocabularyPair& pair, std::span<const int32_t> model_tokens) {
  if (source_.empty() || !begins_with(model_tokens, source_)) restart(pair);
  const size_t known = source_.size();
  if (known == model_tokens.size()) return;
  for (size_t i = known; i < model_tokens.size(); ++i) push(pair, model_tokens[i], i == 0);
  source_.insert(source_.end(), model_tokens.begin() + static_cast<ptrdiff_t>(known), model_tokens.end());
  encode_tail(pair);
}

void TranslatedText::push(const VocabularyPair& pair, int32_t model_token, bool first) {
  const auto marker = pair.draft_marker(model_token);
  if (!marker) {
    // The model's beginning of a text is not the drafter's, which is there already.
    if (first && pair.model().bos_id() == model_token) return;
    const std::string bytes = pair.model().token_bytes(model_token);
    const bool puts_space = at_origin_ && tail_.empty() && pair.model_puts_space() && bytes.starts_with(' ');
    tail_.append(bytes, puts_space ? 1 : 0);
    return;
  }
  if (!tail_.empty()) encode_tail(pair);
  if (!(first && pair.draft_beginning() == *marker)) tokens_.push_back(*marker);
  num_frozen_ = tokens_.size();
  tail_.clear();
  num_pending_ = 0;
  at_origin_ = false;
}

std::vector<int32_t> TranslatedText::encode(const VocabularyPair& pair, std::string_view text) const {
  std::string valid;
  text::utf8_append_sanitized(valid, text);
  if (!at_origin_) return encode_within(pair.draft(), valid);
  auto ids = pair.draft().encode(valid, {false, false});
  return ids.ok() ? ids.take() : std::vector<int32_t>();
}

void TranslatedText::encode_tail(const VocabularyPair& pair) {
  num_pending_ = incomplete_end(tail_);
  tokens_.resize(num_frozen_);
  const auto ids = encode(pair, std::string_view(tail_).substr(0, tail_.size() - num_pending_));
  tokens_.insert(tokens_.end(), ids.begin(), ids.end());
  if (tail_.size() > kMostTail) freeze_front(pair);
}

// The tokens before the last space that far back stand from here on, or before another border of tokens where there is none.
void TranslatedText::freeze_front(const VocabularyPair& pair) {
  const size_t end = tail_.size() - num_pending_;
  size_t at = 0, count = num_frozen_;
  std::pair<size_t, size_t> any{}, blank{};  // offset in the tail, and the tokens before it
  for (; count < tokens_.size(); ++count) {
    if (at > 0 && at + kKeptTail <= end && begins_character(tail_[at])) {
      any = {at, count};
      if (tail_[at] == ' ' && tail_[at - 1] != ' ') blank = any;
    }
    std::string bytes = pair.draft().token_bytes(tokens_[count]);
    if (at_origin_ && at == 0 && bytes.starts_with(' ') && !tail_.starts_with(' ')) bytes.erase(0, 1);
    if (tail_.compare(at, bytes.size(), bytes) != 0) break;
    at += bytes.size();
  }
  std::pair<size_t, size_t> front = blank.first > 0 ? blank : any;
  // Tokens that don't spell the text: all of them stand.
  if (front.first == 0) front = {end, tokens_.size()};
  tail_.erase(0, front.first);
  num_frozen_ = front.second;
  at_origin_ = false;
}

int32_t TranslatedText::draft_count(int32_t count) const {
  const double each = static_cast<double>(tokens_.size()) / static_cast<double>(std::max<size_t>(source_.size(), 1));
  return 1 + static_cast<int32_t>(std::ceil(std::clamp(each, 0.25, 4.0) * count));
}

std::vector<int32_t> TranslatedText::tokens_behind(const VocabularyPair& pair,
                                                   std::span<const int32_t> model_tokens) const {
  std::string text = tail_;
  for (const int32_t id : model_tokens) {
    if (pair.draft_marker(id)) break;
    text += pair.model().token_bytes(id);
  }
  std::vector<int32_t> ids = encode(pair, std::string_view(text).substr(0, text.size() - incomplete_end(text)));
  const std::span<const int32_t> now = std::span(tokens_).subspan(num_frozen_);
  if (num_pending_ > 0 || ids.size() <= now.size() || !begins_with(ids, now)) return {};
  return {ids.begin() + std::ssize(now), ids.end() - 1};
}

void TranslatedText::translate(const VocabularyPair& pair, std::span<const DraftNode> chain, int32_t max_guesses,
                               DraftTree& out) const {
  std::string bytes;
  std::vector<std::pair<size_t, float>> claims;  // of the drafter's tokens: where they begin
  std::optional<std::pair<int32_t, float>> marker;
  for (const DraftNode& node : chain) {
    if (pair.is_draft_marker(node.token)) {
      if (const auto id = pair.model_marker(node.token)) marker = {*id, node.claimed};
      break;
    }
    claims.emplace_back(bytes.size(), node.claimed);
    bytes += pair.draft().token_bytes(node.token);
  }
  // The model's tokens reach into a character whose rest is to come.
  const std::string_view pending = std::string_view(tail_).substr(tail_.size() - num_pending_);
  if (!bytes.starts_with(pending)) return;
  int32_t parent = -1;
  size_t at = pending.size(), claim = 0;
  const auto add = [&](int32_t token, size_t end, bool may_go_on) {
    float claimed = may_go_on ? kEndsThere : 1.0f;
    for (; claim < claims.size() && claims[claim].first < end; ++claim) claimed *= claims[claim].second;
    parent = out.add(parent, token, claimed);
    at = end;
    return out.size() < max_guesses;
  };
  while (at < bytes.size() && !begins_character(bytes[at])) {
    const int32_t token = pair.model_byte(static_cast<unsigned char>(bytes[at]));
    if (token < 0 || !add(token, at + 1, false)) return;
  }
  const size_t end = at + whole_characters(std::string_view(bytes).substr(at));
  for (const int32_t token : encode_within(pair.model(), std::string_view(bytes).substr(at, end - at))) {
    const std::string spelled = pair.model().token_bytes(token);
    if (spelled.empty() || bytes.compare(at, spelled.size(), spelled) != 0) return;
    const size_t next = at + spelled.size();
    if (!add(token, next, next == bytes.size() && !marker)) return;
  }
  if (marker && at == bytes.size()) out.add(parent, marker->first, marker->second);
}

}  // namespace headrace::speculation
