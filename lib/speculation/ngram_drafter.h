// Prompt lookup: what followed the last time that the same few tokens came.
#pragma once

#include <cstdint>
#include <map>
#include <unordered_map>

#include "speculation/drafter.h"

namespace headrace::speculation {

// Looks for the last 4, else 3, else 2 tokens, and gives a chain; what shorter ones found elsewhere are short branches beside
// it. A few words of memory per token of a sequence.
class NgramDrafter : public Drafter {
 public:
  static constexpr int64_t kLongest = 4, kShortest = 2;

  std::string_view name() const override { return "ngram"; }
  Status draft(std::span<const DraftRequest> requests, std::span<DraftTree> trees) override;
  void end(const DraftContext& context) override { sequences_.erase(context.id); }

 private:
  struct Index {
    int64_t num_indexed = 0;                      // positions whose token is known as a continuation
    std::unordered_map<uint64_t, int64_t> after;  // of the hash of an n-gram: the position behind its last occurrence
  };
  static void extend(Index& index, std::span<const int32_t> tokens);
  static void continue_from(int64_t at, int32_t length, float confidence, std::span<const int32_t> tokens,
                            DraftTree& tree);

  std::map<SequenceId, Index> sequences_;
};

}  // namespace headrace::speculation
