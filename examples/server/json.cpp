#include "json.h"

#include "api_error.h"

namespace server {
namespace {

constexpr int kMaxDepth = 64;

// The deepest nesting of what may be JSON, strings left out.
int nesting(std::string_view text) {
  int depth = 0, deepest = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      deepest = std::max(deepest, ++depth);
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return deepest;
}

}  // namespace

Json parse_json(std::string_view text) {
  if (nesting(text) > kMaxDepth) throw ApiError(400, "the body is nested deeper than 64 levels");
  try {
    return Json::parse(text);
  } catch (const nlohmann::json::exception& error) {
    // Of "[json.exception.parse_error.101] parse error at line 1, column 2: ..." what follows the bracket.
    const std::string what = error.what();
    const size_t end = what.find("] ");
    throw ApiError(400, "the body is no JSON: " + (end == std::string::npos ? what : what.substr(end + 2)));
  }
}

std::string dump(const OrderedJson& value) { return value.dump(-1, ' ', false, OrderedJson::error_handler_t::replace); }

}  // namespace server
