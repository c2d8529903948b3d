#include "served_model.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <utility>

#include "api_error.h"

namespace server {
namespace {

std::string last_part(const std::string& path) {
  std::filesystem::path whole = std::filesystem::path(path).lexically_normal();
  if (whole.filename().empty()) whole = whole.parent_path();
  const std::string name = whole.filename().string();
  return whole.extension() == ".gguf" ? whole.stem().string() : name.empty() || name == "." ? "model" : name;
}

}  // namespace

ServedModel::ServedModel(headrace::Model model, const headrace::Options& options, const Settings& settings)
    : model_(std::move(model)),
      options_(options),
      tokenizer_(model_.tokenizer()),
      name_(settings.model_name.empty() ? last_part(settings.model_path) : settings.model_name),
      created_(std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
                   .count()),
      context_(model_.info().max_position_embeddings),
      description_(Json::parse(model_.describe())),
      sampling_(model_.sampling()) {
  if (sampling_.temperature == 0) sampling_.temperature = 1;
  try {
    kv_cache_.emplace(model_, options);
    scheduler_.emplace(model_, *kv_cache_, options);
    const headrace_kv_cache_stats stats = kv_cache_->stats();
    context_ = std::min<int64_t>(context_, stats.num_blocks * stats.block_size);
  } catch (const headrace::Error& error) {
    if (error.code() != HEADRACE_UNSUPPORTED) throw;
    kv_cache_.reset();
    generation_refusal_ = error.what();
  }
  try {
    embedder_.emplace(model_, options);
  } catch (const headrace::Error& error) {
    if (error.code() != HEADRACE_UNSUPPORTED && error.code() != HEADRACE_INVALID_ARGUMENT) throw;
    embedding_refusal_ = error.what();
  }
  for (const auto& [name, folder] : settings.adapters) load_adapter(name, folder);
}

headrace::Scheduler& ServedModel::scheduler() {
  if (!scheduler_) throw ApiError(400, "the model generates nothing: " + generation_refusal_, "model", "unsupported");
  return *scheduler_;
}

headrace::KVCache& ServedModel::kv_cache() {
  scheduler();
  return *kv_cache_;
}

headrace::Embedder& ServedModel::embedder() {
  if (!embedder_) throw ApiError(400, "the server gives no embeddings: " + embedding_refusal_, "model", "unsupported");
  return *embedder_;
}

std::optional<headrace::Adapter> ServedModel::find(const std::string& name) const {
  if (name == name_) return std::nullopt;
  const std::lock_guard lock(mutex_);
  const auto found = adapters_.find(name);
  if (found == adapters_.end()) {
    throw ApiError(404, "there is no model \"" + name + "\" here; GET /v1/models lists what is", "model",
                   "model_not_found");
  }
  return found->second;
}

std::vector<std::string> ServedModel::adapter_names() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> names;
  for (const auto& [name, adapter] : adapters_) names.push_back(name);
  return names;
}

void ServedModel::load_adapter(const std::string& name, const std::string& folder) {
  const auto is_taken = [&] { return name == name_ || adapters_.contains(name); };
  const auto refuse = [&] { throw ApiError(409, "the name \"" + name + "\" is taken", "lora_name"); };
  {
    const std::lock_guard lock(mutex_);
    if (is_taken()) refuse();
  }
  headrace::Adapter adapter = headrace::Adapter::load(model_, folder);
  const std::lock_guard lock(mutex_);
  if (is_taken()) refuse();
  adapters_.emplace(name, std::move(adapter));
}

void ServedModel::unload_adapter(const std::string& name) {
  const std::lock_guard lock(mutex_);
  if (adapters_.erase(name) == 0) throw ApiError(404, "there is no adapter \"" + name + "\"", "lora_name");
}

}  // namespace server
