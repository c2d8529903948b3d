// Who guesses the next tokens of sequences. A guess costs time when it is wrong, and never changes what comes out.
#pragma once

#include <compare>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/status.h"
#include "sampling/sampler.h"
#include "speculation/draft_tree.h"
#include "speculation/draft_worth.h"

namespace headrace::speculation {

// One of a request's n texts.
struct SequenceId {
  uint64_t request = 0;
  uint32_t sample = 0;
  auto operator<=>(const SequenceId&) const = default;
};

// A sequence as its drafters see it; valid during the call. Tokens may be below 0 (an image's content) or stand for no text:
// a guess must be a token in [0, vocab_size).
struct DraftContext {
  SequenceId id;
  std::string_view scope;  // what is learned of a sequence serves those of the same scope (tenant and salt) only
  std::span<const int32_t> tokens;  // accepted: prompt, then output. The model has not computed the last one's row yet
  int64_t prompt_size = 0;
  // For drafters that draw: how the model's own distribution will be filtered. Seeds: see drawn tokens below.
  const SamplingParams* sampling = nullptr;
  bool secret = false;  // nothing of the sequence may serve others or outlive it
};

struct DraftRequest {
  DraftContext context;
  int32_t max_nodes = 0;     // at least 1; more are left out
  int32_t max_depth = 0;     // at least 1; deeper nodes are left out
  int32_t max_branches = 1;  // guesses at one token that may be verified; 1: a chain is wanted
  // What cheaper drafters guess, a chain: a drafter whose passes cost about the same for several rows can check it in one.
  std::span<const int32_t> hint = {};
  DraftWorth worth = {};  // when to stop guessing, where a guess takes time
};

// Rows of a sequence that the model has computed and that stand.
struct ObservedRows {
  DraftContext context;  // with the tokens that are accepted now
  int64_t first = 0;     // position of the first of the rows
  int64_t count = 0;     // rows; the rows of rejected guesses are not among them
  const float* hidden =
      nullptr;  // [count, hidden_layers().size(), hidden_size] float32 of the layers asked for, else null
};

// One per scheduler; used by the stepping thread alone.
//
// A chosen token (without a distribution) is accepted where the model's own draw at that position gives it: with the same
// probability as by rejection sampling, and the request's tokens are those of plain decoding, whatever was guessed. A drawn
// token is accepted by rejection sampling against its distribution: the distribution of the text is the model's, but the
// text of a seed depends on the guesses. What a drawn node claims may depend on the tokens before it, not on its own: which guesses
// are verified must not depend on what was drawn. Drawing uses uniform_draw(seed, sample, position, DrawPurpose::kDraft, lane).
class Drafter {
 public:
  virtual ~Drafter() = default;
  // As users name it: "ngram".
  virtual std::string_view name() const = 0;
  // Hidden states of the model that observe() is to be given, ascending: 0 is what enters the first layer, l what leaves the
  // l-th, and the number of layers what its head reads.
  virtual std::span<const int32_t> hidden_layers() const { return {}; }

  // The model computed rows. They follow the last ones of that sequence, unless it was preempted or went back: then
  // positions from `first` on are replaced. Positions that never come were found in the prefix cache.
  virtual Status observe(std::span<const ObservedRows> /*rows*/) { return Status(); }
  // Guesses at the tokens behind context.tokens, for each request a tree (given empty; left empty where there is no guess
  // worth its row). All that guesses in one step comes in one call. A failure ends the drafter's part in these requests, not
  // the requests.
  virtual Status draft(std::span<const DraftRequest> requests, std::span<DraftTree> trees) = 0;
  // The sequence ended with these tokens: what is kept of it may go, or serve its scope.
  virtual void end(const DraftContext& context) = 0;
};

}  // namespace headrace::speculation
