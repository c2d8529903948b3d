// Copies from device to shared memory that run beside the thread that starts them: cp.async, waited for by commit
// group, and bulk copies (cp.async.bulk), whose bytes an mbarrier counts.
#pragma once

#include <cstddef>
#include <cstdint>

#include "emulator/findings.h"

namespace headrace::emulator {

struct Block;

// cp.async of 4, 8 or 16 bytes; of the source only the first source_bytes are read, the rest becomes zero.
void start_copy(void* destination, const void* source, uint32_t bytes, uint32_t source_bytes);
void commit_copies();
// cp.async.wait_group: all but the last `pending` groups have arrived, as far as this thread's copies go.
void wait_for_copies(uint32_t pending, Place place);
// Of a thread that ends: the device would still carry out what was started.
void finish_copies();

// An mbarrier object: eight bytes of shared memory.
void mbarrier_init(uint64_t* barrier, uint32_t count);
// Arrives, after adding `bytes` to those the phase waits for.
void mbarrier_arrive(uint64_t* barrier, uint32_t bytes, Place place);
// Waits until the phase of this parity has completed. Off as a synchronisation point, it returns at once.
void mbarrier_wait(uint64_t* barrier, uint32_t parity, Place place);
// cp.async.bulk: addresses and size are multiples of 16.
void start_bulk_copy(void* shared, const void* global, uint32_t bytes, uint64_t* barrier);
// Of the scheduler: a block has ended. It must have waited for its bulk copies, which go to its shared memory.
void end_bulk_copies(const Block& block);
// Forgets what an abandoned launch left.
void drop_bulk_copies();

}  // namespace headrace::emulator
