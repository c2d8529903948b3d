// Names found in files, made fit for messages.
#pragma once

#include <string>
#include <string_view>

namespace headrace {

// Control and non-ASCII bytes escaped as \xNN, cut after max_bytes: what a message may quote from an
// untrusted file.
std::string quote_name(std::string_view name, size_t max_bytes = 120);

}  // namespace headrace
