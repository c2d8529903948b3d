// Drafters that are models, by the names that users give them: "model:PATH".
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "engine/engine_options.h"
#include "engine/executor.h"
#include "speculation/drafter.h"

namespace headrace::engine {

// Those of such names in a list with commas between, each loaded for one scheduler and called as it is named; other names are
// left to the scheduler. PATH is of a model of the same vocabulary, which is loaded as the options say of models. Errors are
// those of loading, with the name before their place, and kInvalidArgument with the first token that the two spell differently.
Result<std::vector<std::shared_ptr<speculation::Drafter>>> load_model_drafters(std::string_view names,
                                                                               const EngineModel& model,
                                                                               const EngineOptions& options);

}  // namespace headrace::engine
