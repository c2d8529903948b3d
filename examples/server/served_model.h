// The model that is served, what it can do, and the adapters loaded for it.
#pragma once

#include <headrace/headrace.hpp>

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "json.h"
#include "settings.h"

namespace server {

class ServedModel {
 public:
  // Loads the settings' adapters. What the model cannot do is no error here, but of the requests that ask for it.
  ServedModel(headrace::Model model, const headrace::Options& options, const Settings& settings);

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

  // Throws ApiError (404, "model") for what is neither the model's name nor an adapter's; nullopt for the model itself.
  std::optional<headrace::Adapter> find(const std::string& name) const;
  std::vector<std::string> adapter_names() const;
  // Throw ApiError: 409 for a name in use, 404 for one that is not.
  void load_adapter(const std::string& name, const std::string& folder);
  void unload_adapter(const std::string& name);

 private:
  const headrace::Model model_;
  const headrace::Options& options_;
  const headrace::Tokenizer tokenizer_;
  std::string name_, generation_refusal_, embedding_refusal_;
  int64_t created_ = 0, context_ = 0;
  Json description_;
  headrace::Sampling sampling_;
  std::optional<headrace::KVCache> kv_cache_;
  std::optional<headrace::Scheduler> scheduler_;
  std::optional<headrace::Embedder> embedder_;
  mutable std::mutex mutex_;
  std::map<std::string, headrace::Adapter> adapters_;
};

}  // namespace server
