// A model that is served, what it can do, and the thread that steps its scheduler.
#pragma once

#include <headrace/headrace.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "engine_thread.h"
#include "json.h"

namespace server {

struct LoadedModel {
  headrace::Model model;
  headrace::Options options;  // that it was loaded with
  std::string path;
  std::string name;  // as clients call it; empty: the last part of the path
};

class ServedModel {
 public:
  // What the model cannot do is no error here, but of the requests that ask for it.
  explicit ServedModel(LoadedModel loaded);

  const std::string& name() const { return name_; }
  int64_t created() const { return created_; }  // Unix seconds
  const headrace::Model& model() const { return model_; }
  const headrace::Tokenizer& tokenizer() const { return tokenizer_; }
  const headrace::Options& options() const { return options_; }
  const Json& description() const { return description_; }
  // Tokens of prompt and output together.
  int64_t context() const { return context_; }
  bool reads_images() const { return description_.contains("vision"); }
  // What is recommended for the model; where nothing is, or greedy decoding, the APIs' own: temperature 1.
  headrace::Sampling sampling() const { return sampling_; }

  // Throw ApiError (400) with the reason where the model generates, or embeds, nothing.
  headrace::Scheduler& scheduler();
  headrace::KVCache& kv_cache();
  headrace::Embedder& embedder();
  bool generates() const { return scheduler_.has_value(); }

  // The engine's thread, where the model generates: starts it, and ends it.
  void start(EngineThread::Post post);
  void stop() { engine_.reset(); }
  EngineThread* engine() const { return engine_.get(); }  // null: not started

 private:
  const headrace::Model model_;
  const headrace::Options options_;
  const headrace::Tokenizer tokenizer_;
  std::string name_, generation_refusal_, embedding_refusal_;
  int64_t created_ = 0, context_ = 0;
  Json description_;
  headrace::Sampling sampling_;
  std::optional<headrace::KVCache> kv_cache_;
  std::optional<headrace::Scheduler> scheduler_;
  std::optional<headrace::Embedder> embedder_;
  std::unique_ptr<EngineThread> engine_;
};

}  // namespace server
