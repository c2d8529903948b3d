// What a model asks of a backend's ops, so that what a backend lacks is refused when the model is loaded.
#pragma once

#include <vector>

#include "base/status.h"
#include "model/model_spec.h"
#include "ops/backend.h"

namespace headrace {

// The ops of the model's steps with what it needs of them; latent, compressed and recurrent layers name one of theirs, which
// stands for the others.
std::vector<OpUse> op_uses(const ModelSpec& spec);

// The first failure of Backend::check_use over those.
Status check_op_uses(const ModelSpec& spec, const Backend& backend);

}  // namespace headrace
