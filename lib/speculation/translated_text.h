// A sequence of the model's as a drafter of another vocabulary reads it, and the drafter's guesses as the model's tokens.
//
// The field's name is universal assisted generation; Timor et al., "Accelerating LLM inference with lossless speculative decoding
// for heterogeneous vocabularies" (arXiv 2502.05202), match texts likewise. Guesses are chosen tokens: nothing here can change
// what comes out.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "speculation/draft_tree.h"
#include "speculation/vocabulary_pair.h"

namespace headrace::speculation {

// Of one sequence. Its text's last few hundred bytes at most are encoded again when it goes on; tokens before stand.
class TranslatedText {
 public:
  // The sequence's tokens are these now, all of them at least 0.
  void follow(const VocabularyPair& pair, std::span<const int32_t> model_tokens);

  // The same text in the drafter's tokens, but for an incomplete character at the end.
  std::span<const int32_t> tokens() const { return tokens_; }
  // As many of the drafter's tokens as `count` of the model's are, by the text so far.
  int32_t draft_count(int32_t count) const;
  // What the drafter's tokens would be behind tokens(), did the model's tokens come: none whose text could still go on, and
  // nothing where tokens() would be others.
  std::vector<int32_t> tokens_behind(const VocabularyPair& pair, std::span<const int32_t> model_tokens) const;

  // A drafter's guesses one after the other, in `out` (given empty) as the model's tokens, up to max_guesses: each claims what all of the
  // drafter's tokens that begin in it do. The last one's text could go on, which its claim takes into account.
  void translate(const VocabularyPair& pair, std::span<const DraftNode> chain, int32_t max_guesses,
                 DraftTree& out) const;

 private:
  void restart(const VocabularyPair& pair);
  void push(const VocabularyPair& pair, int32_t model_token, bool first);
  void encode_tail(const VocabularyPair& pair);
  void freeze_front(const VocabularyPair& pair);
  std::vector<int32_t> encode(const VocabularyPair& pair, std::string_view text) const;

  std::vector<int32_t> source_;  // the model's
  std::vector<int32_t> tokens_;  // the drafter's
  size_t num_frozen_ = 0;        // of tokens_, which stand whatever comes
  std::string tail_;             // bytes of the text behind those
  size_t num_pending_ = 0;       // at its end, of an incomplete character
  bool at_origin_ = true;        // the tail begins the text
};

}  // namespace headrace::speculation
