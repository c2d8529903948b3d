// Two vocabularies of the same texts: a model's, and that of a drafter which guesses for it.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/tokenizer.h"

namespace headrace::speculation {

// Markers are tokens of the added vocabulary that stand for no text: those of equal spelling mean the same. Immutable; any thread.
class VocabularyPair {
 public:
  // Both not null.
  VocabularyPair(std::shared_ptr<const text::Tokenizer> model, std::shared_ptr<const text::Tokenizer> draft);

  const text::Tokenizer& model() const { return *model_; }
  const text::Tokenizer& draft() const { return *draft_; }

  // The drafter's marker for one of the model's, and the other way. Of ends of a text that only one has, the other's own end.
  // Nothing for tokens of text, and for markers that the other lacks.
  std::optional<int32_t> draft_marker(int32_t model_id) const;
  std::optional<int32_t> model_marker(int32_t draft_id) const;
  // Whether the drafter's token stands for no text.
  bool is_draft_marker(int32_t draft_id) const { return draft_->is_special(draft_id) || model_marker(draft_id); }

  // What the drafter's texts begin with: its beginning of a text, or nothing.
  std::optional<int32_t> draft_beginning() const { return draft_beginning_; }
  // Whether the model's tokens of a text begin with a space that is not the text's.
  bool model_puts_space() const { return model_puts_space_; }
  // The model's token of one byte; -1 where it has none.
  int32_t model_byte(unsigned char byte) const { return model_bytes_[byte]; }

 private:
  std::shared_ptr<const text::Tokenizer> model_, draft_;
  std::unordered_map<int32_t, int32_t> to_draft_, to_model_;
  std::optional<int32_t> draft_beginning_;
  bool model_puts_space_ = false;
  std::array<int32_t, 256> model_bytes_;
};

// Tokens of valid UTF-8 that goes on a text before it: nothing is put before or around it as at the start of a text, and
// spellings of markers are text. Nothing where it can't be encoded.
std::vector<int32_t> encode_within(const text::Tokenizer& tokenizer, std::string_view text);

bool begins_with(std::span<const int32_t> tokens, std::span<const int32_t> front);

// Bytes at the front that are whole characters.
size_t whole_characters(std::string_view bytes);

}  // namespace headrace::speculation
