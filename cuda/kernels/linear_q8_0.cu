// Weights are the first operand of mma, 16 rows to a warp, and tokens the second, 8 at a time: one token wastes little.
// A ring of stages of 64 columns is filled by cp.async. The codes of a scale's 32 columns are widened to float16, exactly,
// and multiplied; the float32 sums of the 32 products are then scaled and added to the row's. K is cut at places that the
// weight's shape alone decides, and the parts are added in order.
#include "device.h"
#include "kernels/linear_q8_0.h"
#include "kernels/linear_store.h"
#include "launch.h"
#include "ptx/async_copy.h"
#include "ptx/half.h"
#include "ptx/matrix.h"
#include "ptx/memory.h"

namespace headrace::cuda {
namespace {

constexpr int kWarps = 4, kThreads = 32 * kWarps;
constexpr int kColumns = kLinearColumns;  // of a stage
static_assert(kLinearRows == 16 * kWarps);
constexpr int kStages = 4;

template <int kTokens>
struct Stage {
  uint4 codes[kWarps][2][32];
  uint4 scales[kWarps][2][2];  // 16 float16 each
  uint4 x[kTokens][8];         // chunk c of row r lies at c ^ r % 8, so that ldmatrix meets no bank twice
};

// Two codes, in bytes 0 and 1 or 2 and 3 of a word: with 0x64 above it a byte is the float16 1024 + byte.
template <int kFirst>
HEADRACE_DEVICE uint32_t widen(uint32_t word) {
  constexpr uint32_t kSelect = kFirst == 0 ? 0x4140 : 0x4342;
  return subtract_half2(permute_bytes(word, 0x64646464u, kSelect), 0x64806480u);  // 1024 + 128
}

template <int kTokens>
__global__ void __launch_bounds__(kThreads) linear_q8_0_kernel(LinearQ8Arguments a) {
  HEADRACE_DYNAMIC_SHARED(raw);
  auto* const stages = reinterpret_cast<Stage<kTokens>*>(raw);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int64_t steps = a.weight.cols / 32;  // of a scale
  const int64_t tiles = a.weight.cols / kColumns, splits = gridDim.y;
  const int64_t first_tile = tiles * blockIdx.y / splits, end_tile = tiles * (blockIdx.y + 1) / splits;
  const int64_t strip = static_cast<int64_t>(blockIdx.x) * kWarps + warp;  // of 16 rows
  const bool has_rows = strip * 16 < a.weight.rows;
  const int64_t first_token = static_cast<int64_t>(blockIdx.z) * kTokens;

  const auto load = [&](int64_t tile) {
    if (tile < end_tile) {
      Stage<kTokens>& stage = stages[tile % kStages];
      const int64_t record = (has_rows ? strip * steps : 0) + 2 * tile;
      const uint8_t* codes = a.weight.codes + record * 512;
      copy_async_16(&stage.codes[warp][0][lane], codes + lane * 16, has_rows);
      copy_async_16(&stage.codes[warp][1][lane], codes + 512 + lane * 16, has_rows);
      if (lane < 4)
        copy_async_16(&stage.scales[warp][lane / 2][lane % 2], a.weight.scales + record * 16 + lane * 8, has_rows);
      for (int i = thread; i < kTokens * 8; i += kThreads) {
        const int row = i / 8, chunk = i % 8;
        const bool present = first_token + row < a.num_tokens;
        const int64_t token = present ? first_token + row : 0;
        copy_async_16(&stage.x[row][chunk ^ (row % 8)], a.x + token * a.weight.cols + tile * kColumns + chunk * 8,
                      present);
      }
    }
    copy_async_commit();
  };

  float sums[kTokens / 8][4] = {};
  for (int i = 0; i < kStages - 1; ++i) load(first_tile + i);
  for (int64_t tile = first_tile; tile < end_tile; ++tile) {
    copy_async_wait<kStages - 2>();
    __syncthreads();
    load(tile + kStages - 1);
    const Stage<kTokens>& stage = stages[tile % kStages];
    HEADRACE_UNROLL
    for (int step = 0; step < 2; ++step) {
      const uint4 codes = load_vector<uint4>(&stage.codes[warp][step][lane]);
      const uint32_t w[2][4] = {{widen<0>(codes.x), widen<2>(codes.x), widen<0>(codes.y), widen<2>(codes.y)},
                                {widen<0>(codes.z), widen<2>(codes.z), widen<0>(codes.w), widen<2>(codes.w)}};
      const auto* scales = reinterpret_cast<const uint16_t*>(stage.scales[warp][step]);
      const float upper = half_bits_to_float(scales[lane / 4]), lower = half_bits_to_float(scales[lane / 4 + 8]);
      HEADRACE_UNROLL
      for (int group = 0; group < kTokens / 8; ++group) {
        uint32_t x[4];  // of 32 columns
        const int row = group * 8 + lane % 8;
        load_matrix_x4(x, &stage.x[row][(step * 4 + lane / 8) ^ (row % 8)]);
        float part[4] = {};
        mma_f16(part, w[0], {x[0], x[1]});
        mma_f16(part, w[1], {x[2], x[3]});
        sums[group][0] += upper * part[0];
        sums[group][1] += upper * part[1];
        sums[group][2] += lower * part[2];
        sums[group][3] += lower * part[3];
      }
    }
  }
  HEADRACE_UNROLL
  for (int group = 0; group < kTokens / 8; ++group) {
    HEADRACE_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int64_t row = strip * 16 + lane / 4 + i / 2 * 8, token = first_token + group * 8 + lane % 4 * 2 + i % 2;
      if (row >= a.weight.rows || token >= a.num_tokens) continue;
      store_part(a.to, a.workspace, a.num_tokens, a.weight.rows, token, row, sums[group][i]);
    }
  }
}

template <int kTokens>
cudaError_t start(const LinearQ8Arguments& a, int splits, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((a.weight.rows + kLinearRows - 1) / kLinearRows), static_cast<unsigned>(splits),
                  static_cast<unsigned>((a.num_tokens + kTokens - 1) / kTokens));
  return launch("linear_q8_0", linear_q8_0_kernel<kTokens>, {grid, kThreads, kStages * sizeof(Stage<kTokens>), stream},
                a);
}

}  // namespace

cudaError_t linear_q8_0(const LinearQ8Arguments& a, cudaStream_t stream) {
  if (a.weight.rows <= 0 || a.weight.cols <= 0 || a.weight.cols % kColumns != 0 || a.num_tokens < 0) {
    return cudaErrorInvalidValue;
  }
  if (a.num_tokens == 0) return cudaSuccess;
  const int splits = linear_splits(a.weight.rows, a.weight.cols);
  // More tokens in a block read the weights less often; each token's sums stay the same.
  const cudaError_t error = a.num_tokens <= 8    ? start<8>(a, splits, stream)
                            : a.num_tokens <= 16 ? start<16>(a, splits, stream)
                                                 : start<32>(a, splits, stream);
  if (error != cudaSuccess || splits == 1) return error;
  return add_splits(a.workspace, splits, a.num_tokens, a.weight.rows, a.to, stream);
}

}  // namespace headrace::cuda
