// One sequence of given rows through a model of its own: what the encoders for images and in front of decoders do.
#pragma once

#include <vector>

#include "base/status.h"
#include "model/batch.h"
#include "model/forward.h"
#include "model/model_spec.h"

namespace headrace {

// rows [n, hidden_size] -> out [n, hidden_size], behind the last norm. batch: empty but for rotary positions and spans. Keys
// and values live for the call, in float32.
Status run_embedded(ForwardPass& forward, const ModelSpec& spec, const std::vector<float>& rows, Batch& batch,
                    std::vector<float>& out);

}  // namespace headrace
