// What a launch asks of a device's memory and arithmetic, counted from the addresses of every thread. Accesses of a
// warp's lanes are taken together when they are the same execution of the same instruction, counted lane by lane.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace headrace::emulator {

struct Block;
struct Launch;
struct Region;
struct Thread;

// Per thread but for the matrix instructions, which are counted per warp.
enum class Instruction { kBarrier, kShuffle, kAtomic, kAsyncCopy, kMatrixLoad, kMmaF16, kMmaBf16, kMmaS8 };
inline constexpr int kInstructions = 8;

struct GlobalTraffic {
  uint64_t requests = 0;       // of warps
  uint64_t bytes = 0;          // different ones within each request
  uint64_t sectors = 0;        // of 32 bytes, moved between L2 and the multiprocessor
  uint64_t ideal_sectors = 0;  // bytes / 32 of each request, rounded up
};
struct SharedTraffic {
  uint64_t requests = 0;
  uint64_t wavefronts = 0;  // passes over the 32 banks
  uint64_t conflicts = 0;   // of them beyond what the width of the access needs
};

struct Counters {
  std::string kernel;
  uint64_t blocks = 0, threads_per_block = 0, shared_bytes = 0;
  GlobalTraffic global_loads, global_stores;
  SharedTraffic shared_loads, shared_stores;
  // Bytes in different sectors of device memory: the least that DRAM must move for this launch.
  uint64_t bytes_read = 0, bytes_written = 0;
  uint64_t instructions[kInstructions] = {};
  double mma_f16_flops = 0.0, mma_s8_ops = 0.0;
  std::vector<std::pair<const void*, uint64_t>> conflicts_at;  // instructions with bank conflicts, worst first

  uint64_t operator[](Instruction instruction) const { return instructions[static_cast<int>(instruction)]; }
  uint64_t conflicts() const { return shared_loads.conflicts + shared_stores.conflicts; }
};
std::string to_string(const Counters& counters);

// Of the launches since the last call, in order.
std::vector<Counters> take_counters();

// Of the scheduler.
struct WarpCounters;
std::shared_ptr<WarpCounters> make_warp_counters(size_t warps);
void start_counting(const Launch& launch);
void add_block(Block& block);
void end_counting();

// Of the other parts of the emulator. An instruction's address tells its executions from those of others.
void count_access(const Thread& thread, const Region& region, size_t size, bool store, const void* instruction);
void count_bulk_copy(const Region& global, size_t size, bool store);
void count_instruction(Instruction instruction);
void count_mma(Instruction instruction, double operations);

}  // namespace headrace::emulator
