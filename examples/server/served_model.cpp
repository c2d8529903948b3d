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

ServedModel::ServedModel(LoadedModel loaded)
    : model_(std::move(loaded.model)),
      options_(std::move(loaded.options)),
      tokenizer_(model_.tokenizer()),
      name_(loaded.name.empty() ? last_part(loaded.path) : loaded.name),
      created_(std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
                   .count()),
      context_(model_.info().max_position_embeddings),
      description_(Json::parse(model_.describe())),
      sampling_(model_.sampling()) {
  if (sampling_.temperature == 0) sampling_.temperature = 1;
  try {
    kv_cache_.emplace(model_, options_);
    scheduler_.emplace(model_, *kv_cache_, options_);
    const headrace_kv_cache_stats stats = kv_cache_->stats();
    context_ = std::min<int64_t>(context_, stats.num_blocks * stats.block_size);
  } catch (const headrace::Error& error) {
    if (error.code() != HEADRACE_UNSUPPORTED) throw;
    kv_cache_.reset();
    generation_refusal_ = error.what();
  }
  try {
    embedder_.emplace(model_, options_);
  } catch (const headrace::Error& error) {
    if (error.code() != HEADRACE_UNSUPPORTED && error.code() != HEADRACE_INVALID_ARGUMENT) throw;
    embedding_refusal_ = error.what();
  }
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

void ServedModel::start(EngineThread::Post post) {
  if (scheduler_) engine_ = std::make_unique<EngineThread>(*scheduler_, std::move(post));
}

}  // namespace server
