// Files that are part of the program: made by CMake of those beside it.
#pragma once

#include <string_view>

namespace server {

extern const std::string_view kOpenApiJson;  // openapi.json
extern const std::string_view kPageHtml;     // page.html

}  // namespace server
