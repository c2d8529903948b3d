#include "formats/json.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <type_traits>
#include <unordered_map>
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

// Builds the tree from the parser's events. nlohmann's own builder destroys a half-built tree where memory runs out, which
// asks for memory again; this one holds every value where it can be released.
template <class Json>
class TreeBuilder {
 public:
  TreeBuilder() = default;
  TreeBuilder(const TreeBuilder&) = delete;
  TreeBuilder& operator=(const TreeBuilder&) = delete;
  ~TreeBuilder() {
    for (Frame& frame : frames_) {
      for (Json& value : frame.values) release_json(value);
    }
  }

  HeldJson<Json> root;
  std::optional<std::string> duplicate;  // the first name that occurs twice in one object
  std::optional<std::string> failure;    // the parser's words
  std::optional<size_t> failure_byte;    // from 1

  // The parser's events; false ends it.
  bool null() { return put(Json()); }
  bool boolean(bool value) { return put(Json(value)); }
  bool number_integer(typename Json::number_integer_t value) { return put(Json(value)); }
  bool number_unsigned(typename Json::number_unsigned_t value) { return put(Json(value)); }
  bool number_float(typename Json::number_float_t value, const std::string&) { return put(Json(value)); }
  bool string(std::string& value) { return put(Json(std::move(value))); }
  bool binary(typename Json::binary_t&) { return false; }  // no text has any
  bool start_object(size_t) { return start(); }
  bool start_array(size_t) { return start(); }
  bool key(std::string& name) {
    frames_.back().keys.push_back(std::move(name));
    return true;
  }
  bool end_array() {
    HeldJson<Json> array(Json::array());
    array.template get_ref<typename Json::array_t&>() = std::move(frames_.back().values);
    frames_.pop_back();
    return put(std::move(array));
  }
  bool end_object() {
    HeldJson<Json> object(Json::object());
    fill(frames_.back(), object.template get_ref<typename Json::object_t&>());
    frames_.pop_back();
    return put(std::move(object));
  }
  template <class Error>
  bool parse_error(size_t, const std::string&, const Error& error) {
    if constexpr (std::is_same_v<Error, typename Json::parse_error>) failure_byte = error.byte;
    failure = json_error_text(error.what());
    return false;
  }

 private:
  // An array or object that is open.
  struct Frame {
    std::vector<std::string> keys;
    std::vector<Json> values;
  };

  bool start() {
    frames_.emplace_back();
    return true;
  }
  bool put(Json&& value) {
    if (frames_.empty()) {
      root = HeldJson<Json>(std::move(value));
    } else {
      frames_.back().values.push_back(std::move(value));
    }
    return true;
  }
  // Of two members of one name the last counts, at the place of the first.
  void fill(Frame& frame, typename Json::object_t& members) {
    constexpr bool kOrdered = requires { members.reserve(size_t{0}); };
    if constexpr (kOrdered) members.reserve(frame.keys.size());  // growth would copy, and destroy filled members
    std::unordered_map<std::string_view, Json*> seen;
    for (size_t i = 0; i < frame.keys.size(); ++i) {
      Json*& member = seen[frame.keys[i]];
      if (member != nullptr) {
        if (!duplicate) duplicate = frame.keys[i];
        release_json(*member);
      } else if constexpr (kOrdered) {
        // Past its own emplace, which would look through all members.
        member = &static_cast<typename Json::object_t::Container&>(members).emplace_back(frame.keys[i], nullptr).second;
      } else {
        member = &members.emplace(frame.keys[i], nullptr).first->second;
      }
      member->swap(frame.values[i]);
    }
  }

  std::vector<Frame> frames_;
};

template <class Json>
Result<HeldJson<Json>> parse_as(std::string_view text, const std::string& name, const JsonOptions& options) {
  HEADRACE_ASSIGN_OR_RETURN(const Scan scanned, scan(text, name, options));
  const std::string_view parsed = scanned.replaced.empty() ? text : std::string_view(scanned.replaced);
  TreeBuilder<Json> builder;
  const bool whole = Json::sax_parse(parsed, &builder);
  if (!whole) {
    const std::string words = quote_name(builder.failure.value_or(""), 300);
    if (!builder.failure_byte) return malformed(name, "is no JSON: {}", words);
    const size_t byte = *builder.failure_byte == 0 ? 0 : *builder.failure_byte - 1;
    return malformed(line_place(text, scanned.original(byte), name), "is no JSON: {}", words);
  }
  if (options.refuse_duplicate_keys && builder.duplicate) {
    return malformed(fmt::format("{}: {}", name, quote_name(*builder.duplicate)), "occurs twice in one object");
  }
  return std::move(builder.root);
}

}  // namespace

Result<HeldJson<nlohmann::json>> parse_json(std::string_view text, const std::string& name,
                                            const JsonOptions& options) {
  return parse_as<nlohmann::json>(text, name, options);
}

Result<HeldJson<nlohmann::ordered_json>> parse_ordered_json(std::string_view text, const std::string& name,
                                                            const JsonOptions& options) {
  return parse_as<nlohmann::ordered_json>(text, name, options);
}

std::optional<int64_t> json_integer(const nlohmann::json& value) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<uint64_t>();
    if (number > static_cast<uint64_t>(INT64_MAX)) return std::nullopt;
    return static_cast<int64_t>(number);
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  return std::nullopt;
}

std::string_view json_error_text(std::string_view words) {
  if (!words.starts_with("[json.exception.")) return words;
  const size_t end = words.find("] ");
  return end == std::string_view::npos ? words : words.substr(end + 2);
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
