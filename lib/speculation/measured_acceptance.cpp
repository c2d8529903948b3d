#include "speculation/measured_acceptance.h"

#include <algorithm>
#include <bit>

namespace headrace::speculation {
namespace {

constexpr double kClaimWeight = 4.0;     // what a claim counts for, in measurements
constexpr double kUnmeasured = 0.75;     // a guess's chance where nothing is known
constexpr double kKeep = 0.99;           // of the weight of earlier measurements of a bin
constexpr double kSequenceWeight = 2.0;  // what the estimate counts for beside a sequence's own guesses
constexpr double kSequenceKeep = 0.9;

}  // namespace

size_t MeasuredAcceptance::claim_bin(float claimed) {
  const double clamped = std::clamp<double>(claimed, 0.0, 1.0);
  return std::min(static_cast<size_t>(clamped * static_cast<double>(kClaims)), kClaims - 1);
}

// 1, 2, 3-4, 5-8, more.
size_t MeasuredAcceptance::depth_bin(int32_t depth) {
  return std::min(static_cast<size_t>(std::bit_width(static_cast<uint32_t>(std::max(depth - 1, 0)))), kDepths - 1);
}

double MeasuredAcceptance::estimate(float claimed, int32_t depth) const {
  const auto& bins = bins_[claim_bin(claimed)];
  // Where nothing was measured so deep, the next less deep bin speaks.
  double value = std::clamp<double>(claimed, 0.0, 1.0);
  for (size_t d = 0; d <= depth_bin(depth); ++d) {
    value = (bins[d].accepted + kClaimWeight * value) / (bins[d].tried + kClaimWeight);
  }
  return value;
}

double MeasuredAcceptance::average(int32_t depth) const {
  double value = kUnmeasured;
  for (size_t d = 0; d <= depth_bin(depth); ++d) {
    value = (likeliest_[d].accepted + kClaimWeight * value) / (likeliest_[d].tried + kClaimWeight);
  }
  return value;
}

void MeasuredAcceptance::record(float claimed, int32_t depth, bool accepted, bool likeliest) {
  const auto add = [accepted](Bin& bin) {
    bin.tried = kKeep * bin.tried + 1.0;
    bin.accepted = kKeep * bin.accepted + (accepted ? 1.0 : 0.0);
  };
  add(bins_[claim_bin(claimed)][depth_bin(depth)]);
  if (likeliest) add(likeliest_[depth_bin(depth)]);
}

double SequenceAcceptance::adjust(double estimate) const {
  // Right guesses make the next one likelier, wrong ones less likely: odds are scaled by those of the sequence.
  const double ratio = (accepted_ + kSequenceWeight) / (estimated_ + kSequenceWeight);
  if (ratio <= 1.0) return estimate * ratio;
  return 1.0 - (1.0 - estimate) / ratio;
}

void SequenceAcceptance::record(double estimate, bool accepted) {
  estimated_ = kSequenceKeep * estimated_ + estimate;
  accepted_ = kSequenceKeep * accepted_ + (accepted ? 1.0 : 0.0);
}

}  // namespace headrace::speculation
