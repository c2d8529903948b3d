// Guesses from everything that followed the same tokens before: in the sequence itself, and in the outputs of earlier ones of its
// scope (Oliaro et al. 2024, SuffixDecoding).
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "speculation/drafter.h"
#include "speculation/suffix_automaton.h"

namespace headrace::speculation {

// Gives the most frequent continuations of the longest run that came before, the likeliest guesses first, as long as they are
// likely enough. About a hundred bytes of memory per token kept.
class SuffixDrafter : public Drafter {
 public:
  // Of ended sequences each scope keeps the last max_tokens tokens or half of that, and the last max_scopes scopes are kept.
  explicit SuffixDrafter(int64_t max_tokens = 1 << 16, size_t max_scopes = 64)
      : max_tokens_(max_tokens), max_scopes_(max_scopes) {}

  std::string_view name() const override { return "suffix"; }
  Status draft(std::span<const DraftRequest> requests, std::span<DraftTree> trees) override;
  void end(const DraftContext& context) override;

 private:
  // Outputs in two parts: when the newer one is full it becomes the older one, whose tokens are forgotten.
  struct Learned {
    std::shared_ptr<SuffixAutomaton> newer, older;
    uint64_t last_used = 0;
    int32_t num_texts = 0;
  };
  struct Own {
    SuffixAutomaton automaton;
    size_t num_appended = 0;
  };
  Own& own(const DraftContext& context);

  const int64_t max_tokens_;
  const size_t max_scopes_;
  std::map<SequenceId, Own> sequences_;
  std::map<std::string, Learned, std::less<>> learned_;
  uint64_t clock_ = 0;
};

}  // namespace headrace::speculation
