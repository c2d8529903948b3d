// A loaded model against the scalar reference, op by op: whether this machine computes what it needs as it should.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "model/model.h"
#include "ops/backend.h"
#include "tensor/kv_layout.h"

namespace headrace {

// Runs some tokens through a layer of each kind, with the model's own weights and this type of cached values, in a prompt, in a
// step with two sequences and, where the model goes on from a prompt, token by token; every op is compared with the reference
// (ops/checking_backend.h). Before that each type of weight is packed and read back. Gives the number of ops that were compared,
// or kInternal with the op as place, naming weight or value type and the backend (its instruction set).
//
// An encoder in front of a decoder is run too, and that for images with an image of a few patches. `backend` packed the model's
// weights; nothing else may use it meanwhile.
Result<int64_t> self_check(const Model& model, const PackOptions& options, KvDType kv_dtype, Backend& backend);

}  // namespace headrace
