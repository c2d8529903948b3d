#include "speculation/draft_sequences.h"

#include <algorithm>
#include <string>

namespace headrace::speculation {

DraftSequence& DraftSequences::follow(const DraftContext& context) {
  DraftSequence& sequence = sequences_[context.id];
  sequence.round = round_;
  const auto last = static_cast<int64_t>(context.tokens.size()) - 1;
  if (sequence.kv.num_tokens() == 0) {
    sequence.kv = cache_->new_sequence(std::string(context.scope), 0, context.secret);
    cache_->match_prefix(sequence.kv, context.tokens, last);
  } else {
    const int64_t stored = std::min({sequence.kv.num_tokens(), sequence.size(), last});
    const auto end = sequence.tokens.begin() + static_cast<ptrdiff_t>(stored);
    const int64_t common =
        std::mismatch(sequence.tokens.begin(), end, context.tokens.begin()).first - sequence.tokens.begin();
    cache_->rewind(sequence.kv, common);
  }
  sequence.tokens.assign(context.tokens.begin(), context.tokens.end());
  return sequence;
}

bool DraftSequences::reserve(DraftSequence& sequence, int64_t end) {
  for (;;) {
    const Status status = cache_->reserve(sequence.kv, end);
    if (status.ok()) return true;
    if (status.code() != StatusCode::kResourceExhausted) return false;
    // The one that was followed the longest ago starts over when it is followed again.
    DraftSequence* victim = nullptr;
    for (auto& [id, other] : sequences_) {
      if (other.round == round_ || other.kv.block_ids().empty()) continue;
      if (victim == nullptr || other.round < victim->round) victim = &other;
    }
    if (victim == nullptr) return false;
    cache_->release(victim->kv);
  }
}

}  // namespace headrace::speculation
