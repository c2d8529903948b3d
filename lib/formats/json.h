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

// A number, or the {"__float__": ...} form of one; nothing for any other value.
std::optional<double> json_number(const nlohmann::json& value);

}  // namespace headrace
