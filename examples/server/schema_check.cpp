#include "schema_check.h"

#include <cmath>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "api_error.h"

namespace server {
namespace {

struct Fault {
  std::string place, message;
  std::string code;
};
using Finding = std::optional<Fault>;

bool is_integer(const Json& value) {
  if (value.is_number_integer()) return true;
  return value.is_number_float() && std::isfinite(value.get<double>()) &&
         std::trunc(value.get<double>()) == value.get<double>();
}

bool has_type(const Json& value, const std::string& type) {
  if (type == "null") return value.is_null();
  if (type == "boolean") return value.is_boolean();
  if (type == "string") return value.is_string();
  if (type == "array") return value.is_array();
  if (type == "object") return value.is_object();
  if (type == "number") return value.is_number();
  return is_integer(value);
}

// Lengths of JSON Schema count characters.
size_t characters(const std::string& text) {
  size_t count = 0;
  for (const char c : text) count += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  return count;
}

std::string join(const std::string& place, const std::string& name) {
  return place.empty() ? name : place + "." + name;
}

std::string number(const Json& bound) { return bound.dump(); }

class Check {
 public:
  explicit Check(const Json& document) : document_(document) {}

  Finding operator()(const Json& value, const Json& schema, const std::string& place) const {
    Finding found = apply(value, schema, place);
    const auto reason = schema.find("x-refused");
    if (found && reason != schema.end()) {
      return Fault{place, "is not supported: " + reason->get<std::string>(), "unsupported_parameter"};
    }
    return found;
  }

 private:
  Finding apply(const Json& value, const Json& schema, const std::string& place) const {
    if (const auto target = schema.find("$ref"); target != schema.end()) {
      return (*this)(value, document_.at(Json::json_pointer(target->get<std::string>().substr(1))), place);
    }
    if (const auto alternatives = schema.find("anyOf"); alternatives != schema.end()) {
      if (Finding found = any_of(value, *alternatives, place)) return found;
    }
    if (Finding found = type(value, schema, place)) return found;
    if (value.is_number()) return range(value, schema, place);
    if (value.is_string())
      return count(characters(value.get_ref<const std::string&>()), schema, place, "Length", "characters");
    if (value.is_array()) return elements(value, schema, place);
    if (value.is_object()) return members(value, schema, place);
    return {};
  }

  static Finding type(const Json& value, const Json& schema, const std::string& place) {
    if (const auto types = schema.find("type"); types != schema.end()) {
      bool fits = false;
      std::string names;
      for (const Json& one : types->is_array() ? *types : Json::array({*types})) {
        fits = fits || has_type(value, one.get<std::string>());
        names += (names.empty() ? "" : " or ") + one.get<std::string>();
      }
      if (!fits) return Fault{place, "must be " + names + ", not " + value.type_name(), ""};
    }
    if (const auto fixed = schema.find("const"); fixed != schema.end() && value != *fixed) {
      return Fault{place, "must be " + fixed->dump(), ""};
    }
    if (const auto choices = schema.find("enum"); choices != schema.end()) {
      for (const Json& choice : *choices) {
        if (value == choice) return {};
      }
      return Fault{place, "must be one of " + choices->dump(), ""};
    }
    return {};
  }

  static Finding range(const Json& value, const Json& schema, const std::string& place) {
    const auto bound = [&schema](const char* name) { return schema.find(name); };
    if (const auto least = bound("minimum"); least != schema.end() && value < *least) {
      return Fault{place, "must be at least " + number(*least), ""};
    }
    if (const auto most = bound("maximum"); most != schema.end() && value > *most) {
      return Fault{place, "must be at most " + number(*most), ""};
    }
    if (const auto least = bound("exclusiveMinimum"); least != schema.end() && value <= *least) {
      return Fault{place, "must be more than " + number(*least), ""};
    }
    return {};
  }

  static Finding count(size_t size, const Json& schema, const std::string& place, const std::string& what,
                       const std::string& unit) {
    if (const auto least = schema.find("min" + what); least != schema.end() && size < least->get<size_t>()) {
      return Fault{place, "has " + std::to_string(size) + " " + unit + ", fewer than " + number(*least), ""};
    }
    if (const auto most = schema.find("max" + what); most != schema.end() && size > most->get<size_t>()) {
      return Fault{place, "has " + std::to_string(size) + " " + unit + ", more than " + number(*most), ""};
    }
    return {};
  }

  Finding elements(const Json& value, const Json& schema, const std::string& place) const {
    if (Finding found = count(value.size(), schema, place, "Items", "elements")) return found;
    const auto items = schema.find("items");
    if (items == schema.end()) return {};
    for (size_t i = 0; i < value.size(); ++i) {
      if (Finding found = (*this)(value[i], *items, place + "[" + std::to_string(i) + "]")) return found;
    }
    return {};
  }

  Finding members(const Json& value, const Json& schema, const std::string& place) const {
    static const Json none = Json::object();
    const auto declared = schema.find("properties");
    const Json& properties = declared == schema.end() ? none : *declared;
    for (const auto& [name, member] : value.items()) {
      if (const auto property = properties.find(name); property != properties.end()) {
        if (Finding found = (*this)(member, *property, join(place, name))) return found;
      } else if (const auto others = schema.find("additionalProperties"); others != schema.end()) {
        if (others->is_boolean()) return Fault{join(place, name), "is not known here", "unknown_parameter"};
        if (Finding found = (*this)(member, *others, join(place, name))) return found;
      }
    }
    if (const auto required = schema.find("required"); required != schema.end()) {
      for (const Json& name : *required) {
        if (!value.contains(name.get<std::string>())) {
          return Fault{join(place, name.get<std::string>()), "is required", "missing_required_parameter"};
        }
      }
    }
    return {};
  }

  // Of the alternatives that none fits, the one that was followed the furthest says what is wrong: the deepest place, and
  // there what is of the right type.
  Finding any_of(const Json& value, const Json& alternatives, const std::string& place) const {
    const auto reach = [](const Fault& fault) {
      return std::pair(fault.place.size(), fault.message.find(", not ") == std::string::npos);
    };
    Finding furthest;
    std::string expected;
    for (const Json& alternative : alternatives) {
      Finding found = (*this)(value, alternative, place);
      if (!found) return {};
      if (found->place == place && found->message.starts_with("must be ")) {
        expected += (expected.empty() ? "" : ", or ") + found->message;
      }
      if (!furthest || reach(*found) > reach(*furthest)) furthest = std::move(found);
    }
    if (furthest->place == place && !expected.empty()) furthest->message = expected;
    return furthest;
  }

  const Json& document_;
};

constexpr std::string_view kKeywords[] = {"type",
                                          "enum",
                                          "const",
                                          "minimum",
                                          "maximum",
                                          "exclusiveMinimum",
                                          "minLength",
                                          "maxLength",
                                          "minItems",
                                          "maxItems",
                                          "properties",
                                          "required",
                                          "additionalProperties",
                                          "items",
                                          "anyOf",
                                          "$ref",
                                          "title",
                                          "description",
                                          "default",
                                          "x-refused"};

void require_known(const Json& schema, const std::string& place) {
  for (const auto& [name, value] : schema.items()) {
    bool known = false;
    for (const std::string_view keyword : kKeywords) known = known || name == keyword;
    if (!known) throw std::runtime_error("openapi.json: " + place + " has the keyword " + name);
    if (name == "properties") {
      for (const auto& [property, inner] : value.items()) require_known(inner, place + "/" + property);
    } else if (name == "anyOf") {
      for (const Json& inner : value) require_known(inner, place);
    } else if (value.is_object() && name != "default" && name != "const") {
      require_known(value, place + "/" + name);
    }
  }
}

}  // namespace

SchemaCheck::SchemaCheck(Json document) : document_(std::move(document)) {
  for (const auto& [name, schema] : document_.at("components").at("schemas").items()) require_known(schema, name);
}

void SchemaCheck::check(const Json& value, const std::string& name) const {
  const Finding found = Check(document_)(value, document_.at("components").at("schemas").at(name), "");
  if (!found) return;
  if (found->place.empty()) throw ApiError(400, "the body " + found->message, "", found->code);
  throw ApiError(400, found->message, found->place, found->code);
}

}  // namespace server
