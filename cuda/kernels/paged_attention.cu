// A block computes 16 rows (query heads of one KV head, of one or several neighbouring tokens) over one split of the
// positions. Its warps take tiles of 16 positions in turn, each with a ring of two tiles of its own, and are merged in the end; a
// second kernel merges the splits.
//
// Keys lie in the cache as [head_dim][16 positions], values as [16 positions][head_dim]. Both are what ldmatrix
// transposes into the second operand of mma: of the scores, K^T, and of the output, V.
#include "device.h"
#include "kernels/paged_attention.h"
#include "launch.h"
#include "ptx/async_copy.h"
#include "ptx/half.h"
#include "ptx/matrix.h"
#include "ptx/memory.h"

namespace headrace::cuda {
namespace {

constexpr int kWarps = 4, kThreads = 32 * kWarps;
constexpr int kRows = 16;
constexpr int kStages = 2;
constexpr unsigned kFull = 0xFFFFFFFFu;

// The arguments as the device needs them.
struct Shape {
  int32_t group, num_kv_heads, block_size, splits;
  int64_t block_bytes, head_bytes, values_offset;
  float* sums;   // [num_tokens, num_heads, splits, head_dim] of e^(score - top) value
  float* stats;  // [num_tokens, num_heads, splits, 2] the top score, the sum of e^(score - top)
};

template <int kHeadDim>
struct Tile {
  uint4 keys[2 * kHeadDim];        // chunk c of dim d at 2 d + (c ^ d / 4 % 2)
  uint4 values[16][kHeadDim / 8];  // chunk c of position p at c ^ p % 8
};

template <int kHeadDim>
struct Merge {
  float sums[kWarps][kRows][kHeadDim + 8];  // rows apart, so that lanes of a column meet no bank twice
  float top[kWarps][kRows], sum[kWarps][kRows];
};

template <int kHeadDim>
constexpr size_t shared_bytes() {
  constexpr size_t kRings = sizeof(Tile<kHeadDim>) * kStages * kWarps, kMerge = sizeof(Merge<kHeadDim>);
  return kRings > kMerge ? kRings : kMerge;
}

HEADRACE_DEVICE float exponential(float x) { return expf(x); }

template <int kHeadDim>
__global__ void __launch_bounds__(kThreads) attention_kernel(PagedAttentionArguments a, Shape s) {
  HEADRACE_DYNAMIC_SHARED(raw);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4, t = lane % 4;
  const AttentionTile tile = a.tiles[blockIdx.x];
  const int kv_head = static_cast<int>(blockIdx.y), split = static_cast<int>(blockIdx.z);
  const int rows = tile.num_tokens * s.group;
  const int last = a.positions[tile.first_token + tile.num_tokens - 1];  // positions ascend
  const int first_position = split * kAttentionSplit;
  if (first_position > last) return;

  // Row r: token r / group of the tile, head r % group of the KV head. The lane's rows are g and g + 8.
  int position[2];
  const float* query[2];
  for (int i = 0; i < 2; ++i) {
    const int row = g + 8 * i, token = tile.first_token + row / s.group;
    position[i] = row < rows ? a.positions[token] : -1;
    query[i] = a.q + (static_cast<int64_t>(token) * a.num_heads + kv_head * s.group + row % s.group) * kHeadDim;
  }
  uint32_t q[kHeadDim / 16][4];
  HEADRACE_UNROLL
  for (int step = 0; step < kHeadDim / 16; ++step) {
    HEADRACE_UNROLL
    for (int i = 0; i < 4; ++i) {
      const bool present = position[i % 2] >= 0;
      float2 pair = make_float2(0.0f, 0.0f);
      if (present) pair = load_vector<float2>(query[i % 2] + step * 16 + 2 * t + i / 2 * 8);
      q[step][i] = pack_half2(pair.x, pair.y);
    }
  }

  auto* const ring = reinterpret_cast<Tile<kHeadDim>*>(raw) + warp * kStages;
  const int end_position = min(first_position + kAttentionSplit, last + 1);
  const int tiles =
      (end_position - first_position + 15) / 16;  // of this split, the warp's are warp, warp + kWarps, ...
  const auto load = [&](int number) {
    if (number < tiles) {
      Tile<kHeadDim>& to = ring[number / kWarps % kStages];
      const int begin = first_position + number * 16;
      const int64_t block = a.block_tables[static_cast<int64_t>(tile.sequence) * a.max_blocks + begin / s.block_size];
      const std::byte* head = a.cache + block * s.block_bytes + kv_head * s.head_bytes;
      const int row = begin % s.block_size;
      const std::byte* keys = head + row * kHeadDim * 2;
      const std::byte* values = head + s.values_offset + row * kHeadDim * 2;
      for (int i = lane; i < 2 * kHeadDim; i += 32) {
        const int dim = i / 2, chunk = i % 2;
        copy_async_16(&to.keys[2 * dim + (chunk ^ (dim / 4 % 2))], keys + i * 16, begin + chunk * 8 <= last);
      }
      for (int i = lane; i < 2 * kHeadDim; i += 32) {
        const int at = i / (kHeadDim / 8), chunk = i % (kHeadDim / 8);
        // Zeros behind the end: a weight of zero does not undo an infinity.
        copy_async_16(&to.values[at][chunk ^ (at % 8)], values + i * 16, begin + at <= last);
      }
    }
    copy_async_commit();
  };

  float out[kHeadDim / 8][4] = {};
  float top[2] = {-INFINITY, -INFINITY}, sum[2] = {};  // sum: of the lane's own columns
  load(warp);
  for (int number = warp; number < tiles; number += kWarps) {
    load(number + kWarps);
    copy_async_wait<kStages - 1>();
    __syncwarp();
    const Tile<kHeadDim>& in = ring[number / kWarps % kStages];
    float scores[2][4] = {};  // of positions 0-7 and 8-15
    HEADRACE_UNROLL
    for (int step = 0; step < kHeadDim / 16; ++step) {
      uint32_t k[4];
      const int dim = step * 16 + lane % 16;
      load_matrix_x4_transposed(k, &in.keys[2 * dim + (lane / 16 ^ (dim / 4 % 2))]);
      mma_f16(scores[0], q[step], {k[0], k[1]});
      mma_f16(scores[1], q[step], {k[2], k[3]});
    }
    const int begin = first_position + number * 16;
    uint32_t weights[4];
    float scaled[2] = {1.0f, 1.0f};
    HEADRACE_UNROLL
    for (int i = 0; i < 2; ++i) {
      float largest = top[i];
      HEADRACE_UNROLL
      for (int j = 0; j < 4; ++j) {
        float& score = scores[j / 2][2 * i + j % 2];
        const int at = begin + j / 2 * 8 + 2 * t + j % 2;
        const bool seen = at <= position[i] && (a.window <= 0 || at > position[i] - a.window);
        score *= a.scale;
        if (a.logit_softcap > 0) score = a.logit_softcap * tanhf(score / a.logit_softcap);
        if (!seen) score = -INFINITY;
        largest = fmaxf(largest, score);
      }
      largest = fmaxf(largest, __shfl_xor_sync(kFull, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(kFull, largest, 2));
      // A row that has seen nothing yet keeps zeros.
      const bool nothing = largest == -INFINITY;
      scaled[i] = nothing ? 1.0f : exponential(top[i] - largest);
      float weight[4];
      for (int j = 0; j < 4; ++j) {
        weight[j] = nothing ? 0.0f : exponential(scores[j / 2][2 * i + j % 2] - largest);
      }
      sum[i] = sum[i] * scaled[i] + ((weight[0] + weight[1]) + (weight[2] + weight[3]));
      top[i] = largest;
      weights[i] = pack_half2(weight[0], weight[1]);
      weights[2 + i] = pack_half2(weight[2], weight[3]);
    }
    HEADRACE_UNROLL
    for (int pair = 0; pair < kHeadDim / 16; ++pair) {
      uint32_t v[4];
      const int at = lane % 16, chunk = 2 * pair + lane / 16;
      load_matrix_x4_transposed(v, &in.values[at][chunk ^ (at % 8)]);
      HEADRACE_UNROLL
      for (int half = 0; half < 2; ++half) {
        float(&d)[4] = out[2 * pair + half];
        for (int i = 0; i < 4; ++i) d[i] *= scaled[i / 2];
        mma_f16(d, weights, {v[2 * half], v[2 * half + 1]});
      }
    }
    __syncwarp();  // the next load takes this tile's place
  }
  __syncthreads();  // what the warps merge lies where their tiles were; no copy is under way

  auto& merge = *reinterpret_cast<Merge<kHeadDim>*>(raw);
  HEADRACE_UNROLL
  for (int i = 0; i < 2; ++i) {
    sum[i] += __shfl_xor_sync(kFull, sum[i], 1);
    sum[i] += __shfl_xor_sync(kFull, sum[i], 2);
    const int row = g + 8 * i;
    if (t == 0) {
      merge.top[warp][row] = top[i];
      merge.sum[warp][row] = sum[i];
    }
    HEADRACE_UNROLL
    for (int j = 0; j < kHeadDim / 8; ++j) {
      store_vector(&merge.sums[warp][row][8 * j + 2 * t], make_float2(out[j][2 * i], out[j][2 * i + 1]));
    }
  }
  __syncthreads();
  for (int row = warp; row < rows; row += kWarps) {
    float highest = -INFINITY, total = 0.0f, factor[kWarps];
    for (int w = 0; w < kWarps; ++w) highest = fmaxf(highest, merge.top[w][row]);
    if (highest == -INFINITY) continue;  // the row sees nothing of this split
    for (int w = 0; w < kWarps; ++w) {
      factor[w] = exponential(merge.top[w][row] - highest);
      total += merge.sum[w][row] * factor[w];
    }
    const int64_t token = tile.first_token + row / s.group, head = kv_head * s.group + row % s.group;
    const int64_t part = (token * a.num_heads + head) * s.splits + split;
    for (int d = lane; d < kHeadDim; d += 32) {
      float value = 0.0f;
      for (int w = 0; w < kWarps; ++w) value += merge.sums[w][row][d] * factor[w];
      s.sums[part * kHeadDim + d] = value;
    }
    if (lane == 0) store_vector(s.stats + part * 2, make_float2(highest, total));
  }
}

// A warp for each row and head.
__global__ void __launch_bounds__(kThreads) merge_splits_kernel(PagedAttentionArguments a, Shape s, int head_dim) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (row >= a.num_tokens * a.num_heads) return;
  const int lane = static_cast<int>(threadIdx.x) % 32, position = a.positions[row / a.num_heads];
  const int first = a.window > 0 ? max(0, position - a.window + 1) / kAttentionSplit : 0;
  const int end = position / kAttentionSplit + 1;
  float highest = -INFINITY;
  for (int split = first; split < end; ++split) highest = fmaxf(highest, s.stats[(row * s.splits + split) * 2]);
  const float sink = a.sinks == nullptr ? -INFINITY : a.sinks[row % a.num_heads];
  highest = fmaxf(highest, sink);
  for (int d = 2 * lane; d < head_dim; d += 64) {
    float2 value = make_float2(0.0f, 0.0f);
    float total = exponential(sink - highest);
    for (int split = first; split < end; ++split) {
      const int64_t part = row * s.splits + split;
      const float2 stats = load_vector<float2>(s.stats + part * 2);
      const float factor = exponential(stats.x - highest);
      const float2 sums = load_vector<float2>(s.sums + part * head_dim + d);
      total += stats.y * factor;
      value.x += sums.x * factor;
      value.y += sums.y * factor;
    }
    store_vector(a.out + row * head_dim + d, make_float2(value.x / total, value.y / total));
  }
}

template <int kHeadDim>
cudaError_t start(const PagedAttentionArguments& a, const Shape& shape, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(a.num_tiles), static_cast<unsigned>(shape.num_kv_heads),
                  static_cast<unsigned>(shape.splits));
  return launch("paged_attention", attention_kernel<kHeadDim>, {grid, kThreads, shared_bytes<kHeadDim>(), stream}, a,
                shape);
}

}  // namespace

size_t attention_workspace(const PagedAttentionArguments& a) {
  return static_cast<size_t>(a.num_tokens) * static_cast<size_t>(a.num_heads) * static_cast<size_t>(a.splits()) *
         static_cast<size_t>(a.layout.head_dim + 2);
}

cudaError_t paged_attention(const PagedAttentionArguments& a, cudaStream_t stream) {
  const KvLayout& layout = a.layout;
  if (layout.dtype != KvDType::kF16 || layout.content != KvContent::kKeysAndValues || layout.num_kv_heads <= 0 ||
      a.num_heads % layout.num_kv_heads != 0 || a.group() > kRows || a.num_tokens < 0 ||
      (layout.head_dim != 64 && layout.head_dim != 128)) {
    return cudaErrorInvalidValue;
  }
  if (a.num_tokens == 0) return cudaSuccess;
  const Shape shape{a.group(),
                    layout.num_kv_heads,
                    layout.block_size,
                    a.splits(),
                    static_cast<int64_t>(layout.block_bytes()),
                    static_cast<int64_t>(layout.head_bytes()),
                    static_cast<int64_t>(layout.values_offset()),
                    a.workspace,
                    a.workspace + a.num_tokens * a.num_heads * a.splits() * layout.head_dim};
  const cudaError_t error = layout.head_dim == 64 ? start<64>(a, shape, stream) : start<128>(a, shape, stream);
  if (error != cudaSuccess) return error;
  const int64_t rows = a.num_tokens * a.num_heads;
  return launch("merge_splits", merge_splits_kernel,
                {dim3(static_cast<unsigned>((rows + kWarps - 1) / kWarps)), kThreads, 0, stream}, a, shape,
                layout.head_dim);
}

}  // namespace headrace::cuda
