// A backend around another that records what each op took. No kernel knows of it.
#pragma once

#include <memory>

#include "ops/backend.h"
#include "ops/op_profile.h"

namespace headrace {

// Ops, name, threads and packed weights are those of `backend`; profile() is the given one.
std::unique_ptr<Backend> make_profiling_backend(std::unique_ptr<Backend> backend, std::shared_ptr<OpProfile> profile);

}  // namespace headrace
