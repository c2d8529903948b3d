// Weights are the first operand of mma, 16 rows to a warp, and tokens the second, 8 at a time. A ring of stages of 64 columns
// is filled by cp.async; both operands are read by ldmatrix, chunk c of a row lying at c ^ row % 8, so that it meets no bank
// twice. Columns past the end are zeros.
#include "kernels/linear_half.h"

#include "device.h"
#include "kernels/linear_store.h"
#include "launch.h"
#include "ptx/async_copy.h"
#include "ptx/matrix.h"

namespace headrace::cuda {
namespace {

constexpr int kWarps = 4, kThreads = 32 * kWarps;
constexpr int kChunks = kLinearColumns / 8;  // of 16 bytes
constexpr int kStages = 4;
static_assert(kLinearRows == 16 * kWarps);

template <int kTokens>
struct Stage {
  uint4 weight[kLinearRows][kChunks];
  uint4 x[kTokens][kChunks];
};

template <int kTokens, FloatType kType>
__global__ void __launch_bounds__(kThreads) linear_half_kernel(LinearHalfArguments a) {
  HEADRACE_DYNAMIC_SHARED(raw);
  auto* const stages = reinterpret_cast<Stage<kTokens>*>(raw);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int64_t tiles = (a.cols + kLinearColumns - 1) / kLinearColumns, splits = gridDim.y;
  const int64_t first_tile = tiles * blockIdx.y / splits, end_tile = tiles * (blockIdx.y + 1) / splits;
  const int64_t first_row = static_cast<int64_t>(blockIdx.x) * kLinearRows;
  const int64_t first_token = static_cast<int64_t>(blockIdx.z) * kTokens;

  const auto load = [&](int64_t tile) {
    if (tile < end_tile) {
      Stage<kTokens>& stage = stages[tile % kStages];
      for (int i = thread; i < kLinearRows * kChunks; i += kThreads) {
        const int row = i / kChunks, chunk = i % kChunks;
        const int64_t column = tile * kLinearColumns + chunk * 8;
        const bool present = first_row + row < a.rows && column < a.cols;
        copy_async_16(&stage.weight[row][chunk ^ (row % 8)],
                      a.weight + (present ? (first_row + row) * a.cols + column : 0), present);
      }
      for (int i = thread; i < kTokens * kChunks; i += kThreads) {
        const int row = i / kChunks, chunk = i % kChunks;
        const int64_t column = tile * kLinearColumns + chunk * 8;
        const bool present = first_token + row < a.num_tokens && column < a.cols;
        copy_async_16(&stage.x[row][chunk ^ (row % 8)], a.x + (present ? (first_token + row) * a.cols + column : 0),
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
    for (int step = 0; step < kLinearColumns / 32; ++step) {
      uint32_t w[2][4];  // of 16 columns each
      const int weight_row = warp * 16 + lane % 16;
      load_matrix_x4(w[0], &stage.weight[weight_row][(step * 4 + lane / 16) ^ (weight_row % 8)]);
      load_matrix_x4(w[1], &stage.weight[weight_row][(step * 4 + 2 + lane / 16) ^ (weight_row % 8)]);
      HEADRACE_UNROLL
      for (int group = 0; group < kTokens / 8; ++group) {
        uint32_t x[4];  // of 32 columns
        const int row = group * 8 + lane % 8;
        load_matrix_x4(x, &stage.x[row][(step * 4 + lane / 8) ^ (row % 8)]);
        if constexpr (kType == FloatType::kF16) {
          mma_f16(sums[group], w[0], {x[0], x[1]});
          mma_f16(sums[group], w[1], {x[2], x[3]});
        } else {
          mma_bf16(sums[group], w[0], {x[0], x[1]});
          mma_bf16(sums[group], w[1], {x[2], x[3]});
        }
      }
    }
  }
  HEADRACE_UNROLL
  for (int group = 0; group < kTokens / 8; ++group) {
    HEADRACE_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int64_t row = first_row + warp * 16 + lane / 4 + i / 2 * 8;
      const int64_t token = first_token + group * 8 + lane % 4 * 2 + i % 2;
      if (row >= a.rows || token >= a.num_tokens) continue;
      store_part(a.to, a.workspace, a.num_tokens, a.rows, token, row, sums[group][i]);
    }
  }
}

template <int kTokens, FloatType kType>
cudaError_t start(const LinearHalfArguments& a, int splits, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((a.rows + kLinearRows - 1) / kLinearRows), static_cast<unsigned>(splits),
                  static_cast<unsigned>((a.num_tokens + kTokens - 1) / kTokens));
  return launch("linear_half", linear_half_kernel<kTokens, kType>,
                {grid, kThreads, kStages * sizeof(Stage<kTokens>), stream}, a);
}

// More tokens in a block read the weights less often; each token's sums stay the same.
template <FloatType kType>
cudaError_t start(const LinearHalfArguments& a, int splits, cudaStream_t stream) {
  return a.num_tokens <= 8    ? start<8, kType>(a, splits, stream)
         : a.num_tokens <= 16 ? start<16, kType>(a, splits, stream)
                              : start<32, kType>(a, splits, stream);
}

}  // namespace

cudaError_t linear_half(const LinearHalfArguments& a, cudaStream_t stream) {
  if (a.rows <= 0 || a.cols <= 0 || a.cols % 8 != 0 || a.num_tokens < 0 || a.type == FloatType::kF32) {
    return cudaErrorInvalidValue;
  }
  if (a.num_tokens == 0) return cudaSuccess;
  const int splits = linear_splits(a.rows, a.cols);
  const cudaError_t error = a.type == FloatType::kF16 ? start<FloatType::kF16>(a, splits, stream)
                                                      : start<FloatType::kBF16>(a, splits, stream);
  if (error != cudaSuccess || splits == 1) return error;
  return add_splits(a.workspace, splits, a.num_tokens, a.rows, a.to, stream);
}

}  // namespace headrace::cuda
