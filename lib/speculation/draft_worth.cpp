#include "speculation/draft_worth.h"

#include <algorithm>

namespace headrace::speculation {

DraftWorth::DraftWorth(const MeasuredAcceptance& acceptance, const SequenceAcceptance& sequence, double plain_ns,
                       double guess_ns, int32_t max_depth)
    : acceptance_(&acceptance), sequence_(&sequence), plain_ns_(plain_ns), guess_ns_(guess_ns) {
  double survival = 1.0, tokens = 1.0, ns = plain_ns, best = tokens / ns;
  for (int32_t depth = 1; depth <= max_depth; ++depth) {
    survival *= sequence.adjust(acceptance.average(depth));
    tokens += survival;
    ns += guess_ns;
    if (tokens / ns <= best) break;  // as survival only falls, no longer chain is better
    best = tokens / ns;
  }
  least_survival_ = best * guess_ns;
}

double DraftWorth::confidence(float claimed, int32_t depth) const {
  if (acceptance_ == nullptr) return std::clamp<double>(claimed, 0.0, 1.0);
  return sequence_->adjust(acceptance_->estimate(claimed, depth));
}

double DraftWorth::gain_ns(double most_guesses) const {
  double survival = 1.0, gain = 0.0, best = 0.0;
  for (int32_t depth = 1; static_cast<double>(depth) <= most_guesses && pays(survival, depth); ++depth) {
    survival *= sequence_->adjust(acceptance_->average(depth));
    gain += survival * plain_ns_ - guess_ns_;
    best = std::max(best, gain);
  }
  return best;
}

bool DraftWorth::pays(double survival, int32_t depth) const {
  return acceptance_ == nullptr || survival * sequence_->adjust(acceptance_->average(depth)) >= least_survival_;
}

}  // namespace headrace::speculation
