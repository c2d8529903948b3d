#include "text/vocabulary.h"

#include "base/hash.h"

namespace headrace::text {

void Vocabulary::reserve(size_t tokens, size_t bytes) {
  arena_.reserve(bytes);
  entries_.reserve(tokens);
  by_id_.reserve(tokens);
  size_t slots = 16;
  while (slots * 2 < tokens * 3) slots *= 2;
  if (slots > slots_.size()) grow(slots);
}

void Vocabulary::grow(size_t slots) {
  slots_.assign(slots, Slot{});
  const size_t mask = slots - 1;
  for (size_t i = 0; i < entries_.size(); ++i) {
    const std::string_view text = spelling(entries_[i]);
    const uint64_t hash = hash64(text.data(), text.size());
    size_t at = hash & mask;
    while (slots_[at].entry != 0) at = (at + 1) & mask;
    slots_[at] = {static_cast<uint32_t>(hash >> 32), static_cast<uint32_t>(i + 1)};
  }
}

void Vocabulary::add(std::string_view token, int32_t id) {
  if (slots_.size() * 2 < (entries_.size() + 1) * 3) grow(slots_.empty() ? 16 : slots_.size() * 2);
  const uint64_t hash = hash64(token.data(), token.size());
  const auto tag = static_cast<uint32_t>(hash >> 32);
  const size_t mask = slots_.size() - 1;
  size_t at = hash & mask;
  while (slots_[at].entry != 0 && !(slots_[at].tag == tag && spelling(entries_[slots_[at].entry - 1]) == token)) {
    at = (at + 1) & mask;
  }
  if (slots_[at].entry == 0) {
    entries_.push_back({arena_.size(), static_cast<uint32_t>(token.size()), id});
    arena_.append(token);
    slots_[at] = {tag, static_cast<uint32_t>(entries_.size())};
  } else {
    entries_[slots_[at].entry - 1].id = id;
  }
  const auto index = static_cast<size_t>(id);
  if (index >= by_id_.size()) by_id_.resize(index + 1, 0);
  by_id_[index] = slots_[at].entry;
}

std::optional<int32_t> Vocabulary::find(std::string_view token) const {
  if (slots_.empty()) return std::nullopt;
  const uint64_t hash = hash64(token.data(), token.size());
  const auto tag = static_cast<uint32_t>(hash >> 32);
  const size_t mask = slots_.size() - 1;
  for (size_t at = hash & mask; slots_[at].entry != 0; at = (at + 1) & mask) {
    if (slots_[at].tag != tag) continue;
    const Entry& entry = entries_[slots_[at].entry - 1];
    if (spelling(entry) == token) return entry.id;
  }
  return std::nullopt;
}

bool Vocabulary::has(int32_t id) const {
  return id >= 0 && static_cast<size_t>(id) < by_id_.size() && by_id_[static_cast<size_t>(id)] != 0;
}

std::string_view Vocabulary::token(int32_t id) const {
  if (!has(id)) return {};
  return spelling(entries_[by_id_[static_cast<size_t>(id)] - 1]);
}

}  // namespace headrace::text
