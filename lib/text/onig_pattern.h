// Patterns of tokenizer.json files are in Oniguruma's dialect; this rewrites them into PCRE2's.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace headrace::text {

// The PCRE2 pattern (for PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE) that matches what Oniguruma's default
// syntax matches with `pattern`. Rewritten are: \s \w \b \h and their negations (other sets of characters),
// class intersections and nested classes, script names (Script, not Script_Extensions), `(?m)` (dot matches
// newline),
// {,n}, and {n,m}+ (a repeated interval, not a possessive one). kUnsupported, placed at `place`, for what has
// no counterpart.
Result<std::string> onig_to_pcre2(std::string_view pattern, std::string_view place);

}  // namespace headrace::text
