// Lets go of JSON without asking for memory.
#pragma once

#include <utility>

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

// A tree that releases itself. Not copied: a copy that runs out of memory half way ends the process too.
template <class Json>
class HeldJson : public Json {
 public:
  HeldJson() = default;
  explicit HeldJson(Json&& json) noexcept : Json(std::move(json)) {}
  HeldJson(HeldJson&& other) noexcept : Json(static_cast<Json&&>(other)) {}
  HeldJson& operator=(HeldJson&& other) noexcept {
    if (this == &other) return *this;
    release_json<Json>(*this);
    Json::swap(static_cast<Json&>(other));
    return *this;
  }
  HeldJson(const HeldJson&) = delete;
  HeldJson& operator=(const HeldJson&) = delete;
  ~HeldJson() { release_json<Json>(*this); }
};

}  // namespace headrace
