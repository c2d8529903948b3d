#include "text/added_vocabulary.h"

#include <algorithm>

#include "text/unicode.h"
#include "text/utf8.h"

namespace headrace::text {
namespace {

char32_t char_before(std::string_view text, size_t end, size_t& begin) {
  begin = end - 1;
  while (begin > 0 && (static_cast<uint8_t>(text[begin]) & 0xC0) == 0x80) --begin;
  size_t size = 0;
  return utf8_at(text, begin, size);
}

bool word_before(std::string_view text, size_t at) {
  size_t begin = 0;
  return at > 0 && is_word(char_before(text, at, begin));
}

bool word_after(std::string_view text, size_t at) {
  size_t size = 0;
  return at < text.size() && is_word(utf8_at(text, at, size));
}

}  // namespace

bool AddedToken::is_blank() const {
  if (special || single_word || lstrip || rstrip) return false;
  for (size_t at = 0, size = 0; at < content.size(); at += size) {
    const char32_t c = utf8_at(content, at, size);
    if (!is_whitespace(c) && c != U'\u2581') return false;  // U+2581: how SentencePiece writes a space
  }
  return !content.empty();
}

Result<AddedVocabulary> AddedVocabulary::create(std::vector<AddedToken> tokens, const Vocabulary& vocabulary,
                                                const Normalizer* normalizer) {
  AddedVocabulary added;
  const auto model_size = static_cast<int32_t>(vocabulary.size());
  int32_t next_id = model_size;
  size_t place = 0;
  for (AddedToken& token : tokens) {
    const size_t index_in_file = place++;
    if (token.content.empty()) continue;
    if (const auto again = added.index_.find(token.content)) {
      token.id = *again;
    } else if (const auto known = vocabulary.find(token.content)) {
      token.id = *known;
    } else {
      if (next_id > kMaxTokenId) {
        return malformed(fmt::format("/added_tokens/{}", index_in_file), "more than {} tokens", kMaxTokenId);
      }
      token.id = next_id++;
    }
    added.index_.add(token.content, token.id);
    std::string spelling;
    if (token.normalized && normalizer != nullptr) {
      NormalizedText text{token.content, true};
      HEADRACE_RETURN_IF_ERROR(normalizer->apply(text));
      if (text.text != token.content) spelling = std::move(text.text);
    }
    if (token.special) added.special_spellings_.add(token.content, 0);
    const auto id = static_cast<size_t>(token.id);
    if (id >= added.by_id_.size()) {
      added.by_id_.resize(id + 1, -1);
      added.ids_.resize(id + 1, false);
      added.special_ids_.resize(id + 1, false);
      added.marker_ids_.resize(id + 1, false);
    }
    added.ids_[id] = true;
    added.special_ids_[id] = token.special;
    added.marker_ids_[id] = !token.is_blank();
    if (added.by_id_[id] < 0) {
      added.by_id_[id] = static_cast<int32_t>(added.tokens_.size());
      added.tokens_.push_back(std::move(token));
      added.normalized_.push_back(std::move(spelling));
    } else {
      const auto index = static_cast<size_t>(added.by_id_[id]);
      added.tokens_[index] = std::move(token);
      added.normalized_[index] = std::move(spelling);
    }
  }
  std::vector<Trie::Key> keys[2], blank_keys[2];
  for (size_t i = 0; i < added.tokens_.size(); ++i) {
    const AddedToken& token = added.tokens_[i];
    const std::string& spelling = added.normalized_[i].empty() ? token.content : added.normalized_[i];
    keys[token.normalized].emplace_back(spelling, static_cast<int32_t>(i));
    if (token.is_blank()) blank_keys[token.normalized].emplace_back(spelling, static_cast<int32_t>(i));
  }
  for (int normalized : {0, 1}) {
    added.tries_[normalized] = Trie(std::move(keys[normalized]));
    added.blank_tries_[normalized] = Trie(std::move(blank_keys[normalized]));
  }
  return added;
}

std::string_view AddedVocabulary::decode_spelling(int32_t id) const {
  if (!contains(id)) return {};
  const auto index = static_cast<size_t>(by_id_[static_cast<size_t>(id)]);
  return normalized_[index].empty() ? tokens_[index].content : normalized_[index];
}

std::vector<AddedMatch> AddedVocabulary::find(std::string_view text, bool normalized,
                                              std::span<const AllowedRange> allowed) const {
  std::vector<AddedMatch> out;
  if (text.empty()) return out;
  const Trie& trie = tries_[normalized];
  const Trie& blanks = blank_tries_[normalized];
  size_t written = 0;  // end of the stretches in `out`
  size_t range = 0;    // the first that ends behind `at`
  for (size_t at = 0; at < text.size();) {
    while (range < allowed.size() && allowed[range].end <= at) ++range;
    const bool inside = range < allowed.size() && allowed[range].begin <= at && !trie.empty();
    if (!inside && blanks.empty()) {
      if (range == allowed.size() || trie.empty()) break;
      at = allowed[range].begin;
      continue;
    }
    int32_t best = -1;
    size_t best_end = at;
    const auto longest = [&](const Trie& among, size_t limit) {
      uint32_t node = Trie::kRoot;
      for (size_t end = at; end < limit;) {
        node = among.step(node, static_cast<uint8_t>(text[end++]));
        if (node == Trie::kNone) break;
        if (among.value(node) >= 0 && end > best_end) best = among.value(node), best_end = end;
      }
    };
    if (inside) longest(trie, allowed[range].end);
    if (!blanks.empty()) longest(blanks, text.size());
    if (best < 0) {
      ++at;
      continue;
    }
    size_t begin = at, end = best_end;
    at = best_end;
    const AddedToken& token = tokens_[static_cast<size_t>(best)];
    if (token.single_word && (word_before(text, begin) || word_after(text, end))) continue;
    if (token.lstrip) {
      while (begin > written) {
        size_t before = 0;
        if (!is_whitespace(char_before(text, begin, before))) break;
        begin = before;
      }
      begin = std::max(begin, written);
    }
    if (token.rstrip) {
      for (size_t size = 0; end < text.size(); end += size) {
        if (!is_whitespace(utf8_at(text, end, size))) break;
      }
    }
    if (written < begin) out.push_back({written, begin, -1});
    out.push_back({begin, end, token.id});
    written = end;
  }
  if (written < text.size()) out.push_back({written, text.size(), -1});
  return out;
}

}  // namespace headrace::text
