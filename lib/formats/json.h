// JSON of model folders, parsed without exceptions and without unbounded recursion.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "base/status.h"
#include "formats/json_release.h"

namespace headrace {

struct JsonOptions {
  int max_depth = 128;                // nested arrays and objects
  bool refuse_duplicate_keys = true;  // two members of one name in one object
  // Python's json module writes Infinity, -Infinity and NaN, which JSON has no numbers for. With this they
  // are read as {"__float__": "Infinity"}, the form that newer transformers writes itself; without it they
  // are errors.
  bool python_floats = false;
};

// kMalformed with place "<name>: line L, column C" (both from 1, columns in bytes).
Result<HeldJson<nlohmann::json>> parse_json(std::string_view text, const std::string& name,
                                            const JsonOptions& options = {});

// The same with members in the order of the text, which chat templates show.
Result<HeldJson<nlohmann::ordered_json>> parse_ordered_json(std::string_view text, const std::string& name,
                                                            const JsonOptions& options = {});

// A whole number within 64 bits; nothing for any other value: 1.7, true and 2^63 are none.
std::optional<int64_t> json_integer(const nlohmann::json& value);

// The words of nlohmann's exceptions and parser without the library's mark, "[json.exception.name.number] ".
std::string_view json_error_text(std::string_view words);

// A number, or the {"__float__": ...} form of one; nothing for any other value.
std::optional<double> json_number(const nlohmann::json& value);

}  // namespace headrace
