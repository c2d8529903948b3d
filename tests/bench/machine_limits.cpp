#include "bench/machine_limits.h"

#include <immintrin.h>

#include <algorithm>
#include <atomic>
#include <chrono>

// The chains are registers only once their loops are unrolled.
#if defined(__clang__)
#define HEADRACE_UNROLL _Pragma("clang loop unroll(full)")
#else
#define HEADRACE_UNROLL _Pragma("GCC unroll 20")
#endif

namespace headrace {
namespace {

using Clock = std::chrono::steady_clock;

// Independent sums: FMA latency (4 or 5) times FMAs per cycle (2), with room to spare.
constexpr int kChains = 16;
constexpr long kSteps = 2'000'000;

// Each returns something that depends on every step.
__attribute__((target("avx512f"))) float run_avx512(long steps) {
  __m512 sums[kChains];
  HEADRACE_UNROLL
  for (int i = 0; i < kChains; ++i) sums[i] = _mm512_set1_ps(static_cast<float>(i + 2));
  const __m512 a = _mm512_set1_ps(0.999f), b = _mm512_set1_ps(0.001f);
  for (long step = 0; step < steps; ++step) {
    HEADRACE_UNROLL
    for (int i = 0; i < kChains; ++i) sums[i] = _mm512_fmadd_ps(sums[i], a, b);
  }
  __m512 sum = sums[0];
  HEADRACE_UNROLL
  for (int i = 1; i < kChains; ++i) sum = _mm512_add_ps(sum, sums[i]);
  return _mm512_cvtss_f32(sum);
}

// AVX2 has 16 registers, of which the chains leave two for the factors.
constexpr int kChains16 = 14;

__attribute__((target("avx2,fma"))) float run_avx2(long steps) {
  __m256 sums[kChains16];
  HEADRACE_UNROLL
  for (int i = 0; i < kChains16; ++i) sums[i] = _mm256_set1_ps(static_cast<float>(i + 2));
  const __m256 a = _mm256_set1_ps(0.999f), b = _mm256_set1_ps(0.001f);
  for (long step = 0; step < steps; ++step) {
    HEADRACE_UNROLL
    for (int i = 0; i < kChains16; ++i) sums[i] = _mm256_fmadd_ps(sums[i], a, b);
  }
  __m256 sum = sums[0];
  HEADRACE_UNROLL
  for (int i = 1; i < kChains16; ++i) sum = _mm256_add_ps(sum, sums[i]);
  return _mm256_cvtss_f32(sum);
}

// The product is a term of its own, as in a kernel: a chain holds only the addition.
float run_baseline(long steps) {
  __m128 sums[kChains16 - 2];
  HEADRACE_UNROLL
  for (int i = 0; i < kChains16 - 2; ++i) sums[i] = _mm_set1_ps(static_cast<float>(i + 2));
  const __m128 a = _mm_set1_ps(0.999f), b = _mm_set1_ps(0.001f);
  for (long step = 0; step < steps; ++step) {
    HEADRACE_UNROLL
    for (int i = 0; i < kChains16 - 2; ++i) sums[i] = _mm_add_ps(_mm_mul_ps(sums[i], a), b);
  }
  __m128 sum = sums[0];
  HEADRACE_UNROLL
  for (int i = 1; i < kChains16 - 2; ++i) sum = _mm_add_ps(sum, sums[i]);
  return _mm_cvtss_f32(sum);
}

}  // namespace

double fma_peak(Isa isa, ThreadPool& pool) {
  const int lanes = isa == Isa::kAvx512Vnni ? 16 * kChains : isa == Isa::kAvx2 ? 8 * kChains16 : 4 * (kChains16 - 2);
  const auto run = isa == Isa::kAvx512Vnni ? run_avx512 : isa == Isa::kAvx2 ? run_avx2 : run_baseline;
  std::atomic<float> sink{0.0f};
  double best = 0.0;
  for (int repeat = 0; repeat < 5; ++repeat) {
    const auto start = Clock::now();
    pool.run(pool.num_threads(), [&](int64_t, int) { sink.store(run(kSteps), std::memory_order_relaxed); });
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    best = std::max(best, static_cast<double>(kSteps) * lanes * pool.num_threads() / seconds);
  }
  return best;
}

double ReadProbe::pass(ThreadPool& pool) const {
  constexpr size_t kPiece = size_t{1} << 17;  // words: 1 MB
  std::atomic<unsigned long long> sink{0};
  const size_t pieces = words_.size() / kPiece;
  const auto start = Clock::now();
  pool.run(static_cast<int64_t>(pieces), [&](int64_t piece, int) {
    const unsigned long long* at = words_.data() + static_cast<size_t>(piece) * kPiece;
    unsigned long long sums[16] = {};
    for (size_t i = 0; i < kPiece; i += 16) {
      for (size_t j = 0; j < 16; ++j) sums[j] += at[i + j];
    }
    unsigned long long sum = 0;
    for (unsigned long long each : sums) sum += each;
    sink.fetch_add(sum, std::memory_order_relaxed);
  });
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  return static_cast<double>(pieces * kPiece * sizeof(unsigned long long)) / seconds;
}

}  // namespace headrace
