// JSON as requests have it and replies give it.
#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace server {

using Json = nlohmann::json;                 // read: names are found by search
using OrderedJson = nlohmann::ordered_json;  // written: names stay in order

// Throws ApiError (400) with line and column for what is no JSON, and for what is nested deeper than 64.
Json parse_json(std::string_view text);
// Compact; bytes that are no UTF-8 become U+FFFD.
std::string dump(const OrderedJson& value);

}  // namespace server
