// The instruction set a kernel source is being compiled for. Kernel files include only intrinsics, <stdint.h>,
// <stddef.h>, <string.h> and headers of this folder: an inline function of the standard library compiled here with
// AVX-512 could be the copy the linker keeps for the whole program.
//
// lib/cpu/CMakeLists.txt defines HEADRACE_ISA_<name>. What it means is told by these macros:
//   HEADRACE_ISA_NAMESPACE    the namespace of its kernels
//   HEADRACE_FLOAT_NAMESPACE  the one whose kernels it has, apart from the quantized ones
//   HEADRACE_NEON             1: AArch64, with vectors of 128 bits; 0: x86-64
//   HEADRACE_VECTOR_BITS      width of a vector register of x86-64, else 0
//   HEADRACE_VECTOR_REGISTERS how many there are
//   HEADRACE_EXACT_DOT        1: four products of bytes are added to an int32 with nothing saturating in between;
//                             0: pairs of products are added as int16 first, so codes must be small
//   HEADRACE_UNSIGNED_DOT     1: the exact dot product takes unsigned weights, so signed codes are stored with 128
//                             added; 0: codes are stored as they are
//   HEADRACE_SIGNED_DOT       1: AArch64 has an instruction for the exact dot product
#pragma once

#if defined(HEADRACE_ISA_baseline)  // x86-64-v2
#define HEADRACE_ISA_NAMESPACE isa_baseline
#define HEADRACE_ISA_NAME "baseline"
#define HEADRACE_VECTOR_BITS 128
#elif defined(HEADRACE_ISA_avx2)  // AVX2, FMA, F16C
#define HEADRACE_ISA_NAMESPACE isa_avx2
#define HEADRACE_ISA_NAME "avx2"
#define HEADRACE_VECTOR_BITS 256
#elif defined(HEADRACE_ISA_avx_vnni)  // AVX2 and AVX-VNNI
#define HEADRACE_ISA_NAMESPACE isa_avx_vnni
#define HEADRACE_FLOAT_NAMESPACE isa_avx2
#define HEADRACE_ISA_NAME "avx_vnni"
#define HEADRACE_VECTOR_BITS 256
#define HEADRACE_EXACT_DOT 1
#define HEADRACE_UNSIGNED_DOT 1
#elif defined(HEADRACE_ISA_avx512_vnni)  // AVX-512 F, BW, DQ, VL and VNNI
#define HEADRACE_ISA_NAMESPACE isa_avx512_vnni
#define HEADRACE_ISA_NAME "avx512_vnni"
#define HEADRACE_VECTOR_BITS 512
#define HEADRACE_EXACT_DOT 1
#define HEADRACE_UNSIGNED_DOT 1
#elif defined(HEADRACE_ISA_neon)  // Armv8.0-A
#define HEADRACE_ISA_NAMESPACE isa_neon
#define HEADRACE_ISA_NAME "neon"
#define HEADRACE_NEON 1
#define HEADRACE_EXACT_DOT 1
#elif defined(HEADRACE_ISA_neon_dotprod)  // with the dot products of Armv8.2-A
#define HEADRACE_ISA_NAMESPACE isa_neon_dotprod
#define HEADRACE_FLOAT_NAMESPACE isa_neon
#define HEADRACE_ISA_NAME "neon_dotprod"
#define HEADRACE_NEON 1
#define HEADRACE_EXACT_DOT 1
#define HEADRACE_SIGNED_DOT 1
#else
#error "kernel sources are compiled through the per-ISA sources that lib/cpu/CMakeLists.txt generates"
#endif

#ifndef HEADRACE_FLOAT_NAMESPACE
#define HEADRACE_FLOAT_NAMESPACE HEADRACE_ISA_NAMESPACE
#endif
#ifndef HEADRACE_NEON
#define HEADRACE_NEON 0
#endif
#ifndef HEADRACE_VECTOR_BITS
#define HEADRACE_VECTOR_BITS 0
#endif
#if HEADRACE_NEON || HEADRACE_VECTOR_BITS == 512
#define HEADRACE_VECTOR_REGISTERS 32
#else
#define HEADRACE_VECTOR_REGISTERS 16
#endif
#ifndef HEADRACE_EXACT_DOT
#define HEADRACE_EXACT_DOT 0
#endif
#ifndef HEADRACE_UNSIGNED_DOT
#define HEADRACE_UNSIGNED_DOT 0
#endif
#ifndef HEADRACE_SIGNED_DOT
#define HEADRACE_SIGNED_DOT 0
#endif

namespace headrace::HEADRACE_ISA_NAMESPACE {
constexpr int kVectorRegisters = HEADRACE_VECTOR_REGISTERS;
constexpr bool kExactDot = HEADRACE_EXACT_DOT;
constexpr bool kUnsignedDot = HEADRACE_UNSIGNED_DOT;
}  // namespace headrace::HEADRACE_ISA_NAMESPACE

#if defined(__clang__)
#define HEADRACE_UNROLL _Pragma("clang loop unroll(full)")
#else
#define HEADRACE_UNROLL _Pragma("GCC unroll 16")
#endif
#define HEADRACE_INLINE static inline __attribute__((always_inline))
