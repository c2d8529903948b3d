#include "speculation/vocabulary_pair.h"

#include <algorithm>
#include <string>
#include <utility>

#include "text/utf8.h"

namespace headrace::speculation {
namespace {

constexpr text::EncodeOptions kPlain{false, false};
constexpr std::string_view kBlanks = " \t\r\n";

// Runs of white space that files keep among the added tokens are text.
bool is_marker(const text::Tokenizer& tokenizer, int32_t id) {
  return tokenizer.is_added(id) && tokenizer.id_to_token(id).find_first_not_of(kBlanks) != std::string_view::npos;
}

std::optional<int32_t> find(const std::unordered_map<int32_t, int32_t>& map, int32_t id) {
  const auto found = map.find(id);
  return found != map.end() ? std::optional(found->second) : std::nullopt;
}

// Where `from` has an end of a text that `to` lacks.
void map_ends(const text::Tokenizer& from, const text::Tokenizer& to, std::unordered_map<int32_t, int32_t>& map) {
  if (!to.eos_id()) return;
  for (const int32_t id : from.end_of_generation_ids()) map.try_emplace(id, *to.eos_id());
}

}  // namespace

VocabularyPair::VocabularyPair(std::shared_ptr<const text::Tokenizer> model,
                               std::shared_ptr<const text::Tokenizer> draft)
    : model_(std::move(model)), draft_(std::move(draft)) {
  model_bytes_.fill(-1);
  for (int32_t id = 0; id < model_->vocab_size(); ++id) {
    if (is_marker(*model_, id)) {
      const auto same = draft_->token_to_id(model_->id_to_token(id));
      if (!same || !is_marker(*draft_, *same)) continue;
      to_draft_[id] = *same;
      to_model_[*same] = id;
    } else if (const std::string bytes = model_->token_bytes(id); bytes.size() == 1) {
      model_bytes_[static_cast<unsigned char>(bytes[0])] = id;
    }
  }
  map_ends(*model_, *draft_, to_draft_);
  map_ends(*draft_, *model_, to_model_);
  const auto letter = model_->encode("a", kPlain);
  model_puts_space_ = letter.ok() && !letter->empty() && model_->token_bytes(letter->front()).starts_with(' ');
  const auto around = draft_->encode("");
  if (around.ok() && !around->empty() && around->front() == draft_->bos_id()) draft_beginning_ = draft_->bos_id();
}

std::optional<int32_t> VocabularyPair::draft_marker(int32_t model_id) const { return find(to_draft_, model_id); }
std::optional<int32_t> VocabularyPair::model_marker(int32_t draft_id) const { return find(to_model_, draft_id); }

std::vector<int32_t> encode_within(const text::Tokenizer& tokenizer, std::string_view text) {
  if (text.empty()) return {};
  // A character that no piece goes across from stands before it: letters take no white space along, lines no letters.
  const std::string before = kBlanks.find(text.front()) != std::string_view::npos ? "a" : "\n";
  const auto alone = tokenizer.encode(before, kPlain);
  auto both = tokenizer.encode(before + std::string(text), kPlain);
  if (!alone.ok() || !both.ok()) return {};
  if (begins_with(*both, *alone)) return {both->begin() + std::ssize(*alone), both->end()};
  auto plain = tokenizer.encode(text, kPlain);
  return plain.ok() ? plain.take() : std::vector<int32_t>();
}

bool begins_with(std::span<const int32_t> tokens, std::span<const int32_t> front) {
  return tokens.size() >= front.size() && std::ranges::equal(tokens.first(front.size()), front);
}

size_t whole_characters(std::string_view bytes) {
  const size_t invalid = text::utf8_invalid_offset(bytes);
  return invalid == std::string_view::npos ? bytes.size() : invalid;
}

}  // namespace headrace::speculation
