// Compiled once per instruction set (CMakeLists.txt); HEADRACE_PROBE_<name> says which. No inline function of the standard
// library may be compiled here: the linker could keep the copy with AVX-512 for the whole program.
#include "roofline_kernels.h"

#if defined(__aarch64__)
#include <arm_neon.h>
#else
#include <immintrin.h>
#endif

namespace cli {
namespace {

constexpr int kSums = 12;  // latency of a multiply-add times how many start per cycle, or more

#ifdef HEADRACE_PROBE_avx512_vnni

using Integers = __m512i;
using Floats = __m512;
inline Integers zero() { return _mm512_setzero_si512(); }
inline Integers load(const void* from) { return _mm512_load_si512(from); }
inline Integers add_words(Integers a, Integers b) { return _mm512_add_epi64(a, b); }
inline Integers add(Integers a, Integers b) { return _mm512_add_epi32(a, b); }
inline Integers multiply(Integers sum, Integers a, Integers b) { return _mm512_dpbusd_epi32(sum, a, b); }
inline Floats float_zero() { return _mm512_setzero_ps(); }
inline Floats multiply(Floats sum, Floats a, Floats b) { return _mm512_fmadd_ps(a, b, sum); }

#elif defined(HEADRACE_PROBE_avx2) || defined(HEADRACE_PROBE_avx_vnni)

using Integers = __m256i;
using Floats = __m256;
inline Integers zero() { return _mm256_setzero_si256(); }
inline Integers load(const void* from) { return _mm256_load_si256(static_cast<const Integers*>(from)); }
inline Integers add_words(Integers a, Integers b) { return _mm256_add_epi64(a, b); }
inline Integers add(Integers a, Integers b) { return _mm256_add_epi32(a, b); }
inline Integers multiply(Integers sum, Integers a, Integers b) {
#ifdef HEADRACE_PROBE_avx_vnni
  return _mm256_dpbusd_avx_epi32(sum, a, b);
#else
  return add(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), _mm256_set1_epi16(1)));
#endif
}
inline Floats float_zero() { return _mm256_setzero_ps(); }
inline Floats multiply(Floats sum, Floats a, Floats b) { return _mm256_fmadd_ps(a, b, sum); }

#elif defined(__aarch64__)

using Integers = int32x4_t;
using Floats = float32x4_t;
inline Integers zero() { return vdupq_n_s32(0); }
inline Integers load(const void* from) { return vld1q_s32(static_cast<const int32_t*>(from)); }
inline Integers add_words(Integers a, Integers b) {
  return vreinterpretq_s32_s64(vaddq_s64(vreinterpretq_s64_s32(a), vreinterpretq_s64_s32(b)));
}
inline Integers add(Integers a, Integers b) { return vaddq_s32(a, b); }
inline Integers multiply(Integers sum, Integers words_a, Integers words_b) {
  const int8x16_t a = vreinterpretq_s8_s32(words_a), b = vreinterpretq_s8_s32(words_b);
#ifdef HEADRACE_PROBE_neon_dotprod
  return vdotq_s32(sum, a, b);
#else
  return vpadalq_s16(sum, vpaddq_s16(vmull_s8(vget_low_s8(a), vget_low_s8(b)), vmull_high_s8(a, b)));
#endif
}
inline Floats float_zero() { return vdupq_n_f32(0.0f); }
inline Floats multiply(Floats sum, Floats a, Floats b) { return vfmaq_f32(sum, a, b); }

#else

using Integers = __m128i;
using Floats = __m128;
inline Integers zero() { return _mm_setzero_si128(); }
inline Integers load(const void* from) { return _mm_load_si128(static_cast<const Integers*>(from)); }
inline Integers add_words(Integers a, Integers b) { return _mm_add_epi64(a, b); }
inline Integers add(Integers a, Integers b) { return _mm_add_epi32(a, b); }
inline Integers multiply(Integers sum, Integers a, Integers b) {
  return add(sum, _mm_madd_epi16(_mm_maddubs_epi16(a, b), _mm_set1_epi16(1)));
}
inline Floats float_zero() { return _mm_setzero_ps(); }
inline Floats multiply(Floats sum, Floats a, Floats b) { return _mm_add_ps(sum, _mm_mul_ps(a, b)); }

#endif

// A value that the compiler knows nothing of.
template <class Vector>
inline Vector unknown(Vector value) {
#if defined(__aarch64__)
  asm volatile("" : "+w"(value));
#elif defined(HEADRACE_PROBE_avx512_vnni)
  asm volatile("" : "+v"(value));
#else
  asm volatile("" : "+x"(value));
#endif
  return value;
}

uint64_t read(const void* data, size_t bytes) {
  constexpr size_t kStreams = 8, kLine = 64, kAhead = 1024;
  const char* begin = static_cast<const char*>(data);
  const size_t stream_bytes = bytes / kStreams;
  Integers sums[kStreams];
  for (Integers& sum : sums) sum = zero();
  for (size_t at = 0; at < stream_bytes; at += kLine) {
#pragma GCC unroll 8
    for (size_t stream = 0; stream < kStreams; ++stream) {
      const char* line = begin + stream * stream_bytes + at;
      __builtin_prefetch(line + kAhead, 0, 3);
      for (size_t part = 0; part < kLine; part += sizeof(Integers)) {
        sums[stream] = add_words(sums[stream], load(line + part));
      }
    }
  }
  for (size_t stream = 1; stream < kStreams; ++stream) sums[0] = add_words(sums[0], sums[stream]);
  alignas(64) uint64_t words[sizeof(Integers) / 8];
  __builtin_memcpy(words, &sums[0], sizeof words);
  uint64_t total = 0;
  for (uint64_t word : words) total += word;
  return total;
}

int32_t multiply_int8(uint64_t rounds) {
  Integers a = unknown(zero()), b = unknown(zero());
  Integers sums[kSums];
  for (Integers& sum : sums) sum = unknown(zero());
  for (uint64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
    for (Integers& sum : sums) {
      a = unknown(a);  // or the product would be taken out of the loop
      sum = multiply(sum, a, b);
    }
  }
  for (int i = 1; i < kSums; ++i) sums[0] = add(sums[0], sums[i]);
  int32_t first = 0;
  __builtin_memcpy(&first, &sums[0], sizeof first);
  return first;
}

float multiply_float(uint64_t rounds) {
  Floats a = unknown(float_zero()), b = unknown(float_zero());
  Floats sums[kSums];
  for (Floats& sum : sums) sum = unknown(float_zero());
  for (uint64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
    for (Floats& sum : sums) {
      a = unknown(a);
      sum = multiply(sum, a, b);
    }
  }
  for (int i = 1; i < kSums; ++i) sums[0] = sums[0] + sums[i];
  float first = 0;
  __builtin_memcpy(&first, &sums[0], sizeof first);
  return first;
}

}  // namespace

#if defined(HEADRACE_PROBE_neon)
#define HEADRACE_ROOFLINE kRooflineNeon
#elif defined(HEADRACE_PROBE_neon_dotprod)
#define HEADRACE_ROOFLINE kRooflineNeonDotprod
#elif defined(HEADRACE_PROBE_avx512_vnni)
#define HEADRACE_ROOFLINE kRooflineAvx512Vnni
#elif defined(HEADRACE_PROBE_avx_vnni)
#define HEADRACE_ROOFLINE kRooflineAvxVnni
#elif defined(HEADRACE_PROBE_avx2)
#define HEADRACE_ROOFLINE kRooflineAvx2
#else
#define HEADRACE_ROOFLINE kRooflineBaseline
#endif
const RooflineKernels HEADRACE_ROOFLINE = {read, multiply_int8, multiply_float, kSums * sizeof(Integers),
                                           kSums * sizeof(Floats) / sizeof(float)};

}  // namespace cli
