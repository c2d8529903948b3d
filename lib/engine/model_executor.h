// The executor of a loaded model, and how one gets there: backend, weights, tokenizer, template.
#pragma once

#include <memory>

#include "engine/engine_options.h"
#include "engine/executor.h"
#include "model/model.h"
#include "model/model_header.h"
#include "ops/backend.h"

namespace headrace::engine {

// The backend that the options name: the one place where backends are chosen. open_device_backend()'s errors; kUnsupported with "engine.isa" as place
// for an instruction set that the machine lacks; the failure of reading the table that "engine.tuning" names, with that
// before the place.
Result<std::unique_ptr<Backend>> make_backend(const EngineOptions& options);

// How a model is loaded, as EngineOptions say.
ModelLoadOptions load_options(const EngineOptions& options, LoadProgress progress = {});

// Loads a model onto a backend that make_backend gave for these options. Errors are Model::load's; kResourceExhausted before
// weights are read that would not fit the runtime's budget.
Result<std::shared_ptr<const Model>> load_model(ModelSource source, const EngineOptions& options, LoadProgress progress,
                                                Backend& backend);

// Loads a model onto a backend of its own. Errors are Model::load's and make_backend's.
Result<std::shared_ptr<const EngineModel>> load_engine_model(ModelSource source, const EngineOptions& options,
                                                             LoadProgress progress = {});

// The same for a model that was loaded onto `backend` with these options; it must not share it with another. Errors are those
// of the self-check, where it is asked for, and of a graft's adapters.
Result<std::shared_ptr<const EngineModel>> make_engine_model(std::shared_ptr<const Model> model,
                                                             std::shared_ptr<Backend> backend,
                                                             const EngineOptions& options);

}  // namespace headrace::engine
