// What cached keys and values of a model depend on, beside the tokens.
#pragma once

#include "base/hash.h"
#include "base/status.h"
#include "model/model.h"

namespace headrace {

// A hash over the spec, the tensor table, all bytes of small tensors and samples of large ones, and what
// changes the arithmetic (pack options, the backend's name). Reads a few kilobytes per tensor.
Result<Hash128> model_identity(const ModelHeader& header, const PackOptions& options, const Backend& backend);

}  // namespace headrace
