// A block for each row and head. It takes the positions in tiles of 128, from a multiple of 128: first a score for each thread,
// then a dim of the output for each.
#include "kernels/attention_float.h"

#include "device.h"
#include "kernels/block_reduce.h"
#include "kernels/float_values.h"
#include "launch.h"

namespace headrace::cuda {
namespace {

constexpr int kWarps = 4, kThreads = 32 * kWarps;
constexpr int kDims = kMaxHeadDim / kThreads;  // of a thread

struct CacheShape {
  int64_t block_bytes, head_bytes, values_offset;
};

template <FloatType kType>
__global__ void __launch_bounds__(kThreads) attention_float_kernel(AttentionFloatArguments a, CacheShape cache) {
  HEADRACE_SHARED_ARRAY(float, query, kMaxHeadDim);
  HEADRACE_SHARED_ARRAY(float, weights, kThreads);
  HEADRACE_SHARED_ARRAY(float, of_warp, 2 * kWarps);
  const int thread = static_cast<int>(threadIdx.x), head = static_cast<int>(blockIdx.y);
  const int64_t token = blockIdx.x;
  const int head_dim = a.layout.head_dim, block_size = a.layout.block_size;
  const int kv_head = head / (a.num_heads / a.layout.num_kv_heads);
  const int32_t* const table = a.block_tables + static_cast<int64_t>(a.sequences[token]) * a.max_blocks;
  const int position = a.positions[token];
  int first = a.window > 0 ? max(0, position - a.window + 1) : 0;
  if (a.chunk > 0) first = max(first, position / a.chunk * a.chunk);
  const auto head_at = [&](int at) {
    return a.cache + table[at / block_size] * cache.block_bytes + kv_head * cache.head_bytes;
  };

  for (int d = thread; d < head_dim; d += kThreads) query[d] = a.q[(token * a.num_heads + head) * head_dim + d];
  __syncthreads();
  float out[kDims] = {}, top = -INFINITY, sum = 0.0f;
  for (int tile = first / kThreads * kThreads; tile <= position; tile += kThreads) {
    const int at = tile + thread;
    float score = -INFINITY;
    if (at >= first && at <= position) {
      const int row = at % block_size;
      const int64_t key = static_cast<int64_t>(row / kKvTile) * head_dim * kKvTile + row % kKvTile;
      const std::byte* const keys = head_at(at);
      score = 0.0f;
      for (int d = 0; d < head_dim; ++d) score += query[d] * load_float<kType>(keys, key + d * kKvTile);
      score *= a.scale;
      if (a.logit_softcap > 0) score = a.logit_softcap * tanhf(score / a.logit_softcap);
    }
    const float highest = fmaxf(top, block_max<kWarps>(score, of_warp));
    const float kept = expf(top - highest);
    const float weight = score == -INFINITY ? 0.0f : expf(score - highest);
    weights[thread] = weight;  // all have read the last tile's before they came to that barrier
    // Its barrier is also what the weights wait for.
    sum = sum * kept + block_sum<kWarps>(weight, of_warp + kWarps);
    top = highest;
    const int end = min(tile + kThreads, position + 1);
    for (int i = 0; i < kDims; ++i) out[i] *= kept;
    for (int seen = max(tile, first); seen < end; ++seen) {
      const std::byte* const values = head_at(seen) + cache.values_offset;
      const int64_t row = static_cast<int64_t>(seen % block_size) * head_dim;
      for (int i = 0; i < kDims; ++i) {
        const int d = thread + i * kThreads;
        if (d < head_dim) out[i] += weights[seen - tile] * load_float<kType>(values, row + d);
      }
    }
  }
  if (a.sinks != nullptr) {
    const float highest = fmaxf(top, a.sinks[head]), kept = expf(top - highest);
    sum = sum * kept + expf(a.sinks[head] - highest);
    for (int i = 0; i < kDims; ++i) out[i] *= kept;
  }
  for (int i = 0; i < kDims; ++i) {
    const int d = thread + i * kThreads;
    if (d < head_dim) a.out[(token * a.num_heads + head) * head_dim + d] = out[i] / sum;
  }
}

}  // namespace

cudaError_t attention_float(const AttentionFloatArguments& a, cudaStream_t stream) {
  const KvLayout& layout = a.layout;
  if (layout.content != KvContent::kKeysAndValues || layout.num_kv_heads <= 0 ||
      a.num_heads % layout.num_kv_heads != 0 || layout.head_dim <= 0 || layout.head_dim > kMaxHeadDim ||
      a.num_tokens < 0) {
    return cudaErrorInvalidValue;
  }
  if (a.num_tokens == 0) return cudaSuccess;
  const CacheShape cache{static_cast<int64_t>(layout.block_bytes()), static_cast<int64_t>(layout.head_bytes()),
                         static_cast<int64_t>(layout.values_offset())};
  const dim3 grid(static_cast<unsigned>(a.num_tokens), static_cast<unsigned>(a.num_heads));
  const LaunchShape shape{grid, kThreads, 0, stream};
  switch (layout.dtype) {
    case KvDType::kF32: return launch("attention_float", attention_float_kernel<FloatType::kF32>, shape, a, cache);
    case KvDType::kF16: return launch("attention_float", attention_float_kernel<FloatType::kF16>, shape, a, cache);
    case KvDType::kBF16: return launch("attention_float", attention_float_kernel<FloatType::kBF16>, shape, a, cache);
    case KvDType::kQ8: break;
  }
  return cudaErrorInvalidValue;
}

}  // namespace headrace::cuda
