// The kernels of block-format linear layers, as one instruction set's part of the kernel table.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace headrace {

struct QuantizedKernels {};

}  // namespace headrace
