// A model ready to run: its file read, its backend chosen, its weights packed. The only place that names backends.
#pragma once

#include <memory>

#include "engine/engine_options.h"
#include "engine/executor.h"
#include "model/model.h"
#include "ops/backend.h"

namespace headrace::engine {

// Shared by every session and scheduler of the model; immutable. Members are destroyed from the last to the first.
struct LoadedModel {
  std::unique_ptr<Backend> backend;
  std::shared_ptr<const Model> model;
  std::shared_ptr<const EngineModel> engine;
  LogSink log;

  // source.use_mmap is taken from the options. Errors as Model::load and make_cpu_backend give them.
  static Result<std::shared_ptr<const LoadedModel>> load(ModelSource source, const EngineOptions& options,
                                                         const LoadProgress& progress);
};

}  // namespace headrace::engine
