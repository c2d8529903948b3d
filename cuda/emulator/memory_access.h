// One access of a kernel to memory, with everything that is watched about it; and atomic operations.
#pragma once

#include <cstddef>
#include <cstdint>

#include "emulator/findings.h"

namespace headrace::emulator {

// Checks, records and counts an access of the running thread that is about to happen; nothing outside of kernels. flags
// are AccessFlags (race_detector.h). Instrumented code calls it for every load and store.
void access(const void* address, size_t size, uint8_t flags, const void* instruction);

// Copies between memory and the thread's registers, as one instruction of `size` bytes, aligned to that.
void read_memory(const void* address, void* registers, size_t size);
void write_memory(void* address, const void* registers, size_t size);

// Atomic read-modify-write of 2, 4 or 8 bytes: `update` maps the old bits to the new. Gives the old.
using AtomicUpdate = uint64_t (*)(uint64_t old, uint64_t operand, uint64_t compare);
uint64_t atomic_update(void* address, size_t size, AtomicUpdate update, uint64_t operand, uint64_t compare);
// A load with acquire semantics, that a loop may spin on.
uint64_t load_acquire(const void* address, size_t size, Place place);

// __threadfence, a numbered synchronisation point.
void thread_fence(const char* name, Place place);

}  // namespace headrace::emulator
