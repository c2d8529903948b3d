// Small kernels that use one feature of the emulator each, right or with a fault that it must find.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace headrace::emulator {

enum class Fault {
  kNone,
  kNoBarrier,
  kWrongIndex,
  kUnwritten,
  kFewerThreads,  // meet at a barrier than it waits for
  kNoWait,        // for an asynchronous copy
  kNoFence,
};

// out[i] = the linear index of the thread that i is, over the grid.
cudaError_t probe_indices(dim3 grid, dim3 block, int* out);

// out[b] = sum of in[256 b, 256 b + 256), through shared memory. in [256 blocks].
// kNoBarrier: in the tree; kWrongIndex: reads past the array; kUnwritten: leaves out an element; kFewerThreads: half of
// the block waits.
cudaError_t probe_sum(const int* in, int* out, int blocks, Fault fault);

// Warp collectives of one warp; out [12][32], see probes.cu.
cudaError_t probe_collectives(const int* in, int* out);
// Lanes of one warp in two branches: with masks of their own, or (fault) with the full mask in both.
cudaError_t probe_divergent(const int* in, int* out, Fault fault);
// Lane l passes a value to lane l + 1 through shared memory; kNoBarrier: with a shuffle where __syncwarp should be.
cudaError_t probe_neighbours(const int* in, int* out, Fault fault);

// Two warps hand 32 values over, eight times, through named barriers. kNoBarrier: the writer does not wait for the
// reader; kFewerThreads: a count that is never reached.
cudaError_t probe_handover(const int* in, int* out, Fault fault);

// Each block adds to the value its neighbour left in the step before: out [steps + 1][blocks]. kNoBarrier: no grid barrier.
cudaError_t probe_grid(int* out, int* arrivals, int blocks, int steps, Fault fault);
// Each of a block's two warps leaves a partial sum of 32 values; the last to come, by an atomic counter, adds them up. kNoFence: without __threadfence.
cudaError_t probe_last_block(const int* in, int* partial, int* counter, int* out, int blocks, Fault fault);
// All threads count into one word, and into bins of shared memory. out [9].
cudaError_t probe_atomics(int* out, int blocks);

// out = in, through a ring of stages filled by cp.async. in, out [tiles][128] of 16 bytes. kNoWait: one group too few;
// kNoBarrier: a stage is filled again while others read.
cudaError_t probe_pipeline(const uint4* in, uint4* out, int tiles, Fault fault);
// The same with bulk copies by one thread, and mbarriers. kNoWait: does not wait for the bytes; kNoBarrier: a stage is
// filled before all have read it.
cudaError_t probe_bulk_pipeline(const uint4* in, uint4* out, int tiles, Fault fault);

// Starts a bulk copy of 16 bytes and ends.
cudaError_t probe_abandoned_copy(const uint4* in);

// d = a b for one warp: a [16][k] row by row, b [8][k], d [16][8]; k = 16 halves (type 0 float16, 1 bfloat16) or 32 bytes
// (type 2, d as int32).
cudaError_t probe_mma(int type, const void* a, const void* b, void* d);
// out [8 x 8 halves of four matrices], transposed by ldmatrix. in the same.
cudaError_t probe_transpose(const uint16_t* in, uint32_t* out);

// 32 lanes read words `stride` apart from device memory, and write then read shared memory with that stride.
cudaError_t probe_strided(const float* in, float* out, int stride);
// Reads outside of what may be read: 0 past a buffer, 1 freed memory (the caller frees it), 2 memory nobody wrote, 3 host
// memory.
cudaError_t probe_stray(int what, const int* buffer, int size, int* out);
// out[i] += by, one block of `size` threads.
cudaError_t probe_add(int* values, int size, int by, cudaStream_t stream);
// A kernel that does nothing, launched with this shape.
cudaError_t probe_shape(dim3 grid, dim3 block, size_t shared_bytes);

}  // namespace headrace::emulator
