// Loops that do nothing but read memory, or nothing but multiply: one set per instruction set, as the library's kernels are.
// Included by sources of every instruction set, so nothing here may have inline code.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace cli {

struct RooflineKernels {
  // Sum of the 64-bit words of eight streams side by side; bytes is a multiple of 4096, data aligned to 64.
  uint64_t (*read)(const void* data, size_t bytes);
  // Multiply-adds from registers into enough sums that no one waits for another; the result only keeps them alive.
  int32_t (*multiply_int8)(uint64_t rounds);
  float (*multiply_float)(uint64_t rounds);
  // Of one round.
  uint64_t int8_multiply_adds, float_multiply_adds;
};

#if defined(__aarch64__)
extern const RooflineKernels kRooflineNeon;         // Armv8.0-A
extern const RooflineKernels kRooflineNeonDotprod;  // Armv8.2-A with dot products
#else
extern const RooflineKernels kRooflineBaseline;    // x86-64-v2
extern const RooflineKernels kRooflineAvx2;        // x86-64-v3
extern const RooflineKernels kRooflineAvxVnni;     // x86-64-v3 with AVX-VNNI
extern const RooflineKernels kRooflineAvx512Vnni;  // x86-64-v4 with VNNI
#endif

}  // namespace cli
