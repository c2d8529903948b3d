#include "engine/model_drafters.h"

#include <algorithm>
#include <mutex>
#include <string>
#include <utility>

#include "engine/model_executor.h"
#include "engine/runtime.h"
#include "model/dflash_head.h"
#include "model/eagle3_head.h"
#include "model/fused_head.h"
#include "model/medusa_heads.h"
#include "model/model_header.h"
#include "speculation/block_drafter.h"
#include "speculation/head_drafter.h"
#include "speculation/medusa_drafter.h"
#include "speculation/model_drafter.h"
#include "speculation/translating_drafter.h"

namespace headrace::engine {
namespace {

using DrafterHandle = std::shared_ptr<speculation::Drafter>;

// A drafter as it was asked for: `path` is what stands behind the colon of its name.
struct Asked {
  std::string name, path;
  const EngineModel& model;
  const EngineOptions& options;
};

// Of drafters with a cache of their own.
template <class Options>
Options options_with_cache(const Asked& asked) {
  Options made;
  made.max_tokens = cache_tokens(asked.model, asked.options);
  made.max_rows = asked.options.max_num_batched_tokens;
  made.kv_dtype = asked.options.kv_dtype;
  made.block_size = asked.options.kv_block_size;
  return made;
}

Result<DrafterHandle> load_model_drafter(const Asked& asked) {
  HEADRACE_ASSIGN_OR_RETURN(std::shared_ptr<Backend> backend, make_backend(asked.options));
  ModelSource source;
  source.path = asked.path;
  EngineOptions own = asked.options;
  if (own.packed_cache != "auto") own.packed_cache = "off";  // a path is of the model that checks
  HEADRACE_ASSIGN_OR_RETURN(auto drafter, load_model(std::move(source), own, {}, *backend));
  const auto tokenizer = asked.model.tokenizer, draft_tokenizer = drafter->tokenizer();
  const Status same = speculation::check_same_vocabulary(tokenizer.get(), asked.model.executor->vocab_size(),
                                                         draft_tokenizer.get(), drafter->spec().vocab_size);
  const bool by_text = !same.ok() && tokenizer != nullptr && draft_tokenizer != nullptr;
  if (!same.ok() && !by_text) return same;
  auto made = options_with_cache<speculation::ModelDrafterOptions>(asked);
  if (asked.options.runtime != nullptr) {
    made.turns = asked.options.runtime->turns;
    made.priority = asked.options.priority;
  }
  made.memory = asked.model.memory;
  const int32_t vocab_size = by_text ? draft_tokenizer->vocab_size() : asked.model.executor->vocab_size();
  HEADRACE_ASSIGN_OR_RETURN(auto out, speculation::ModelDrafter::create(asked.name, std::move(drafter),
                                                                        std::move(backend), vocab_size, made));
  if (!by_text) return DrafterHandle(std::move(out));
  return DrafterHandle(std::make_shared<speculation::TranslatingDrafter>(
      std::move(out), speculation::VocabularyPair(tokenizer, draft_tokenizer)));
}

// The model's backend packs the weights of its heads: nobody else uses it meanwhile.
template <class Weights, class Header>
Result<Weights> load_weights(const Asked& asked, const Header& header) {
  Turn turn(asked.model.turns, asked.options.priority);
  const std::lock_guard lock(turn);
  return Weights::load(header, load_options(asked.options).pack, *asked.model.backend);
}

// What drafters on the model's backend are made with.
template <class Options>
void share_model(const Asked& asked, Options& made) {
  made.turns = asked.model.turns;
  made.priority = asked.options.priority;
  made.memory = asked.model.memory;
}

Result<DrafterHandle> make_head_drafter(const Asked& asked, std::unique_ptr<DraftHead> head) {
  auto made = options_with_cache<speculation::HeadDrafterOptions>(asked);
  share_model(asked, made);
  HEADRACE_ASSIGN_OR_RETURN(auto out,
                            speculation::HeadDrafter::create(asked.name, std::move(head), asked.model.backend, made));
  return DrafterHandle(std::move(out));
}

Result<DrafterHandle> load_fused_head(const Asked& asked, FusedHeadHeader header) {
  HEADRACE_ASSIGN_OR_RETURN(auto weights, load_weights<FusedHeadWeights>(asked, header));
  return make_head_drafter(asked, std::make_unique<FusedHead>(std::move(header.spec), std::move(weights),
                                                              asked.model.model, asked.model.backend));
}

Result<DrafterHandle> load_ahead_layer(const Asked& asked) {
  ModelSource source;
  source.path = asked.path.empty() ? asked.model.model->path() : asked.path;
  if (source.path.empty())
    return invalid_argument("mtp", "the host opened the model's files: name their path, mtp:PATH");
  HEADRACE_ASSIGN_OR_RETURN(const ModelHeader files, ModelHeader::read(source));
  if (files.spec != asked.model.model->spec()) return invalid_argument(source.path, "the files are of another model");
  HEADRACE_ASSIGN_OR_RETURN(FusedHeadHeader header, FusedHeadHeader::read_ahead_layer(files));
  return load_fused_head(asked, std::move(header));
}

Result<DrafterHandle> load_eagle_head(const Asked& asked) {
  HEADRACE_ASSIGN_OR_RETURN(FusedHeadHeader header, FusedHeadHeader::read_eagle(asked.path, asked.model.model->spec()));
  return load_fused_head(asked, std::move(header));
}

Result<DrafterHandle> load_eagle3_head(const Asked& asked) {
  HEADRACE_ASSIGN_OR_RETURN(Eagle3Header header, Eagle3Header::read(asked.path, asked.model.model->spec()));
  HEADRACE_ASSIGN_OR_RETURN(auto weights, load_weights<Eagle3Weights>(asked, header));
  return make_head_drafter(asked, std::make_unique<Eagle3Head>(std::move(header.spec), std::move(weights),
                                                               asked.model.model, asked.model.backend));
}

Result<DrafterHandle> load_medusa_heads(const Asked& asked) {
  HEADRACE_ASSIGN_OR_RETURN(MedusaHeader header, MedusaHeader::read(asked.path, asked.model.model->spec()));
  HEADRACE_ASSIGN_OR_RETURN(auto weights, load_weights<MedusaWeights>(asked, header));
  auto heads =
      std::make_unique<MedusaHeads>(std::move(header.spec), std::move(weights), asked.model.model, asked.model.backend);
  speculation::MedusaDrafterOptions made;
  share_model(asked, made);
  HEADRACE_ASSIGN_OR_RETURN(
      auto out, speculation::MedusaDrafter::create(asked.name, std::move(heads), asked.model.backend, made));
  return DrafterHandle(std::move(out));
}

Result<DrafterHandle> load_dflash_head(const Asked& asked) {
  HEADRACE_ASSIGN_OR_RETURN(DflashHeader header, DflashHeader::read(asked.path, asked.model.model->spec()));
  HEADRACE_ASSIGN_OR_RETURN(auto weights, load_weights<DflashWeights>(asked, header));
  auto head =
      std::make_unique<DflashHead>(std::move(header.spec), std::move(weights), asked.model.model, asked.model.backend);
  auto made = options_with_cache<speculation::HeadDrafterOptions>(asked);
  share_model(asked, made);
  HEADRACE_ASSIGN_OR_RETURN(auto out,
                            speculation::BlockDrafter::create(asked.name, std::move(head), asked.model.backend, made));
  return DrafterHandle(std::move(out));
}

struct Kind {
  std::string_view name;
  Result<DrafterHandle> (*load)(const Asked& asked);
  bool reads_model = true;  // its hidden states
  bool needs_path = true;
};
constexpr Kind kKinds[] = {{"model", load_model_drafter, false}, {"mtp", load_ahead_layer, true, false},
                           {"eagle", load_eagle_head},           {"eagle3", load_eagle3_head},
                           {"medusa", load_medusa_heads},        {"dflash", load_dflash_head}};

}  // namespace

Result<std::vector<DrafterHandle>> load_model_drafters(std::string_view names, const EngineModel& model,
                                                       const EngineOptions& options) {
  std::vector<DrafterHandle> out;
  while (!names.empty()) {
    const std::string name(names.substr(0, names.find(',')));
    names.remove_prefix(std::min(names.size(), name.size() + 1));
    const size_t colon = std::min(name.find(':'), name.size());
    const Asked asked{name, name.substr(std::min(colon + 1, name.size())), model, options};
    const Kind* const kind = std::ranges::find(kKinds, std::string_view(name).substr(0, colon), &Kind::name);
    // The scheduler says where it knows none of that name.
    if (kind == std::end(kKinds) || (kind->needs_path && asked.path.empty())) continue;
    if (std::ranges::any_of(out, [&](const auto& drafter) { return drafter->name() == name; })) continue;
    if (kind->reads_model && model.model == nullptr) return unsupported(name, "the model gives no hidden states");
    auto loaded = kind->load(asked);
    if (!loaded.ok()) return loaded.status().within("scheduler.drafter");
    out.push_back(loaded.take());
  }
  return out;
}

}  // namespace headrace::engine
