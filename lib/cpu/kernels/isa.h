// The instruction set a kernel source is being compiled for. Kernel files include only <immintrin.h>, <stdint.h>,
// <stddef.h>, <string.h> and headers of this folder: an inline function of the standard library compiled here with
// AVX-512 could be the copy the linker keeps for the whole program.
#pragma once

#ifndef HEADRACE_ISA_LEVEL
#error "kernel sources are compiled through the per-ISA sources that lib/cpu/CMakeLists.txt generates"
#endif

// 0: x86-64-v2; 1: AVX2, FMA, F16C; 2: AVX-512 F, BW, DQ, VL and VNNI.
#if HEADRACE_ISA_LEVEL == 0
#define HEADRACE_ISA_NAMESPACE isa_baseline
#elif HEADRACE_ISA_LEVEL == 1
#define HEADRACE_ISA_NAMESPACE isa_avx2
#elif HEADRACE_ISA_LEVEL == 2
#define HEADRACE_ISA_NAMESPACE isa_avx512_vnni
#else
#error "unknown HEADRACE_ISA_LEVEL"
#endif

#define HEADRACE_INLINE static inline __attribute__((always_inline))
