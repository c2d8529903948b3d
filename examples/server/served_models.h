// The models of a server and their adapters, by the names that clients know.
#pragma once

#include <headrace/headrace.hpp>

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "json.h"
#include "served_model.h"

namespace server {

// Thread rule: add before the server runs; then any thread.
class ServedModels {
 public:
  // What a name stands for: a model, or an adapter of it.
  struct Choice {
    ServedModel& served;
    std::string name;
    std::optional<headrace::Adapter> adapter;
  };

  // Throws std::runtime_error where the name is taken.
  ServedModel& add(LoadedModel loaded);
  // In the order of their adding; at least one.
  const std::vector<std::unique_ptr<ServedModel>>& all() const { return models_; }
  bool generate() const;  // any of them

  // What a body's "model" names; the only model where it names none. Throw ApiError: 404 ("model") for an unknown name, 400
  // where none is given and there are several.
  Choice choose(const Json& body) const;
  Choice find(const std::string& name) const;

  struct Adapter {
    ServedModel& served;
    headrace::Adapter adapter;
  };
  std::map<std::string, Adapter> adapters() const;
  // Throw ApiError: 409 for a name in use, 404 for one that is not.
  void load_adapter(ServedModel& served, const std::string& name, const std::string& folder);
  void unload_adapter(const std::string& name);

 private:
  bool is_taken(const std::string& name) const;  // mutex_ held

  std::vector<std::unique_ptr<ServedModel>> models_;
  mutable std::mutex mutex_;
  std::map<std::string, Adapter> adapters_;
};

}  // namespace server
