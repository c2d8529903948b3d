#include "speculation/draft_sequences.h"

#include <algorithm>
#include <string>
#include <utility>

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
  return reserve_room(*cache_, sequences_, round_, sequence.kv, end);
}

BegunSequence begin_at(KvCache& cache, const DraftContext& context, std::string salt, std::span<const int32_t> tokens,
                       int64_t first) {
  BegunSequence out{cache.new_sequence(salt, 0, context.secret)};
  if (cache.match_prefix(out.kv, tokens, first) == first) return out;
  // Values of rows that see nothing of the front are no others'.
  salt +=
      '\0' + std::to_string(context.id.request) + '.' + std::to_string(context.id.sample) + '.' + std::to_string(first);
  return {cache.new_sequence(std::move(salt), 0, context.secret), first};
}

bool is_readable(std::span<const int32_t> tokens, int64_t longest, int32_t vocab_size) {
  return static_cast<int64_t>(tokens.size()) <= longest &&
         std::ranges::all_of(tokens, [&](int32_t id) { return id >= 0 && id < vocab_size; });
}

}  // namespace headrace::speculation
