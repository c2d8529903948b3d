#include "engine/model_drafters.h"

#include <algorithm>
#include <string>
#include <utility>

#include "engine/model_executor.h"
#include "engine/runtime.h"
#include "speculation/model_drafter.h"

namespace headrace::engine {
namespace {

Result<std::shared_ptr<speculation::Drafter>> load_drafter(const std::string& name, std::string path,
                                                           const EngineModel& model, const EngineOptions& options) {
  HEADRACE_ASSIGN_OR_RETURN(std::shared_ptr<Backend> backend, make_backend(options));
  ModelSource source;
  source.path = std::move(path);
  EngineOptions own = options;
  if (own.packed_cache != "auto") own.packed_cache = "off";  // a path is of the model that checks
  HEADRACE_ASSIGN_OR_RETURN(auto drafter, load_model(std::move(source), own, {}, *backend));
  HEADRACE_RETURN_IF_ERROR(speculation::check_same_vocabulary(model.tokenizer.get(), model.executor->vocab_size(),
                                                              drafter->tokenizer().get(), drafter->spec().vocab_size));
  speculation::ModelDrafterOptions made;
  made.max_tokens = cache_tokens(model, options);
  made.max_rows = options.max_num_batched_tokens;
  made.kv_dtype = options.kv_dtype;
  made.block_size = options.kv_block_size;
  if (options.runtime != nullptr) {
    made.turns = options.runtime->turns;
    made.priority = options.priority;
    made.memory = options.runtime->memory;
  }
  HEADRACE_ASSIGN_OR_RETURN(auto out, speculation::ModelDrafter::create(name, std::move(drafter), std::move(backend),
                                                                        model.executor->vocab_size(), made));
  return std::shared_ptr<speculation::Drafter>(std::move(out));
}

}  // namespace

Result<std::vector<std::shared_ptr<speculation::Drafter>>> load_model_drafters(std::string_view names,
                                                                               const EngineModel& model,
                                                                               const EngineOptions& options) {
  constexpr std::string_view kModel = "model:";
  std::vector<std::shared_ptr<speculation::Drafter>> out;
  while (!names.empty()) {
    const std::string name(names.substr(0, names.find(',')));
    names.remove_prefix(std::min(names.size(), name.size() + 1));
    if (!name.starts_with(kModel)) continue;
    if (std::ranges::any_of(out, [&](const auto& drafter) { return drafter->name() == name; })) continue;
    auto loaded = load_drafter(name, name.substr(kModel.size()), model, options);
    if (!loaded.ok()) return loaded.status().within("scheduler.drafter");
    out.push_back(loaded.take());
  }
  return out;
}

}  // namespace headrace::engine
