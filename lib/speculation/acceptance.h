// Which of the guesses at one token stands, by rejection sampling: the token that comes is distributed as the target is,
// whatever was guessed (Leviathan et al. 2023; several guesses without replacement as in Li et al. 2024, EAGLE).
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "sampling/philox.h"
#include "sampling/sampler.h"
#include "speculation/draft_tree.h"

namespace headrace::speculation {

struct Guess {
  int32_t token = 0;
  const DraftDistribution* from =
      nullptr;  // that it was drawn from, without its earlier drawn siblings; null: it was chosen
};

struct Verdict {
  int32_t token = 0;
  int32_t guess = -1;  // the one that was accepted; -1: none, the token was drawn from what they leave
};

// Independent numbers, uniform in [0, 1).
using Uniforms = std::function<double(DrawPurpose purpose, uint32_t lane)>;

// Guesses are tried in order: with p what of the target is left and q what the guess was drawn from, it stands with
// probability min(1, p(token) / q(token)) (a chosen one: p(token)); else max(0, p - q) is left, renormalized (p without the
// token). Where rounding leaves nothing, p as it was. `target` has a weight above 0.
Verdict accept(const TokenWeights& target, std::span<const Guess> guesses, const Uniforms& uniform);

}  // namespace headrace::speculation
