#include "speculation/translating_drafter.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace headrace::speculation {
namespace {

// The context with its tokens in the drafter's vocabulary.
DraftContext context_of(DraftContext context, const TranslatedText& text) {
  context.tokens = text.tokens();
  context.prompt_size = static_cast<int64_t>(context.tokens.size());
  context.sampling = nullptr;
  return context;
}

}  // namespace

TranslatingDrafter::TranslatingDrafter(std::unique_ptr<Drafter> drafter, VocabularyPair pair)
    : drafter_(std::move(drafter)), pair_(std::move(pair)) {}

Status TranslatingDrafter::draft(std::span<const DraftRequest> requests, std::span<DraftTree> trees) {
  std::vector<DraftRequest> asked;
  std::vector<size_t> asking;  // of requests
  std::vector<std::vector<int32_t>> hints(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    const DraftRequest& request = requests[i];
    if (std::ranges::any_of(request.context.tokens, [](int32_t id) { return id < 0; })) continue;
    TranslatedText& text = texts_[request.context.id];
    text.follow(pair_, request.context.tokens);
    if (text.tokens().empty()) continue;
    DraftRequest own = request;
    own.context = context_of(request.context, text);
    own.max_nodes = own.max_depth = text.draft_count(std::min(request.max_nodes, request.max_depth));
    own.max_branches = 1;
    if (!request.hint.empty()) hints[i] = text.tokens_behind(pair_, request.hint);
    own.hint = hints[i];
    asked.push_back(own);
    asking.push_back(i);
  }
  if (asked.empty()) return {};
  std::vector<DraftTree> given(asked.size());
  HEADRACE_RETURN_IF_ERROR(drafter_->draft(asked, given));
  for (size_t i = 0; i < asking.size(); ++i) {
    const DraftRequest& request = requests[asking[i]];
    texts_[request.context.id].translate(pair_, given[i].nodes(), std::min(request.max_nodes, request.max_depth),
                                         trees[asking[i]]);
  }
  return {};
}

void TranslatingDrafter::end(const DraftContext& context) {
  const auto text = texts_.find(context.id);
  if (text == texts_.end()) return;
  drafter_->end(context_of(context, text->second));
  texts_.erase(text);
}

}  // namespace headrace::speculation
