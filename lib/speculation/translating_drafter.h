// A drafter of another vocabulary guesses: it reads the sequences' text in its own tokens, and the text of its guesses is the
// model's tokens.
#pragma once

#include <map>
#include <memory>
#include <string_view>

#include "speculation/drafter.h"
#include "speculation/translated_text.h"
#include "speculation/vocabulary_pair.h"

namespace headrace::speculation {

// Guesses are chains. The number that the model draws with says nothing of another vocabulary's tokens, and penalties are of the
// model's: it guesses the likeliest, whatever the request's sampling. Sequences with content that is no text get no guesses.
class TranslatingDrafter : public Drafter {
 public:
  // drafter: sees no hidden states, and is given requests of the drafter's vocabulary.
  TranslatingDrafter(std::unique_ptr<Drafter> drafter, VocabularyPair pair);

  std::string_view name() const override { return drafter_->name(); }
  Status draft(std::span<const DraftRequest> requests, std::span<DraftTree> trees) override;
  void end(const DraftContext& context) override;

 private:
  const std::unique_ptr<Drafter> drafter_;
  const VocabularyPair pair_;
  std::map<SequenceId, TranslatedText> texts_;
};

}  // namespace headrace::speculation
