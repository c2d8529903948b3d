// CUDA's threads as fibers: the records of a grid that runs, and how a thread waits. Everything runs on one thread of
// the operating system, so a launch with the same options takes the same course.
#pragma once

#include <boost/context/fiber.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "emulator/findings.h"
#include "emulator/options.h"
#include "emulator/vector_types.h"

namespace headrace::emulator {

struct Block;
struct Warp;

// A copy between global and shared memory that has been started and not waited for.
struct AsyncCopy {
  void* destination;  // shared
  const void* source;
  uint32_t bytes;
  uint32_t source_bytes;  // the rest is filled with zeros
  uint32_t group;         // of the thread's commit groups
  bool done;              // the bytes are there already, the thread may not know
};

// What a thread knows has happened before (race_detector.h).
struct Clock {
  uint32_t now = 1;            // the thread's own time: goes up whenever others may learn of it
  uint32_t epoch = 0;          // the block's, for which `seen` holds
  std::vector<uint32_t> seen;  // of each thread of the block the last time known, within the epoch
  uint32_t fence_epoch = 0;    // the same at the last __threadfence, empty before one
  std::vector<uint32_t> fence;
};

struct Thread {
  enum class State : uint8_t { kReady, kWaiting, kDone };

  Block* block = nullptr;
  Warp* warp = nullptr;
  uint3 index{};
  int id = 0;    // within the block, x fastest
  int lane = 0;  // within the warp
  State state = State::kReady;
  const char* waits_for = "its start";
  Place place;
  boost::context::fiber fiber;
  const char* stack = nullptr;  // lowest address
  int result = 0;               // what the barrier it waited at gives back
  std::vector<AsyncCopy> copies;
  uint32_t copy_group = 0;
  Clock clock;
};

// Lanes that have arrived at one warp-wide instruction.
struct PendingCollective {
  uint32_t mask = 0, arrived = 0;
  const char* name = "";
  Place place;
  void (*execute)(Warp&, uint32_t mask) = nullptr;
};

struct Warp {
  Thread* lanes[32] = {};
  void* operands[32] = {};  // of the instruction each lane waits at; they lie on the lane's stack
  uint32_t alive = 0;
  std::vector<PendingCollective> pending;
};

struct Barrier {
  int arrived = 0;
  int expected = 0;  // threads; 0: all of the block that have not ended
  int accumulated = 0;
  std::vector<Thread*> waiting;
};

struct SharedVariable {
  const void* site;
  uint32_t offset;
};

struct SharedArena;
struct BlockKnowledge;
struct WarpCounters;

struct Block {
  uint3 index{};
  uint32_t sequence = 0;  // over all launches, never reused
  uint32_t epoch = 1;     // goes up when all of its threads meet
  int alive = 0;
  std::vector<Thread> threads;
  std::vector<Warp> warps;
  Barrier barriers[16];
  SharedArena* arena = nullptr;
  std::vector<SharedVariable> shared_variables;
  uint32_t shared_used = 0;                   // bytes of the arena
  std::shared_ptr<BlockKnowledge> knowledge;  // of other blocks
  std::shared_ptr<WarpCounters> counters;
};

// A kernel with its arguments.
class KernelCall {
 public:
  virtual ~KernelCall() = default;
  virtual void run() const = 0;
};

// What runs, and the shape of its launch.
struct Launch {
  std::string name;
  const void* kernel = nullptr;
  dim3 grid, block;
  size_t shared_bytes = 0;  // dynamic
  bool cooperative = false;
  std::shared_ptr<const KernelCall> call;
};

// Runs a grid to its end. Findings are left in take_findings(); false if the launch had to be given up.
bool run(const Launch& launch);

// The thread that runs, null outside of kernels.
Thread* current();
const Launch& current_launch();
// Blocks of the launch have this sequence or a later one.
uint32_t first_sequence_of_launch();

// Lets the scheduler run others until wake() is called for this thread.
void wait(const char* what, Place place);
void wake(Thread& thread);
// Lets others run; counts against Options::spin_limit unless something else happens in between.
void yield(const char* what, Place place);
// Something has happened that a waiting thread may be waiting for.
void note_progress();
// Lets others run at a place where a device might.
void preempt();

// "kernel, block (0,0,0), thread (5,0,0): ", empty outside of kernels.
std::string where_am_i();
std::string name_of(const Thread& thread);

inline constexpr size_t kStackBytes = 128 << 10;

}  // namespace headrace::emulator
