// Exact scalar decoding of every element type to float32: what kernels and packers are tested against.
// Sources: byte layouts in docs/formats.md; the order of float operations is that of PyPI gguf 0.19
// (gguf/quants.py), so results are bit-equal to it.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "tensor/dtype.h"

namespace headrace {

// Decodes num_elements of `dtype`, stored from src on (row_bytes(dtype, num_elements) bytes, any alignment),
// into dst. Integers and F64 are converted to the nearest float. kInvalidArgument when num_elements is
// negative or no whole number of blocks. Thread-safe.
Status dequantize_row(DType dtype, const void* src, float* dst, int64_t num_elements);

}  // namespace headrace
