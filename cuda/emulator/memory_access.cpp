#include "emulator/memory_access.h"

#include <cstring>

#include "emulator/access_counters.h"
#include "emulator/memory.h"
#include "emulator/race_detector.h"
#include "emulator/sync_points.h"
#include "emulator/threads.h"

// The image of the program, or of the shared object, that this code is in: constants of kernels lie there.
extern "C" __attribute__((visibility("hidden"))) const char __ehdr_start, _end;

namespace headrace::emulator {
namespace {

const char* name_of(Region::Space space) { return space == Region::Space::kShared ? "shared" : "device"; }

const char* verb(uint8_t flags) { return (flags & kWriteAccess) != 0 ? "write of " : "read of "; }

// Local variables and constants are a kernel's own business; nothing else of the host is its to touch.
void check_host_address(const Thread& self, const void* address, size_t size, uint8_t flags, const void* instruction) {
  const char* byte = static_cast<const char*>(address);
  if (byte >= self.stack && byte < self.stack + kStackBytes) return;
  if (byte >= &__ehdr_start && byte < &_end && (flags & kWriteAccess) == 0) return;
  if (is_known(FindingKind::kOutOfBounds, instruction)) return;
  report(FindingKind::kOutOfBounds, instruction,
         verb(flags) + std::to_string(size) + " bytes of host memory or another block's, at " + place_of(instruction));
}

void check_bytes(const Region& region, size_t size, uint8_t flags, const void* instruction) {
  bool outside = false, freed = false, unwritten = false;
  for (size_t i = region.offset; i < region.offset + size; ++i) {
    outside |= region.state[i] == ByteState::kOutside;
    freed |= region.state[i] == ByteState::kFreed;
    unwritten |= region.state[i] == ByteState::kUnwritten;
  }
  const bool writes = (flags & kWriteAccess) != 0;
  if (outside || freed) {
    if (is_known(FindingKind::kOutOfBounds, instruction)) return;
    report(FindingKind::kOutOfBounds, instruction,
           verb(flags) + std::to_string(size) + " bytes " + (freed ? "of freed " : "outside of all ") +
               name_of(region.space) + " memory" + (freed ? "" : " given out") + ", at byte " +
               std::to_string(region.offset) + ", at " + place_of(instruction));
  } else if (writes && unwritten) {
    std::memset(region.state + region.offset, static_cast<int>(ByteState::kWritten), size);
  } else if (unwritten && !is_known(FindingKind::kUninitialised, instruction)) {
    report(FindingKind::kUninitialised, instruction,
           "read of " + std::to_string(size) + " bytes of " + name_of(region.space) + " memory at byte " +
               std::to_string(region.offset) + ", not all of them written, at " + place_of(instruction));
  }
}

void check_alignment(const void* address, size_t size) {
  if (reinterpret_cast<uintptr_t>(address) % size == 0) return;
  fail(FindingKind::kMisuse, "an access of " + std::to_string(size) + " bytes to an address that is no multiple of it");
}

uint64_t load_bits(const void* address, size_t size) {
  uint64_t bits = 0;
  std::memcpy(&bits, address, size);
  return bits;
}

}  // namespace

void access(const void* address, size_t size, uint8_t flags, const void* instruction) {
  Thread* self = current();
  if (self == nullptr || size == 0) return;
  const Options& o = options();
  if (o.preempt_every > 0 && o.order == Order::kRandom && (flags & kAtomicAccess) == 0 &&
      random_source().below(static_cast<uint32_t>(o.preempt_every)) == 0) {
    preempt();
  }
  const Region region = region_of(self->block, address);
  if (region.space == Region::Space::kNone) return check_host_address(*self, address, size, flags, instruction);
  check_bytes(region, size, flags, instruction);
  if (o.detect_races) record_access(*self, region, size, flags, instruction);
  if (o.count) count_access(*self, region, size, (flags & kWriteAccess) != 0, instruction);
}

void read_memory(const void* address, void* registers, size_t size) {
  check_alignment(address, size);
  access(address, size, kReadAccess, __builtin_return_address(0));
  std::memcpy(registers, address, size);
}

void write_memory(void* address, const void* registers, size_t size) {
  check_alignment(address, size);
  access(address, size, kWriteAccess, __builtin_return_address(0));
  std::memcpy(address, registers, size);
}

uint64_t atomic_update(void* address, size_t size, AtomicUpdate update, uint64_t operand, uint64_t compare) {
  check_alignment(address, size);
  if (options().order == Order::kRandom && random_source().below(8) == 0) preempt();
  count_instruction(Instruction::kAtomic);
  note_progress();
  access(address, size, kWriteAccess | kAtomicAccess, __builtin_return_address(0));
  synchronise_through(address, *current(), false);
  const uint64_t old = load_bits(address, size), updated = update(old, operand, compare);
  std::memcpy(address, &updated, size);
  return old;
}

uint64_t load_acquire(const void* address, size_t size, Place place) {
  check_alignment(address, size);
  yield("a value to change", place);
  access(address, size, kAtomicAccess, __builtin_return_address(0));
  synchronise_through(address, *current(), true);
  return load_bits(address, size);
}

void thread_fence(const char* name, Place place) {
  if (sync_point_enabled(name, place)) fence(*current());
}

}  // namespace headrace::emulator
