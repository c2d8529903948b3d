#include "base/status.h"

#include <system_error>

namespace headrace {

std::string Status::to_string() const {
  if (ok()) return "ok";
  return place_.empty() ? message_ : place_ + ": " + message_;
}

Status Status::within(std::string_view outer) const {
  if (ok() || outer.empty()) return *this;
  // What reads a file names it already, and may be within a part of it: no file is named twice.
  std::string_view inner = place_;
  const std::string tail = fmt::format(": {}", outer);
  if (inner == outer || inner.starts_with(fmt::format("{}: ", outer))) return *this;
  if (inner.ends_with(tail)) inner.remove_suffix(tail.size());
  return Status(code_, message_, inner.empty() ? std::string(outer) : fmt::format("{}: {}", outer, inner));
}

std::string errno_text(int error) { return std::generic_category().message(error); }

}  // namespace headrace
