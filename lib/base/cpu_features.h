// What this processor and operating system can run, and the instruction sets the kernels are compiled for.
#pragma once

#include <string_view>
#include <vector>

#include "base/status.h"

namespace headrace {

// Instruction sets with kernels of their own, weakest first by architecture. Each includes those before it, but AVX-512
// VNNI does not include AVX-VNNI.
enum class Isa : int32_t {
  kBaseline = 0,     // x86-64-v2: SSE4.2
  kAvx2 = 1,         // AVX2, FMA, F16C
  kAvxVnni = 2,      // AVX2 with AVX-VNNI
  kAvx512Vnni = 3,   // AVX-512 F, BW, DQ, VL, VNNI
  kNeon = 4,         // Armv8.0-A: AArch64 with Advanced SIMD
  kNeonDotprod = 5,  // with Armv8.2-A's dot products
};

inline constexpr Isa kAllIsas[] = {Isa::kBaseline,   Isa::kAvx2, Isa::kAvxVnni,
                                   Isa::kAvx512Vnni, Isa::kNeon, Isa::kNeonDotprod};
// The one that every processor of this architecture has.
#if defined(__aarch64__)
inline constexpr Isa kWeakestIsa = Isa::kNeon;
#else
inline constexpr Isa kWeakestIsa = Isa::kBaseline;
#endif

// "baseline", "avx2", "avx_vnni", "avx512_vnni", "neon", "neon_dotprod".
std::string_view isa_name(Isa isa);

// True where both the processor has the instructions and the operating system saves their registers.
bool isa_available(Isa isa);

// Every available instruction set, weakest first.
std::vector<Isa> available_isas();

// The strongest available one, or the one called `name`; an unknown or unavailable name is an error that lists the
// available ones. "auto" and "" mean the strongest.
Result<Isa> choose_isa(std::string_view name);

// Logical processors this process may run on (the affinity mask and the cgroup quota, rounded up), at least 1.
int usable_processors();

}  // namespace headrace
