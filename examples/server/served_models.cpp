#include "served_models.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "api_error.h"

namespace server {

ServedModel& ServedModels::add(LoadedModel loaded) {
  const std::lock_guard lock(mutex_);
  auto model = std::make_unique<ServedModel>(std::move(loaded));
  if (is_taken(model->name())) {
    throw std::runtime_error("two models are called \"" + model->name() + "\"; --alias gives them names");
  }
  models_.push_back(std::move(model));
  return *models_.back();
}

bool ServedModels::generate() const {
  return std::any_of(models_.begin(), models_.end(), [](const auto& model) { return model->generates(); });
}

ServedModels::Choice ServedModels::choose(const Json& body) const {
  const auto named = body.find("model");
  if (named != body.end() && !named->is_null()) return find(named->get_ref<const std::string&>());
  if (models_.size() > 1) throw ApiError(400, "must say which of the server's models is meant", "model");
  return {*models_.front(), models_.front()->name(), {}};
}

ServedModels::Choice ServedModels::find(const std::string& name) const {
  for (const auto& model : models_) {
    if (model->name() == name) return {*model, name, {}};
  }
  const std::lock_guard lock(mutex_);
  const auto found = adapters_.find(name);
  if (found == adapters_.end()) {
    throw ApiError(404, "there is no model \"" + name + "\" here; GET /v1/models lists what is", "model",
                   "model_not_found");
  }
  return {found->second.served, name, found->second.adapter};
}

std::map<std::string, ServedModels::Adapter> ServedModels::adapters() const {
  const std::lock_guard lock(mutex_);
  return adapters_;
}

bool ServedModels::is_taken(const std::string& name) const {
  return adapters_.contains(name) ||
         std::any_of(models_.begin(), models_.end(), [&](const auto& model) { return model->name() == name; });
}

void ServedModels::load_adapter(ServedModel& served, const std::string& name, const std::string& folder) {
  const auto refuse_taken = [&] {
    if (is_taken(name)) throw ApiError(409, "the name \"" + name + "\" is taken", "lora_name");
  };
  {
    const std::lock_guard lock(mutex_);
    refuse_taken();
  }
  headrace::Adapter adapter = headrace::Adapter::load(served.model(), folder);
  const std::lock_guard lock(mutex_);
  refuse_taken();
  adapters_.emplace(name, Adapter{served, std::move(adapter)});
}

void ServedModels::unload_adapter(const std::string& name) {
  const std::lock_guard lock(mutex_);
  if (adapters_.erase(name) == 0) throw ApiError(404, "there is no adapter \"" + name + "\"", "lora_name");
}

}  // namespace server
