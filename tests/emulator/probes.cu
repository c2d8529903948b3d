#include "probes.h"

#include "device.h"
#include "launch.h"
#include "ptx/async_copy.h"
#include "ptx/barrier.h"
#include "ptx/matrix.h"
#include "ptx/memory.h"

namespace headrace::emulator {
namespace {

using cuda::launch;

constexpr unsigned kFull = 0xFFFFFFFFu;

__global__ void indices(int* out) {
  const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  const unsigned i = block * (blockDim.x * blockDim.y * blockDim.z) + thread;
  out[i] = static_cast<int>(i);
}

__global__ void sum(const int* in, int* out, Fault fault) {
  HEADRACE_SHARED_ARRAY(int, values, 256);
  const int t = static_cast<int>(threadIdx.x);
  if (fault != Fault::kUnwritten || t != 77) values[t] = in[blockIdx.x * 256 + threadIdx.x];
  if (fault != Fault::kFewerThreads || t < 128) __syncthreads();
  for (int half = 128; half > 0; half /= 2) {
    if (t < half) values[t] += values[t + half + (fault == Fault::kWrongIndex ? 1 : 0)];
    if (fault != Fault::kNoBarrier) __syncthreads();
  }
  if (t == 0) out[blockIdx.x] = values[0];
}

__global__ void collectives(const int* in, int* out) {
  const int lane = static_cast<int>(threadIdx.x), value = in[lane];
  const auto put = [&](int row, int result) { out[row * 32 + lane] = result; };
  put(0, __shfl_sync(kFull, value, 5));
  put(1, __shfl_xor_sync(kFull, value, 3));
  put(2, __shfl_down_sync(kFull, value, 4));
  put(3, __shfl_up_sync(kFull, value, 4));
  put(4, __shfl_xor_sync(kFull, value, 5, 8));
  put(5, static_cast<int>(__ballot_sync(kFull, value % 3 == 0)));
  put(6, __any_sync(kFull, value == 7) * 2 + __all_sync(kFull, value >= 0));
  put(7, __reduce_add_sync(kFull, value));
  put(8, __reduce_max_sync(kFull, value - 100));
  put(9, static_cast<int>(__match_any_sync(kFull, value % 4)));
  put(10, __syncthreads_count(value % 2));
  put(11, __syncthreads_or(value == 31) * 2 + __syncthreads_and(value == 31));
}

__global__ void divergent(const int* in, int* out, Fault fault) {
  const int lane = static_cast<int>(threadIdx.x), value = in[lane];
  const bool right = fault == Fault::kNone;
  if (lane < 8) {
    out[lane] = __shfl_xor_sync(right ? 0xFFu : kFull, value, 1);
  } else {
    out[lane] = __shfl_xor_sync(right ? ~0xFFu : kFull, value, 2);
  }
}

__global__ void neighbours(const int* in, int* out, Fault fault) {
  HEADRACE_SHARED_ARRAY(int, values, 32);
  const int lane = static_cast<int>(threadIdx.x);
  values[lane] = in[lane];
  if (fault == Fault::kNone) {
    __syncwarp();
  } else {
    __shfl_sync(kFull, lane, 0);
  }
  out[lane] = values[(lane + 31) % 32];
}

__global__ void handover(const int* in, int* out, Fault fault) {
  HEADRACE_SHARED_ARRAY(int, values, 32);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  constexpr int kFilled = 1, kEmpty = 2;
  const int threads = fault == Fault::kFewerThreads ? 96 : 64;
  for (int round = 0; round < 8; ++round) {
    if (warp == 0) {
      if (round > 0 && fault != Fault::kNoBarrier) cuda::named_barrier_sync(kEmpty, threads);
      values[lane] = in[round * 32 + lane];
      cuda::named_barrier_arrive(kFilled, threads);
    } else {
      cuda::named_barrier_sync(kFilled, threads);
      out[round * 32 + lane] = values[31 - lane];
      if (round < 7 && fault != Fault::kNoBarrier) cuda::named_barrier_arrive(kEmpty, threads);
    }
  }
}

__global__ void grid(int* out, int* arrivals, int steps, Fault fault) {
  const unsigned blocks = gridDim.x, block = blockIdx.x;
  for (int step = 0; step < steps; ++step) {
    const int* from = out + static_cast<unsigned>(step) * blocks;
    int* to = out + static_cast<unsigned>(step + 1) * blocks;
    // Not by the thread that meets those of other blocks.
    if (threadIdx.x == 40) to[block] = from[(block + 1) % blocks] + 1;
    if (fault == Fault::kNone) cuda::grid_barrier(arrivals);
  }
}

__global__ void last_block(const int* in, int* partial, int* counter, int* out, Fault fault) {
  HEADRACE_SHARED_ARRAY(int, is_last, 1);
  const int t = static_cast<int>(threadIdx.x), lane = t % 32, warps = 2;
  const int sum = __reduce_add_sync(kFull, in[blockIdx.x * 64 + threadIdx.x]);
  if (lane == 0) partial[static_cast<int>(blockIdx.x) * warps + t / 32] = sum;
  __syncthreads();
  if (t == 0) {
    if (fault != Fault::kNoFence) __threadfence();
    is_last[0] = atomicAdd(counter, 1) == static_cast<int>(gridDim.x) - 1;
    __threadfence();
  }
  __syncthreads();
  if (is_last[0] == 0 || t >= 32) return;
  int total = 0;
  for (int i = lane; i < static_cast<int>(gridDim.x) * warps; i += 32) total += partial[i];
  total = __reduce_add_sync(kFull, total);
  if (t == 0) *out = total;
}

__global__ void atomics(int* out) {
  HEADRACE_SHARED_ARRAY(int, bins, 8);
  const int t = static_cast<int>(threadIdx.x);
  if (t < 8) bins[t] = 0;
  __syncthreads();
  atomicAdd(&bins[t % 8], 1);
  __syncthreads();
  if (t < 8) atomicAdd(&out[t], bins[t]);
  atomicMax(&out[8], t);
}

constexpr int kTile = 128;  // threads, and vectors of a tile

__global__ void pipeline(const uint4* in, uint4* out, int tiles, Fault fault) {
  constexpr int kStages = 3;
  HEADRACE_DYNAMIC_SHARED(raw);
  uint4* stages = reinterpret_cast<uint4*>(raw);
  const int t = static_cast<int>(threadIdx.x);
  const auto load = [&](int tile) {
    if (tile < tiles) cuda::copy_async_16(&stages[tile % kStages * kTile + t], &in[tile * kTile + t]);
    cuda::copy_async_commit();
  };
  for (int tile = 0; tile < kStages - 1; ++tile) load(tile);
  for (int tile = 0; tile < tiles; ++tile) {
    if (fault == Fault::kNoWait) {
      cuda::copy_async_wait<kStages - 1>();
    } else {
      cuda::copy_async_wait<kStages - 2>();
    }
    if (fault != Fault::kNoBarrier) __syncthreads();
    load(tile + kStages - 1);
    // Read by another thread than the one that loaded it.
    const uint4 value = cuda::load_vector<uint4>(&stages[tile % kStages * kTile + (t + 32) % kTile]);
    cuda::store_vector(&out[tile * kTile + (t + 32) % kTile], value);
  }
}

__global__ void bulk_pipeline(const uint4* in, uint4* out, int tiles, Fault fault) {
  constexpr int kStages = 2;
  HEADRACE_DYNAMIC_SHARED(raw);
  uint4* stages = reinterpret_cast<uint4*>(raw);
  HEADRACE_SHARED_ARRAY(uint64_t, full, kStages);
  HEADRACE_SHARED_ARRAY(uint64_t, empty, kStages);
  const int t = static_cast<int>(threadIdx.x);
  if (t == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      cuda::mbarrier_init(&full[stage], 1);
      cuda::mbarrier_init(&empty[stage], kTile);
    }
  }
  __syncthreads();
  if (t == kTile) {  // the producer's warp has one thread
    for (int tile = 0; tile < tiles; ++tile) {
      const int stage = tile % kStages;
      if (fault != Fault::kNoBarrier) cuda::mbarrier_wait(&empty[stage], tile / kStages % 2 == 0 ? 1 : 0);
      cuda::mbarrier_arrive_expect(&full[stage], kTile * sizeof(uint4));
      cuda::bulk_copy(&stages[stage * kTile], &in[tile * kTile], kTile * sizeof(uint4), &full[stage]);
    }
  } else {
    for (int tile = 0; tile < tiles; ++tile) {
      const int stage = tile % kStages;
      if (fault != Fault::kNoWait) cuda::mbarrier_wait(&full[stage], static_cast<uint32_t>(tile / kStages % 2));
      const uint4 value = cuda::load_vector<uint4>(&stages[stage * kTile + (t + 32) % kTile]);
      cuda::mbarrier_arrive(&empty[stage]);
      cuda::store_vector(&out[tile * kTile + (t + 32) % kTile], value);
    }
  }
}

__global__ void abandoned_copy(const uint4* in) {
  HEADRACE_SHARED_ARRAY(uint4, value, 1);
  HEADRACE_SHARED_ARRAY(uint64_t, full, 1);
  cuda::mbarrier_init(full, 1);
  cuda::mbarrier_arrive_expect(full, sizeof(uint4));
  cuda::bulk_copy(value, in, sizeof(uint4), full);
}

__global__ void mma(int type, const void* a, const void* b, void* d) {
  HEADRACE_SHARED_ARRAY(uint4, rows, 32);  // a as 16 rows of two vectors of 16 bytes
  const int lane = static_cast<int>(threadIdx.x), g = lane / 4, t = lane % 4;
  rows[lane] = static_cast<const uint4*>(a)[lane];
  __syncwarp();
  uint32_t fragment[4];
  // Matrices 0-3: rows 0-7 and 8-15 of the first vector, then of the second.
  cuda::load_matrix_x4(fragment, &rows[(lane % 16) * 2 + lane / 16]);
  const uint32_t* column = static_cast<const uint32_t*>(b) + g * 8;
  const uint32_t fragment_b[2] = {column[t], column[t + 4]};
  if (type == 2) {
    int32_t sums[4] = {};
    cuda::mma_s8(sums, fragment, fragment_b);
    for (int i = 0; i < 4; ++i) static_cast<int32_t*>(d)[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = sums[i];
    return;
  }
  float sums[4] = {};
  if (type == 0) {
    cuda::mma_f16(sums, fragment, fragment_b);
  } else {
    cuda::mma_bf16(sums, fragment, fragment_b);
  }
  for (int i = 0; i < 4; ++i) static_cast<float*>(d)[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = sums[i];
}

__global__ void transpose(const uint16_t* in, uint32_t* out) {
  HEADRACE_SHARED_ARRAY(uint4, rows, 32);
  const int lane = static_cast<int>(threadIdx.x);
  rows[lane] = reinterpret_cast<const uint4*>(in)[lane];
  __syncwarp();
  uint32_t fragment[4];
  cuda::load_matrix_x4_transposed(fragment, &rows[lane]);
  for (int i = 0; i < 4; ++i) out[i * 32 + lane] = fragment[i];
}

__global__ void strided(const float* in, float* out, int stride) {
  HEADRACE_SHARED_ARRAY(float, values, 32 * 32);
  const int lane = static_cast<int>(threadIdx.x);
  values[lane * stride] = in[lane * stride];
  __syncwarp();
  out[lane] = values[(31 - lane) * stride];
}

__global__ void stray(int what, const int* buffer, int size, int* out) {
  const int i = static_cast<int>(threadIdx.x);
  if (what == 0) {
    out[i] = buffer[i + size - 31];
  } else {
    out[i] = buffer[i];
  }
}

__global__ void add(int* values, int by) { values[threadIdx.x] += by; }

__global__ void nothing() {}

}  // namespace

cudaError_t probe_indices(dim3 grid_size, dim3 block, int* out) {
  return launch("indices", indices, {grid_size, block}, out);
}
cudaError_t probe_sum(const int* in, int* out, int blocks, Fault fault) {
  return launch("sum", sum, {dim3(static_cast<unsigned>(blocks)), 256}, in, out, fault);
}
cudaError_t probe_collectives(const int* in, int* out) { return launch("collectives", collectives, {1, 32}, in, out); }
cudaError_t probe_divergent(const int* in, int* out, Fault fault) {
  return launch("divergent", divergent, {1, 32}, in, out, fault);
}
cudaError_t probe_neighbours(const int* in, int* out, Fault fault) {
  return launch("neighbours", neighbours, {1, 32}, in, out, fault);
}
cudaError_t probe_handover(const int* in, int* out, Fault fault) {
  return launch("handover", handover, {1, 64}, in, out, fault);
}
cudaError_t probe_grid(int* out, int* arrivals, int blocks, int steps, Fault fault) {
  return launch("grid", grid, {dim3(static_cast<unsigned>(blocks)), 64, 0, nullptr, true}, out, arrivals, steps, fault);
}
cudaError_t probe_last_block(const int* in, int* partial, int* counter, int* out, int blocks, Fault fault) {
  return launch("last_block", last_block, {dim3(static_cast<unsigned>(blocks)), 64}, in, partial, counter, out, fault);
}
cudaError_t probe_atomics(int* out, int blocks) {
  return launch("atomics", atomics, {dim3(static_cast<unsigned>(blocks)), 96}, out);
}
cudaError_t probe_pipeline(const uint4* in, uint4* out, int tiles, Fault fault) {
  return launch("pipeline", pipeline, {1, kTile, 3 * kTile * sizeof(uint4)}, in, out, tiles, fault);
}
cudaError_t probe_bulk_pipeline(const uint4* in, uint4* out, int tiles, Fault fault) {
  return launch("bulk_pipeline", bulk_pipeline, {1, kTile + 1, 2 * kTile * sizeof(uint4)}, in, out, tiles, fault);
}
cudaError_t probe_abandoned_copy(const uint4* in) { return launch("abandoned_copy", abandoned_copy, {1, 1}, in); }
cudaError_t probe_mma(int type, const void* a, const void* b, void* d) {
  return launch("mma", mma, {1, 32}, type, a, b, d);
}
cudaError_t probe_transpose(const uint16_t* in, uint32_t* out) {
  return launch("transpose", transpose, {1, 32}, in, out);
}
cudaError_t probe_strided(const float* in, float* out, int stride) {
  return launch("strided", strided, {1, 32}, in, out, stride);
}
cudaError_t probe_stray(int what, const int* buffer, int size, int* out) {
  return launch("stray", stray, {1, 32}, what, buffer, size, out);
}
cudaError_t probe_add(int* values, int size, int by, cudaStream_t stream) {
  return launch("add", add, {1, dim3(static_cast<unsigned>(size)), 0, stream}, values, by);
}
cudaError_t probe_shape(dim3 grid_size, dim3 block, size_t shared_bytes) {
  return launch("nothing", nothing, {grid_size, block, shared_bytes});
}

}  // namespace headrace::emulator
