// Which tokens may come next: a walk through an automaton of the host's, of one sample.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

namespace headrace {

// Words of a set of tokens, one bit each: token t is bit t % 32 of word t / 32.
constexpr size_t mask_words(int32_t vocab_size) { return (static_cast<size_t>(vocab_size) + 31) / 32; }
inline bool mask_allows(std::span<const uint32_t> words, int32_t token) {
  return (words[static_cast<size_t>(token) / 32] >> (static_cast<uint32_t>(token) % 32) & 1u) != 0;
}

// Used by one thread at a time. A place where nothing is allowed fails the request: the automaton allows the end token where
// the text may end.
class TokenMask {
 public:
  virtual ~TokenMask() = default;
  // Sets the bits of the tokens that may come now; the words, mask_words(vocab_size) of them, come zeroed. False: every
  // token may, and the words are not looked at. logits [vocab_size]: of the model for this place, after biases and penalties.
  virtual bool fill(std::span<const float> logits, std::span<uint32_t> words) = 0;
  // The token comes. False where it may not: the walk stands where it stood.
  virtual bool advance(int32_t token) = 0;
  // Takes the last tokens back, no more than came: of guesses that are looked at before the model has seen them.
  virtual void retreat(int32_t num_tokens) = 0;
};

// The start of a walk, for each sample one.
using TokenMaskSource = std::function<std::unique_ptr<TokenMask>()>;

}  // namespace headrace
