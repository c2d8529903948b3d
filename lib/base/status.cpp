#include "base/status.h"

namespace headrace {

std::string Status::to_string() const {
  if (ok()) return "ok";
  return place_.empty() ? message_ : place_ + ": " + message_;
}

Status Status::within(std::string_view outer) const {
  if (ok() || outer.empty()) return *this;
  std::string place(outer);
  if (!place_.empty()) place += ": " + place_;
  return Status(code_, message_, std::move(place));
}

}  // namespace headrace
