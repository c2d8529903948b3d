// The alphabet of byte-level BPE: every byte is a printable character, as in GPT-2's vocabulary.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace headrace::text {

// Appends the alphabet's characters for `bytes`.
void append_byte_level(std::string& out, std::string_view bytes);

// Appends the bytes that `token` stands for; when any of its characters is not of the alphabet, the token
// itself.
void append_byte_level_decoded(std::string& out, std::string_view token);

}  // namespace headrace::text
