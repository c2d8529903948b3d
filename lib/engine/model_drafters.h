// Drafters that are models or heads of one, by the names that users give them: "model:PATH", "mtp", "eagle3:PATH".
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "engine/engine_options.h"
#include "engine/executor.h"
#include "speculation/drafter.h"

namespace headrace::engine {

// Those of such names in a list with commas between, each loaded once for one scheduler and called as it is named; other names
// are left to the scheduler.
//   model:PATH   a smaller model, which is loaded as the options say of models; one of another vocabulary reads and guesses text
//                (speculation/translating_drafter.h)
//   mtp          the layer that predicts further ahead in the model's own files (model/fused_head.h); mtp:PATH has other files of
//                the same model
//   eagle:PATH   the folder of an EAGLE-1 or EAGLE-2 head for this model (likewise)
//   eagle3:PATH  the folder of an EAGLE-3 head for this model (model/eagle3_head.h)
//   medusa:PATH  the folder of Medusa heads for this model (model/medusa_heads.h)
//   dflash:PATH  the folder of a DFlash head for this model (model/dflash_head.h)
// Errors are those of loading, with the name before their place; kInvalidArgument for vocabularies of two sizes where one of
// the models has no tokenizer, and for a head of another model.
Result<std::vector<std::shared_ptr<speculation::Drafter>>> load_model_drafters(std::string_view names,
                                                                               const EngineModel& model,
                                                                               const EngineOptions& options);

}  // namespace headrace::engine
