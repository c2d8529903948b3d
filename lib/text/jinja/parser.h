// Parses a template's text.
#pragma once

#include <memory>
#include <string_view>

#include "text/jinja/ast.h"

namespace headrace::text::jinja {

// Throws Failure (kMalformed with the place) for what is no template, for tags that don't exist or need other
// templates (include, import, extends, block), and for filters, tests and functions that don't exist. As in
// jinja2, an unknown one inside a condition only fails when it's reached, since templates written for several
// engines guard such uses.
std::unique_ptr<const Template> parse_template(std::string_view source);

}  // namespace headrace::text::jinja
