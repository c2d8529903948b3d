// cp.async: copies from device to shared memory without passing through registers (sm_80).
#pragma once

#include "device.h"
#include "ptx/shared_address.h"
#if !defined(__CUDACC__)
#include "emulator/async_copies.h"
#endif

namespace headrace::cuda {

// 16 bytes, past L1. Where not `present`, nothing is read and zeros are written.
HEADRACE_DEVICE void copy_async_16(void* shared, const void* global, bool present = true) {
#if defined(__CUDACC__)
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global),
               "r"(present ? 16 : 0)
               : "memory");
#else
  emulator::start_copy(shared, global, 16, present ? 16 : 0);
#endif
}

HEADRACE_DEVICE void copy_async_commit() {
#if defined(__CUDACC__)
  asm volatile("cp.async.commit_group;" ::: "memory");
#else
  emulator::commit_copies();
#endif
}

// Until at most kPending of the thread's committed groups have not arrived. Other threads see them after a barrier.
#if defined(__CUDACC__)
template <int kPending>
HEADRACE_DEVICE void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}
#else
template <int kPending>
HEADRACE_DEVICE void copy_async_wait(emulator::Place place = emulator::Place::here()) {
  emulator::wait_for_copies(kPending, place);
}
#endif

}  // namespace headrace::cuda
