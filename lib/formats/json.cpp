#include "formats/json.h"

#include <algorithm>
#include <limits>
#include <unordered_set>
#include <vector>

#include "formats/text_quote.h"

namespace headrace {
namespace {

std::string line_place(std::string_view text, size_t byte, const std::string& name) {
  size_t line = 1;
  size_t column = 1;
  for (size_t i = 0; i < byte && i < text.size(); ++i) {
    if (text[i] == '\n') {
      ++line;
      column = 1;
    } else {
      ++column;
    }
  }
  return fmt::format("{}: line {}, column {}", name, line, column);
}

bool is_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.' ||
         c == '+' || c == '-';
}

// One pass over the text outside strings: nesting depth, and Python's number words replaced where that is
// asked for. Replaced text has another length, so `shift` says by how much a byte of it is ahead of the
// original's.
struct Scan {
  std::string replaced;  // empty when nothing was
  struct Shift {
    size_t from;  // byte of the replaced text
    size_t by;
  };
  std::vector<Shift> shifts;
  size_t original(size_t byte) const {
    size_t by = 0;
    for (const Shift& shift : shifts) {
      if (shift.from <= byte) by = shift.by;
    }
    return byte - std::min(by, byte);
  }
};

Result<Scan> scan(std::string_view text, const std::string& name, const JsonOptions& options) {
  Scan out;
  int depth = 0;
  size_t copied = 0;
  for (size_t i = 0; i < text.size();) {
    const char c = text[i];
    if (c == '"') {
      for (++i; i < text.size() && text[i] != '"'; ++i) {
        if (text[i] == '\\') ++i;
      }
      ++i;
    } else if (c == '[' || c == '{') {
      if (++depth > options.max_depth) {
        return malformed(line_place(text, i, name), "more than {} nested arrays and objects", options.max_depth);
      }
      ++i;
    } else if (c == ']' || c == '}') {
      --depth;
      ++i;
    } else if (is_word(c)) {
      size_t end = i;
      while (end < text.size() && is_word(text[end])) ++end;
      const std::string_view word = text.substr(i, end - i);
      if (options.python_floats && (word == "Infinity" || word == "-Infinity" || word == "NaN")) {
        out.replaced.append(text.substr(copied, i - copied));
        out.replaced += fmt::format("{{\"__float__\": \"{}\"}}", word);
        copied = end;
        out.shifts.push_back({out.replaced.size(), out.replaced.size() - end});
      }
      i = end;
    } else {
      ++i;
    }
  }
  if (copied > 0) out.replaced.append(text.substr(copied));
  return out;
}

template <class Json>
Result<Json> parse_as(std::string_view text, const std::string& name, const JsonOptions& options) {
  HEADRACE_ASSIGN_OR_RETURN(const Scan scanned, scan(text, name, options));
  const std::string_view parsed = scanned.replaced.empty() ? text : std::string_view(scanned.replaced);

  std::vector<std::unordered_set<std::string>> keys;  // of the open objects
  std::string duplicate;
  bool has_duplicate = false;
  using Event = typename Json::parse_event_t;
  const auto watch_keys = [&](int, Event event, Json& value) {
    if (event == Event::object_start) {
      keys.emplace_back();
    } else if (event == Event::object_end) {
      keys.pop_back();
    } else if (event == Event::key && !has_duplicate) {
      const std::string& key = value.template get_ref<const std::string&>();
      if (!keys.back().insert(key).second) {
        has_duplicate = true;
        duplicate = key;
      }
    }
    return true;
  };
  try {
    Json json = options.refuse_duplicate_keys ? Json::parse(parsed, watch_keys) : Json::parse(parsed);
    if (has_duplicate)
      return malformed(fmt::format("{}: {}", name, quote_name(duplicate)), "occurs twice in one object");
    return json;
  } catch (const typename Json::parse_error& error) {
    const size_t byte = error.byte == 0 ? 0 : error.byte - 1;
    return malformed(line_place(text, scanned.original(byte), name), "is no JSON: {}", quote_name(error.what(), 300));
  } catch (const typename Json::exception& error) {
    return malformed(name, "is no JSON: {}", quote_name(error.what(), 300));
  }
}

}  // namespace

Result<nlohmann::json> parse_json(std::string_view text, const std::string& name, const JsonOptions& options) {
  return parse_as<nlohmann::json>(text, name, options);
}

Result<nlohmann::ordered_json> parse_ordered_json(std::string_view text, const std::string& name,
                                                  const JsonOptions& options) {
  return parse_as<nlohmann::ordered_json>(text, name, options);
}

std::optional<double> json_number(const nlohmann::json& value) {
  if (value.is_number()) return value.get<double>();
  if (!value.is_object() || value.size() != 1) return std::nullopt;
  const auto it = value.find("__float__");
  if (it == value.end() || !it->is_string()) return std::nullopt;
  const std::string& word = it->get_ref<const std::string&>();
  if (word == "Infinity") return std::numeric_limits<double>::infinity();
  if (word == "-Infinity") return -std::numeric_limits<double>::infinity();
  if (word == "NaN") return std::numeric_limits<double>::quiet_NaN();
  return std::nullopt;
}

}  // namespace headrace
