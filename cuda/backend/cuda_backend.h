// The CUDA backend: the ops of dense decoders over one device's stream.
#pragma once

#include <memory>

#include "base/status.h"
#include "ops/backend.h"

namespace headrace::cuda {

// Ops it lacks are named by check_use; called nevertheless they are a failure that finish() returns. With weights decoded to
// float32 (PackOptions) and a float32 cache all its arithmetic is float32. Otherwise weights of float16, bfloat16 and Q8_0 meet
// inputs of 16 bits, and keys and values of float16 with heads of 64 or 128 queries of float16; sums are float32.
// Thread rule: that of Backend; memory() may be used at any time.
Result<std::unique_ptr<Backend>> make_cuda_backend(int number);

}  // namespace headrace::cuda
