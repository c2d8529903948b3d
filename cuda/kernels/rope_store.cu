// A block for each token. Its threads work out the angles once, in float64, since a position times a frequency loses
// in float32 what the sine needs; then each warp takes head after head of q, k and v.
#include "device.h"
#include "kernels/attention.h"
#include "kernels/block_reduce.h"
#include "kernels/float_values.h"
#include "kernels/rope_store.h"
#include "launch.h"
#include "ptx/angle.h"

namespace headrace::cuda {
namespace {

constexpr int kWarps = 4, kThreads = 32 * kWarps;

// The layout's numbers as plain values, worked out on the host.
struct CacheShape {
  int32_t num_kv_heads, head_dim, block_size;
  int64_t block_bytes, head_bytes, values_offset;
};

HEADRACE_DEVICE void normalize(float* head, int head_dim, const float* weight, float eps, float offset, int lane) {
  float squares = 0.0f;
  for (int d = lane; d < head_dim; d += 32) squares += head[d] * head[d];
  const float factor = 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(head_dim) + eps);
  for (int d = lane; d < head_dim; d += 32) head[d] *= factor * (weight[d] + offset);
}

template <FloatType kType>
__global__ void __launch_bounds__(kThreads) rope_store_kernel(RopeStoreArguments a, CacheShape cache) {
  HEADRACE_SHARED_ARRAY(float, cosines, kMaxHeadDim / 2);
  HEADRACE_SHARED_ARRAY(float, sines, kMaxHeadDim / 2);
  HEADRACE_SHARED_ARRAY(float, rows, kWarps* kMaxHeadDim);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t token = blockIdx.x;
  const int head_dim = cache.head_dim, pairs = a.rotary_dim / 2;
  for (int i = static_cast<int>(threadIdx.x); i < pairs; i += kThreads) {
    constexpr double kHalfTurn = 3.141592653589793;
    const double angle = static_cast<double>(a.positions[token]) * static_cast<double>(a.inv_freq[i]) / kHalfTurn;
    float sine = 0.0f, cosine = 0.0f;
    sine_and_cosine(static_cast<float>(angle - 2.0 * rint(angle / 2.0)), &sine, &cosine);
    cosines[i] = cosine * a.attention_factor;
    sines[i] = sine * a.attention_factor;
  }
  __syncthreads();

  const int64_t slot = a.slots[token], offset = slot % cache.block_size;
  std::byte* const block = a.cache + slot / cache.block_size * cache.block_bytes;
  float* const row = rows + warp * kMaxHeadDim;
  const int num_heads = a.num_heads, num_kv_heads = cache.num_kv_heads;
  for (int item = warp; item < num_heads + 2 * num_kv_heads; item += kWarps) {
    const bool is_query = item < num_heads, is_key = !is_query && item < num_heads + num_kv_heads;
    const int head = is_query ? item : (item - num_heads) % num_kv_heads;
    const float* from = is_query ? a.q + (token * num_heads + head) * head_dim
                                 : (is_key ? a.k : a.v) + (token * num_kv_heads + head) * head_dim;
    // A lane loads and stores the same dims, so that this does not overtake what another still stores.
    for (int d = lane; d < head_dim; d += 32) row[d] = from[d];
    const float* const norm = is_query ? a.q_norm : is_key ? a.k_norm : nullptr;
    if (norm != nullptr && !a.norm_after_rotation) {
      normalize(row, head_dim, norm, a.norm_eps, a.norm_weight_offset, lane);
    }
    __syncwarp();
    if (is_query || is_key) {
      for (int i = lane; i < pairs; i += 32) {
        const int first = a.interleaved ? 2 * i : i, second = a.interleaved ? 2 * i + 1 : i + pairs;
        const float x = row[first], y = row[second];
        row[first] = x * cosines[i] - y * sines[i];
        row[second] = y * cosines[i] + x * sines[i];
      }
    }
    __syncwarp();
    if (norm != nullptr && a.norm_after_rotation) {
      normalize(row, head_dim, norm, a.norm_eps, a.norm_weight_offset, lane);
    }
    std::byte* const cached = block + head * cache.head_bytes;
    if (is_query) {
      const float factor = a.q_scale == nullptr ? 1.0f : a.q_scale[token];
      float* const out = a.q + (token * num_heads + head) * head_dim;
      for (int d = lane; d < head_dim; d += 32) out[d] = row[d] * factor;
    } else if (is_key) {  // 16 tokens lie side by side
      const int64_t first = offset / kKvTile * head_dim * kKvTile + offset % kKvTile;
      for (int d = lane; d < head_dim; d += 32) store_float<kType>(cached, first + d * kKvTile, row[d]);
    } else {
      for (int d = lane; d < head_dim; d += 32) {
        store_float<kType>(cached + cache.values_offset, offset * head_dim + d, row[d]);
      }
    }
  }
}

}  // namespace

cudaError_t rope_and_store_kv(const RopeStoreArguments& a, cudaStream_t stream) {
  const KvLayout& layout = a.layout;
  if (layout.content != KvContent::kKeysAndValues || layout.head_dim <= 0 || layout.head_dim > kMaxHeadDim ||
      a.rotary_dim % 2 != 0 || a.rotary_dim < 0 || a.rotary_dim > layout.head_dim || a.num_tokens < 0) {
    return cudaErrorInvalidValue;
  }
  if (a.num_tokens == 0) return cudaSuccess;
  const CacheShape cache{layout.num_kv_heads,
                         layout.head_dim,
                         layout.block_size,
                         static_cast<int64_t>(layout.block_bytes()),
                         static_cast<int64_t>(layout.head_bytes()),
                         static_cast<int64_t>(layout.values_offset())};
  const LaunchShape shape{dim3(static_cast<unsigned>(a.num_tokens)), kThreads, 0, stream};
  switch (layout.dtype) {
    case KvDType::kF32: return launch("rope_and_store_kv", rope_store_kernel<FloatType::kF32>, shape, a, cache);
    case KvDType::kF16: return launch("rope_and_store_kv", rope_store_kernel<FloatType::kF16>, shape, a, cache);
    case KvDType::kBF16: return launch("rope_and_store_kv", rope_store_kernel<FloatType::kBF16>, shape, a, cache);
    case KvDType::kQ8: break;
  }
  return cudaErrorInvalidValue;
}

}  // namespace headrace::cuda
