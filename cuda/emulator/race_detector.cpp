#include "emulator/race_detector.h"

#include <algorithm>
#include <unordered_map>

#include "emulator/memory.h"
#include "emulator/threads.h"

namespace headrace::emulator {
namespace {

// What was left at an address, by the blocks that left it.
std::unordered_map<const void*, BlockKnowledge>& left_at() {
  static std::unordered_map<const void*, BlockKnowledge> value;
  return value;
}

// The times that a thread knows, in its block's epoch.
std::vector<uint32_t>& seen_by(Thread& thread) {
  Clock& clock = thread.clock;
  if (clock.epoch != thread.block->epoch || clock.seen.empty()) {
    clock.seen.assign(thread.block->threads.size(), 0);
    clock.epoch = thread.block->epoch;
  }
  clock.seen[static_cast<size_t>(thread.id)] = clock.now;
  return clock.seen;
}

void merge_times(std::vector<uint32_t>& into, const std::vector<uint32_t>& from) {
  if (into.size() < from.size()) into.resize(from.size());
  for (size_t i = 0; i < from.size(); ++i) into[i] = std::max(into[i], from[i]);
}

bool happened_before(const RaceCell::Access& access, Thread& self) {
  if ((access.flags & kAsyncAccess) != 0) return false;
  if (access.sequence < first_sequence_of_launch()) return true;
  // The atomic operation behind a fence belongs to what it makes known.
  const uint32_t time = access.time - ((access.flags & kAtomicAccess) != 0 ? 1 : 0);
  const Block& block = *self.block;
  if (access.sequence == block.sequence) {
    return access.epoch < block.epoch || access.thread == self.id ||
           (self.clock.epoch == block.epoch && !self.clock.seen.empty() && self.clock.seen[access.thread] >= time);
  }
  if (block.knowledge == nullptr) return false;
  const auto known = block.knowledge->blocks.find(access.sequence);
  if (known == block.knowledge->blocks.end()) return false;
  const Knowledge& other = known->second;
  return access.epoch < other.epoch ||
         (access.epoch == other.epoch && access.thread < other.seen.size() && other.seen[access.thread] >= time);
}

const char* describe(uint8_t flags) {
  if ((flags & kAsyncAccess) != 0) return "asynchronous write";
  if ((flags & kAtomicAccess) != 0) return "atomic operation";
  return (flags & kWriteAccess) != 0 ? "write" : "read";
}

void report_race(const Region& region, size_t offset, uint8_t flags, const void* instruction,
                 const RaceCell::Access& earlier, const Thread& self) {
  if (is_known(FindingKind::kRace, instruction)) return;
  const bool shared = region.space == Region::Space::kShared;
  std::string other = "thread " + std::to_string(earlier.thread);
  if (earlier.sequence != self.block->sequence) {
    other +=
        " of another block (number " + std::to_string(earlier.sequence - first_sequence_of_launch()) + " to start)";
  }
  report(FindingKind::kRace, instruction,
         std::string(describe(flags)) + " at " + place_of(instruction) + " and " + describe(earlier.flags) + " at " +
             place_of(earlier.instruction) + " by " + other + ", unordered, of " + (shared ? "shared" : "device") +
             " memory at byte " + std::to_string(offset));
}

}  // namespace

void Knowledge::merge(const Knowledge& other) {
  if (other.epoch < epoch) return;
  if (other.epoch > epoch) {
    *this = other;
  } else {
    merge_times(seen, other.seen);
  }
}

void start_race_detection() { left_at().clear(); }

void advance_epoch(Block& block) { ++block.epoch; }

void join_threads(std::span<Thread* const> threads) {
  if (!options().detect_races || threads.size() < 2) return;
  std::vector<uint32_t> all;
  for (Thread* thread : threads) merge_times(all, seen_by(*thread));
  for (Thread* thread : threads) {
    seen_by(*thread) = all;
    ++thread->clock.now;
  }
}

void release_to(const void* key, Thread& thread) {
  if (!options().detect_races) return;
  left_at()[key].blocks[thread.block->sequence].merge({thread.block->epoch, seen_by(thread)});
  ++thread.clock.now;
}

void acquire_from(const void* key, Thread& thread) {
  if (!options().detect_races) return;
  const auto found = left_at().find(key);
  if (found == left_at().end()) return;
  const auto own = found->second.blocks.find(thread.block->sequence);
  if (own == found->second.blocks.end() || own->second.epoch != thread.block->epoch) return;
  merge_times(seen_by(thread), own->second.seen);
}

void forget(const void* key) { left_at().erase(key); }

void record_access(Thread& self, const Region& region, size_t size, uint8_t flags, const void* instruction) {
  const Block& block = *self.block;
  const bool shared = region.space == Region::Space::kShared;
  const bool writes = (flags & kWriteAccess) != 0;
  for (size_t at = region.offset, end = region.offset + size; at < end;) {
    const size_t first = at % 8, last = std::min<size_t>(8, first + (end - at));
    const auto mask = static_cast<uint8_t>((0xFF >> (8 - (last - first))) << first);
    RaceCell& cell = region.cells[at / 8];
    int free = -1;
    for (int i = 0; i < RaceCell::kAccesses; ++i) {
      RaceCell::Access& earlier = cell.accesses[i];
      // An arena's cells outlive its blocks.
      if (shared && earlier.sequence != block.sequence) earlier.mask = 0;
      if (earlier.mask == 0) {
        free = i;
        continue;
      }
      const bool own = earlier.sequence == block.sequence && earlier.thread == self.id;
      const bool ordered = (own && (earlier.flags & kAsyncAccess) == 0) || happened_before(earlier, self);
      const bool earlier_writes = (earlier.flags & kWriteAccess) != 0;
      const bool both_atomic = (earlier.flags & flags & kAtomicAccess) != 0;
      if (!ordered && (earlier.mask & mask) != 0 && (writes || earlier_writes) && !both_atomic) {
        report_race(region, at, flags, instruction, earlier, self);
        earlier.mask = 0;
      } else if (ordered && (earlier.mask & ~mask) == 0 && (writes || !earlier_writes)) {
        earlier.mask = 0;  // whatever comes after this access comes after that one
      }
      if (earlier.mask == 0) free = i;
    }
    if (free < 0) {  // reads are given up first
      free = static_cast<int>((self.clock.now + at / 8) % RaceCell::kAccesses);
      for (int i = 0; i < RaceCell::kAccesses && (cell.accesses[free].flags & kWriteAccess) != 0; ++i) free = i;
    }
    cell.accesses[free] = {instruction, block.sequence, block.epoch, self.clock.now, static_cast<uint16_t>(self.id),
                           mask,        flags};
    at += last - first;
  }
}

void settle_async(Thread& thread, const Region& region, size_t size) {
  if (!options().detect_races) return;
  for (size_t word = region.offset / 8; word < (region.offset + size + 7) / 8; ++word) {
    for (RaceCell::Access& access : region.cells[word].accesses) {
      if (access.mask == 0 || (access.flags & kAsyncAccess) == 0 || access.thread != thread.id ||
          access.sequence != thread.block->sequence) {
        continue;
      }
      access.flags &= static_cast<uint8_t>(~kAsyncAccess);
      access.epoch = thread.block->epoch;
      access.time = thread.clock.now;
    }
  }
}

void fence(Thread& thread) {
  if (!options().detect_races) return;
  thread.clock.fence = seen_by(thread);
  thread.clock.fence_epoch = thread.block->epoch;
  ++thread.clock.now;
}

void synchronise_through(const void* address, Thread& thread, bool only_reads) {
  if (!options().detect_races) return;
  Block& block = *thread.block;
  BlockKnowledge& left = left_at()[address];
  for (const auto& [sequence, knowledge] : left.blocks) {
    if (sequence != block.sequence) {
      if (block.knowledge == nullptr) block.knowledge = std::make_shared<BlockKnowledge>();
      block.knowledge->blocks[sequence].merge(knowledge);
    } else if (knowledge.epoch == block.epoch) {
      merge_times(seen_by(thread), knowledge.seen);
    }
  }
  if (only_reads || thread.clock.fence.empty()) return;
  left.blocks[block.sequence].merge({thread.clock.fence_epoch, thread.clock.fence});
  if (block.knowledge == nullptr) return;
  for (const auto& [sequence, knowledge] : block.knowledge->blocks) left.blocks[sequence].merge(knowledge);
}

}  // namespace headrace::emulator
