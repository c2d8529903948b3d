#include "emulator/async_copies.h"

#include <cstring>
#include <utility>
#include <vector>

#include "emulator/access_counters.h"
#include "emulator/memory.h"
#include "emulator/memory_access.h"
#include "emulator/race_detector.h"
#include "emulator/sync_points.h"
#include "emulator/threads.h"

namespace headrace::emulator {
namespace {

bool completes_early() {
  return options().completion == Completion::kEarly ||
         (options().completion == Completion::kRandom && random_source().below(2) == 0);
}

void carry_out(const AsyncCopy& copy) {
  std::memcpy(copy.destination, copy.source, copy.source_bytes);
  std::memset(static_cast<char*>(copy.destination) + copy.source_bytes, 0, copy.bytes - copy.source_bytes);
}

// The emulator's own use of an mbarrier's eight bytes.
struct MBarrier {
  int32_t bytes;  // still to come in this phase
  uint16_t pending;
  uint8_t count;  // arrivals that complete a phase
  uint8_t phase;
};
static_assert(sizeof(MBarrier) == 8);

struct BulkCopy {
  void* shared;
  const void* global;
  uint32_t bytes;
  uint64_t* barrier;
  Thread* thread;
};

std::vector<BulkCopy>& bulk_copies() {
  static std::vector<BulkCopy> value;
  return value;
}

MBarrier load(const uint64_t* barrier) {
  MBarrier out;
  std::memcpy(&out, barrier, sizeof out);
  return out;
}
void store(uint64_t* barrier, MBarrier value) { std::memcpy(barrier, &value, sizeof value); }

// `instruction`: an atomic operation on the barrier, null for a look at it between two.
MBarrier checked(const uint64_t* barrier, const void* instruction = nullptr) {
  if (instruction != nullptr) access(barrier, 8, kAtomicAccess, instruction);
  const Region region = region_of(current()->block, barrier);
  if (region.space != Region::Space::kShared) fail(FindingKind::kMisuse, "an mbarrier outside of shared memory");
  if (region.state[region.offset] != ByteState::kWritten)
    fail(FindingKind::kMisuse, "an mbarrier that is not initialised");
  return load(barrier);
}

void turn_if_complete(MBarrier& barrier) {
  if (barrier.pending != 0 || barrier.bytes != 0) return;
  barrier.phase ^= 1;
  barrier.pending = barrier.count;
  note_progress();
}

void carry_out(const BulkCopy& copy) {
  std::memcpy(copy.shared, copy.global, copy.bytes);
  Thread& thread = *copy.thread;
  settle_async(thread, region_of(thread.block, copy.shared), copy.bytes);
  release_to(copy.barrier, thread);
  MBarrier barrier = load(copy.barrier);
  barrier.bytes -= static_cast<int32_t>(copy.bytes);
  turn_if_complete(barrier);
  store(copy.barrier, barrier);
}

// Carries out the copies that count on this barrier, all or a random part.
void advance(const uint64_t* barrier) {
  std::vector<BulkCopy>& copies = bulk_copies();
  for (size_t i = 0; i < copies.size();) {
    if (copies[i].barrier != barrier ||
        (options().completion == Completion::kRandom && random_source().below(2) == 0)) {
      ++i;
      continue;
    }
    const BulkCopy copy = copies[i];
    copies.erase(copies.begin() + static_cast<std::ptrdiff_t>(i));
    carry_out(copy);
  }
}

void check_copy(const void* destination, const void* source, uint32_t bytes, uint32_t alignment, const char* name) {
  if (!in_shared(*current()->block, destination, bytes)) {
    fail(FindingKind::kMisuse, std::string(name) + " to an address outside of shared memory");
  }
  const auto bits = reinterpret_cast<uintptr_t>(destination) | reinterpret_cast<uintptr_t>(source) | bytes;
  if (bits % alignment != 0) fail(FindingKind::kMisuse, std::string(name) + ": misaligned");
}

}  // namespace

void start_copy(void* destination, const void* source, uint32_t bytes, uint32_t source_bytes) {
  const void* instruction = __builtin_return_address(0);
  Thread& self = *current();
  check_copy(destination, source, bytes, bytes, "cp.async");
  count_instruction(Instruction::kAsyncCopy);
  if (source_bytes > 0) access(source, source_bytes, kReadAccess, instruction);
  access(destination, bytes, kWriteAccess | kAsyncAccess, instruction);
  self.copies.push_back({destination, source, bytes, source_bytes, self.copy_group, false});
  if (completes_early()) {
    carry_out(self.copies.back());
    self.copies.back().done = true;
  }
}

void commit_copies() { ++current()->copy_group; }

void wait_for_copies(uint32_t pending, Place place) {
  if (!sync_point_enabled("cp.async.wait_group", place)) return;
  Thread& self = *current();
  size_t count = 0;
  for (; count < self.copies.size() && self.copies[count].group + pending < self.copy_group; ++count) {
    const AsyncCopy& copy = self.copies[count];
    if (!copy.done) carry_out(copy);
    settle_async(self, region_of(self.block, copy.destination), copy.bytes);
  }
  self.copies.erase(self.copies.begin(), self.copies.begin() + static_cast<std::ptrdiff_t>(count));
}

void finish_copies() {
  for (const AsyncCopy& copy : current()->copies) {
    if (!copy.done) carry_out(copy);
  }
  current()->copies.clear();
}

void mbarrier_init(uint64_t* barrier, uint32_t count) {
  if (count == 0 || count > 255) fail(FindingKind::kMisuse, "an mbarrier for no or more than 255 arrivals");
  access(barrier, 8, kWriteAccess, __builtin_return_address(0));
  if (region_of(current()->block, barrier).space != Region::Space::kShared) {
    fail(FindingKind::kMisuse, "an mbarrier outside of shared memory");
  }
  store(barrier, {0, static_cast<uint16_t>(count), static_cast<uint8_t>(count), 0});
}

void mbarrier_arrive(uint64_t* barrier, uint32_t bytes, Place place) {
  MBarrier state = checked(barrier, __builtin_return_address(0));
  if (state.pending == 0)
    fail(FindingKind::kMisuse, "mbarrier at " + to_string(place) + ": more arrivals than it expects");
  state.bytes += static_cast<int32_t>(bytes);
  --state.pending;
  release_to(barrier, *current());
  note_progress();
  turn_if_complete(state);
  store(barrier, state);
  if (options().order == Order::kRandom && random_source().below(2) == 0) preempt();
}

void mbarrier_wait(uint64_t* barrier, uint32_t parity, Place place) {
  if (!sync_point_enabled("mbarrier.wait", place)) return;
  static_cast<void>(checked(barrier, __builtin_return_address(0)));
  do {
    yield("an mbarrier's phase", place);
    if (checked(barrier).phase == (parity & 1)) advance(barrier);
  } while (checked(barrier).phase == (parity & 1));
  acquire_from(barrier, *current());
}

void start_bulk_copy(void* shared, const void* global, uint32_t bytes, uint64_t* barrier) {
  const void* instruction = __builtin_return_address(0);
  static_cast<void>(checked(barrier, instruction));
  check_copy(shared, global, bytes, 16, "cp.async.bulk");
  access(global, bytes, kReadAccess, instruction);
  access(shared, bytes, kWriteAccess | kAsyncAccess, instruction);
  const BulkCopy copy{shared, global, bytes, barrier, current()};
  if (completes_early()) {
    carry_out(copy);
  } else {
    bulk_copies().push_back(copy);
  }
}

void end_bulk_copies(const Block& block) {
  const size_t left = std::erase_if(bulk_copies(), [&](const BulkCopy& copy) { return copy.thread->block == &block; });
  if (left == 0) return;
  report(FindingKind::kMisuse, current_launch().kernel,
         "a block ends with " + std::to_string(left) + " bulk copies under way");
}

void drop_bulk_copies() { bulk_copies().clear(); }

}  // namespace headrace::emulator
