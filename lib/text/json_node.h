// Reading a parsed JSON document with the place (a JSON pointer) at hand for every error.
#pragma once

#include <simdjson.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace headrace::text {

// A value and where it stands. Lives as long as the parser's document.
class JsonNode {
 public:
  JsonNode(simdjson::dom::element element, std::string pointer) : element_(element), pointer_(std::move(pointer)) {}

  const std::string& pointer() const { return pointer_; }
  const simdjson::dom::element& element() const { return element_; }
  bool is_null() const { return element_.is_null(); }
  bool is_string() const { return element_.is_string(); }
  bool is_array() const { return element_.is_array(); }
  bool is_object() const { return element_.is_object(); }

  // The member, unless this is no object, or has none of that name, or it is null.
  std::optional<JsonNode> find(std::string_view key) const {
    simdjson::dom::object object;
    simdjson::dom::element value;
    if (element_.get(object) != simdjson::SUCCESS || object.at_key(key).get(value) != simdjson::SUCCESS ||
        value.is_null()) {
      return std::nullopt;
    }
    return JsonNode(value, pointer_ + "/" + std::string(key));
  }
  Result<JsonNode> at(std::string_view key) const {
    if (auto found = find(key)) return *std::move(found);
    return malformed(pointer_ + "/" + std::string(key), "missing");
  }

  Result<std::string_view> as_string() const { return get<std::string_view>("a string"); }
  Result<bool> as_bool() const { return get<bool>("true or false"); }
  Result<double> as_double() const { return get<double>("a number"); }
  Result<int64_t> as_int() const { return get<int64_t>("an integer"); }
  Result<simdjson::dom::object> as_object() const { return get<simdjson::dom::object>("an object"); }

  Result<std::vector<JsonNode>> as_list() const {
    HEADRACE_ASSIGN_OR_RETURN(const auto array, get<simdjson::dom::array>("an array"));
    std::vector<JsonNode> out;
    for (const simdjson::dom::element item : array) {
      out.emplace_back(item, pointer_ + "/" + std::to_string(out.size()));
    }
    return out;
  }

  // A member with a default for when it is missing or null.
  Result<bool> bool_or(std::string_view key, bool fallback) const {
    const auto found = find(key);
    return found ? found->as_bool() : Result<bool>(fallback);
  }
  Result<std::string_view> string_or(std::string_view key, std::string_view fallback) const {
    const auto found = find(key);
    return found ? found->as_string() : Result<std::string_view>(fallback);
  }
  Result<std::string_view> string_at(std::string_view key) const {
    HEADRACE_ASSIGN_OR_RETURN(const JsonNode node, at(key));
    return node.as_string();
  }
  Result<bool> bool_at(std::string_view key) const {
    HEADRACE_ASSIGN_OR_RETURN(const JsonNode node, at(key));
    return node.as_bool();
  }
  // A count, such as a number of characters.
  Result<size_t> size_at(std::string_view key) const {
    HEADRACE_ASSIGN_OR_RETURN(const JsonNode node, at(key));
    HEADRACE_ASSIGN_OR_RETURN(const int64_t value, node.as_int());
    if (value < 0 || value > INT32_MAX) return malformed(node.pointer(), "{} is out of range", value);
    return static_cast<size_t>(value);
  }

 private:
  template <class T>
  Result<T> get(const char* what) const {
    T value;
    if (element_.get(value) != simdjson::SUCCESS) return malformed(pointer_, "not {}", what);
    return value;
  }

  simdjson::dom::element element_;
  std::string pointer_;
};

}  // namespace headrace::text
