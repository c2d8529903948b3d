// When one more guess of a chain pays, for drafters whose guessing takes time.
#pragma once

#include <cstdint>

#include "speculation/measured_acceptance.h"

namespace headrace::speculation {

// Of one sequence in one step. A step takes plain_ns for the token that it gives, and each guess guess_ns more; a chain of k guesses
// that come with probabilities s_1 >= s_2 ... gives (1 + s_1 + .. + s_k) tokens in plain_ns + k guess_ns. The k that makes the
// most of that, by averages, says what the last guess must be worth; whether a further one is follows from those before it.
class DraftWorth {
 public:
  // Every guess pays.
  DraftWorth() = default;
  // acceptance: of the drafter, sequence: of the sequence's guesses by it; both outlive this. plain_ns > 0.
  DraftWorth(const MeasuredAcceptance& acceptance, const SequenceAcceptance& sequence, double plain_ns, double guess_ns,
             int32_t max_depth);

  // Probability that a guess comes where the one before it came: the drafter's claim as far as measurements bear it out.
  double confidence(float claimed, int32_t depth) const;
  // Whether to guess a token at `depth` behind guesses that come with probability `survival`.
  bool pays(double survival, int32_t depth) const;
  // What average guesses win over a step without, nanoseconds, where the drafter makes at most so many; 0 where none does.
  double gain_ns(double most_guesses) const;

 private:
  const MeasuredAcceptance* acceptance_ = nullptr;  // null: every guess pays
  const SequenceAcceptance* sequence_ = nullptr;
  double plain_ns_ = 0.0, guess_ns_ = 0.0, least_survival_ = 0.0;
};

}  // namespace headrace::speculation
