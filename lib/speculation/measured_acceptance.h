// How often guesses were right: what a drafter claims, corrected by what was measured.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace headrace::speculation {

// Of one drafter, over all sequences: by what it claimed and how deep the guess stood. Old measurements fade.
class MeasuredAcceptance {
 public:
  // Probability that a guess is accepted where the one before it was.
  double estimate(float claimed, int32_t depth) const;
  // The same of the likeliest guess at that depth, before it is made.
  double average(int32_t depth) const;
  void record(float claimed, int32_t depth, bool accepted, bool likeliest = true);

 private:
  static constexpr size_t kClaims = 12, kDepths = 5;
  struct Bin {
    double tried = 0.0, accepted = 0.0;
  };
  static size_t claim_bin(float claimed);
  static size_t depth_bin(int32_t depth);

  std::array<std::array<Bin, kDepths>, kClaims> bins_ = {};
  std::array<Bin, kDepths> likeliest_ = {};
};

// Of one sequence: how much better or worse its guesses fare than estimated.
class SequenceAcceptance {
 public:
  double adjust(double estimate) const;
  void record(double estimate, bool accepted);

 private:
  double estimated_ = 0.0, accepted_ = 0.0;
};

}  // namespace headrace::speculation
