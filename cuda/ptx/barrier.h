// Barriers beyond __syncthreads: named ones, mbarriers with the bulk copies they count (sm_90), and acquiring loads.
#pragma once

#include "device.h"
#include "ptx/shared_address.h"
#if !defined(__CUDACC__)
#include "emulator/async_copies.h"
#endif

namespace headrace::cuda {

#if defined(__CUDACC__)

// `threads` of the block, whole warps, meet at barrier 1-15; those that only arrive do not wait.
HEADRACE_DEVICE void named_barrier_sync(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
HEADRACE_DEVICE void named_barrier_arrive(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

HEADRACE_DEVICE int load_acquire(const int* address) {
  int out;
  asm volatile("ld.acquire.gpu.global.b32 %0, [%1];" : "=r"(out) : "l"(address) : "memory");
  return out;
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
// A phase completes after `arrivals`, and when all bytes expected in it have come.
HEADRACE_DEVICE void mbarrier_init(uint64_t* barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
HEADRACE_DEVICE void mbarrier_arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
HEADRACE_DEVICE void mbarrier_arrive_expect(uint64_t* barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
}
// Until the phase with this parity, 0 for the first, has completed.
HEADRACE_DEVICE void mbarrier_wait(uint64_t* barrier, uint32_t parity) {
  asm volatile(
      "{\n .reg .pred done;\n"
      "wait: mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
      " @done bra end;\n bra wait;\nend:\n}" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}
HEADRACE_DEVICE void bulk_copy(void* shared, const void* global, uint32_t bytes, uint64_t* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(shared)),
               "l"(global), "r"(bytes), "r"(shared_address(barrier))
               : "memory");
}
#endif

#else

HEADRACE_DEVICE void named_barrier_sync(int barrier, int threads, HEADRACE_PLACE) {
  emulator::sync_block(barrier, threads, false, "bar.sync", place);
}
HEADRACE_DEVICE void named_barrier_arrive(int barrier, int threads, HEADRACE_PLACE) {
  emulator::sync_block(barrier, threads, true, "bar.arrive", place);
}
HEADRACE_DEVICE int load_acquire(const int* address, HEADRACE_PLACE) {
  return static_cast<int>(emulator::load_acquire(address, sizeof(int), place));
}
HEADRACE_DEVICE void mbarrier_init(uint64_t* barrier, uint32_t arrivals) { emulator::mbarrier_init(barrier, arrivals); }
HEADRACE_DEVICE void mbarrier_arrive(uint64_t* barrier, HEADRACE_PLACE) {
  emulator::mbarrier_arrive(barrier, 0, place);
}
HEADRACE_DEVICE void mbarrier_arrive_expect(uint64_t* barrier, uint32_t bytes, HEADRACE_PLACE) {
  emulator::mbarrier_arrive(barrier, bytes, place);
}
HEADRACE_DEVICE void mbarrier_wait(uint64_t* barrier, uint32_t parity, HEADRACE_PLACE) {
  emulator::mbarrier_wait(barrier, parity, place);
}
HEADRACE_DEVICE void bulk_copy(void* shared, const void* global, uint32_t bytes, uint64_t* barrier) {
  emulator::start_bulk_copy(shared, global, bytes, barrier);
}

#endif

// All blocks of a cooperative launch meet. `arrivals` is a word of device memory, zero before the first use.
HEADRACE_DEVICE void grid_barrier(int* arrivals) {
  __syncthreads();
  if (threadIdx.x == 0 && threadIdx.y == 0 && threadIdx.z == 0) {
    const int blocks = static_cast<int>(gridDim.x * gridDim.y * gridDim.z);
    __threadfence();
    const int target = (atomicAdd(arrivals, 1) / blocks + 1) * blocks;
    while (load_acquire(arrivals) < target) {
    }
    __threadfence();
  }
  __syncthreads();
}

}  // namespace headrace::cuda
