// Lets go of JSON without asking for memory.
#pragma once

#include <nlohmann/json.hpp>

namespace headrace {

// Empties a tree, leaves first. nlohmann's destructor gathers the children of a filled array or object in a vector of its
// own, and is noexcept: where that vector finds no memory, the process would end. Recursion is as deep as the tree, which
// the parser bounds.
template <class Json>
void release_json(Json& json) noexcept {
  if (!json.is_structured()) return;
  for (auto& child : json) release_json(child);
  json.clear();  // of children that are empty or no containers any more
}

// Releases a tree where it goes out of scope; declare it after the tree.
template <class Json>
class JsonReleaser {
 public:
  explicit JsonReleaser(Json& json) : json_(json) {}
  ~JsonReleaser() { release_json(json_); }
  JsonReleaser(const JsonReleaser&) = delete;
  JsonReleaser& operator=(const JsonReleaser&) = delete;

 private:
  Json& json_;
};

}  // namespace headrace
