// The run queue. Threads switch to and from the loop in Scheduler::run, which starts blocks, ends them, and finds
// deadlocks: a grid in which nothing can run and threads still wait.
#include <sys/mman.h>

#include <algorithm>
#include <deque>
#include <map>
#include <new>
#include <tuple>

#include "emulator/access_counters.h"
#include "emulator/async_copies.h"
#include "emulator/barriers.h"
#include "emulator/memory.h"
#include "emulator/race_detector.h"
#include "emulator/threads.h"

namespace headrace::emulator {
namespace {

// Stacks are used again: a mapping with its guard page costs more than a short thread.
class StackPool {
 public:
  boost::context::stack_context allocate() {
    char* lowest = nullptr;
    if (free_.empty()) {
      void* mapped = mmap(nullptr, kStackBytes + kGuard, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (mapped == MAP_FAILED) throw std::bad_alloc();
      mprotect(mapped, kGuard, PROT_NONE);
      lowest = static_cast<char*>(mapped) + kGuard;
    } else {
      lowest = free_.back();
      free_.pop_back();
    }
    boost::context::stack_context out;
    out.size = kStackBytes;
    out.sp = lowest + kStackBytes;
    return out;
  }
  void deallocate(boost::context::stack_context& stack) { free_.push_back(static_cast<char*>(stack.sp) - kStackBytes); }

 private:
  static constexpr size_t kGuard = 4096;
  std::vector<char*> free_;
};

struct PooledStack {
  StackPool* pool;
  boost::context::stack_context allocate() { return pool->allocate(); }
  void deallocate(boost::context::stack_context& stack) { pool->deallocate(stack); }
};

std::string coordinates(uint3 index) {
  return "(" + std::to_string(index.x) + "," + std::to_string(index.y) + "," + std::to_string(index.z) + ")";
}

// "0-31, 40"
std::string ranges(const std::vector<int>& ids) {
  std::string out;
  for (size_t i = 0; i < ids.size();) {
    size_t end = i + 1;
    while (end < ids.size() && ids[end] == ids[end - 1] + 1) ++end;
    out += (out.empty() ? "" : ", ") + std::to_string(ids[i]);
    if (end - i > 1) out += "-" + std::to_string(ids[end - 1]);
    i = end;
  }
  return out;
}

class Scheduler {
 public:
  bool run(const Launch& launch);

  Thread* current() const { return current_; }
  const Launch& launch() const { return *launch_; }
  bool is_running() const { return launch_ != nullptr; }
  uint32_t first_sequence() const { return first_sequence_; }

  void wait(const char* what, Place place) {
    Thread* self = current_;
    self->state = Thread::State::kWaiting;
    self->waits_for = what;
    self->place = place;
    to_main();
  }
  void wake(Thread& thread) {
    thread.state = Thread::State::kReady;
    ready_.push_back(&thread);
    spins_ = 0;
  }
  void yield(const char* what, Place place, bool spins) {
    Thread* self = current_;
    self->waits_for = what;
    self->place = place;
    spins_ = spins ? spins_ + 1 : 0;
    // In reverse order the thread that yields would be taken again at once.
    if (options().order == Order::kReverse) {
      ready_.push_front(self);
    } else {
      ready_.push_back(self);
    }
    to_main();
  }
  void note_progress() { spins_ = 0; }

 private:
  void check(const Launch& launch);
  void start_block(uint32_t linear);
  void end_block(Block* block);
  void finish(Thread& thread);
  Thread* pick();
  void report_deadlock();

  void to_main() { main_ = std::move(main_).resume(); }

  const Launch* launch_ = nullptr;
  Thread* current_ = nullptr;
  boost::context::fiber main_;  // the loop, while a thread runs
  StackPool stacks_;
  std::deque<Thread*> ready_;
  std::vector<std::unique_ptr<Block>> blocks_;  // resident
  uint32_t next_sequence_ = 1, first_sequence_ = 1;
  uint64_t spins_ = 0;
  bool aborted_ = false;
};

void Scheduler::check(const Launch& launch) {
  const size_t threads = size_t{launch.block.x} * launch.block.y * launch.block.z;
  const size_t blocks = size_t{launch.grid.x} * launch.grid.y * launch.grid.z;
  if (threads == 0 || threads > 1024) fail(FindingKind::kMisuse, std::to_string(threads) + " threads in a block");
  if (blocks == 0 || launch.grid.y > 65535 || launch.grid.z > 65535) {
    fail(FindingKind::kMisuse, "a grid of " + std::to_string(blocks) + " blocks, or more than 65535 along y or z");
  }
  if (launch.shared_bytes > kMaxSharedBytes) {
    fail(FindingKind::kMisuse, std::to_string(launch.shared_bytes) + " bytes of dynamic shared memory");
  }
}

void Scheduler::start_block(uint32_t linear) {
  auto block = std::make_unique<Block>();
  const dim3 grid = launch_->grid, shape = launch_->block;
  block->index = {linear % grid.x, linear / grid.x % grid.y, linear / grid.x / grid.y};
  block->sequence = next_sequence_++;
  const unsigned count = shape.x * shape.y * shape.z;
  block->alive = static_cast<int>(count);
  block->threads = std::vector<Thread>(count);
  block->warps.resize((count + 31) / 32);
  acquire_arena(*block, launch_->shared_bytes);
  if (options().count) block->counters = make_warp_counters(block->warps.size());
  for (unsigned id = 0; id < count; ++id) {
    Thread& thread = block->threads[id];
    thread.block = block.get();
    thread.id = static_cast<int>(id);
    thread.lane = static_cast<int>(id % 32);
    thread.index = {id % shape.x, id / shape.x % shape.y, id / shape.x / shape.y};
    thread.warp = &block->warps[id / 32];
    thread.warp->lanes[thread.lane] = &thread;
    thread.warp->alive |= 1u << thread.lane;
    boost::context::stack_context stack = stacks_.allocate();
    thread.stack = static_cast<const char*>(stack.sp) - kStackBytes;
    thread.fiber = boost::context::fiber(std::allocator_arg, boost::context::preallocated(stack.sp, stack.size, stack),
                                         PooledStack{&stacks_}, [this, &thread](boost::context::fiber&& main) {
                                           main_ = std::move(main);
                                           try {
                                             launch_->call->run();
                                             finish(thread);
                                           } catch (const LaunchAborted&) {
                                             aborted_ = true;
                                           }
                                           thread.state = Thread::State::kDone;
                                           return std::move(main_);
                                         });
    ready_.push_back(&thread);
  }
  blocks_.push_back(std::move(block));
}

// The last act of a thread, still on its own stack.
void Scheduler::finish(Thread& thread) {
  Block& block = *thread.block;
  finish_copies();
  --block.alive;
  thread.warp->alive &= ~(1u << thread.lane);
  thread_ended(thread);
  spins_ = 0;
}

void Scheduler::end_block(Block* block) {
  end_bulk_copies(*block);
  if (options().count) add_block(*block);
  release_arena(*block);
  blocks_.erase(std::find_if(blocks_.begin(), blocks_.end(), [&](const auto& b) { return b.get() == block; }));
}

Thread* Scheduler::pick() {
  if (ready_.empty()) return nullptr;
  Thread* out = nullptr;
  if (options().order == Order::kFifo) {
    out = ready_.front();
    ready_.pop_front();
    return out;
  }
  if (options().order == Order::kRandom) {
    std::swap(ready_[random_source().below(static_cast<uint32_t>(ready_.size()))], ready_.back());
  }
  out = ready_.back();
  ready_.pop_back();
  return out;
}

void Scheduler::report_deadlock() {
  std::map<std::tuple<uint32_t, std::string, std::string>, std::vector<int>> groups;
  std::map<uint32_t, uint3> index;
  for (const auto& block : blocks_) {
    index[block->sequence] = block->index;
    for (const Thread& thread : block->threads) {
      if (thread.state == Thread::State::kDone) continue;
      groups[{block->sequence, thread.waits_for, to_string(thread.place)}].push_back(thread.id);
    }
  }
  std::string text = "no thread can go on";
  for (const auto& [key, ids] : groups) {
    text += "\n  block " + coordinates(index[std::get<0>(key)]) + ": " + (ids.size() > 1 ? "threads " : "thread ") +
            ranges(ids) + (ids.size() > 1 ? " wait" : " waits") + " for " + std::get<1>(key) + " at " +
            std::get<2>(key);
  }
  report(FindingKind::kDeadlock, launch_->kernel, text);
}

bool Scheduler::run(const Launch& launch) {
  launch_ = &launch;
  aborted_ = false;
  spins_ = 0;
  first_sequence_ = next_sequence_;
  random_source().seed(options().seed);
  start_race_detection();
  if (options().count) start_counting(launch);
  try {
    check(launch);
  } catch (const LaunchAborted&) {
    launch_ = nullptr;
    return false;
  }
  std::vector<uint32_t> order(launch.grid.x * launch.grid.y * launch.grid.z);
  for (uint32_t i = 0; i < order.size(); ++i) order[i] = i;
  if (options().order == Order::kReverse) std::reverse(order.begin(), order.end());
  for (size_t i = order.size(); options().order == Order::kRandom && i > 1; --i) {
    std::swap(order[i - 1], order[random_source().below(static_cast<uint32_t>(i))]);
  }
  const size_t resident = launch.cooperative ? order.size() : static_cast<size_t>(options().resident_blocks);
  size_t next = 0;
  for (;;) {
    while (blocks_.size() < resident && next < order.size()) start_block(order[next++]);
    Thread* thread = pick();
    if (thread == nullptr && blocks_.empty()) break;
    if (thread == nullptr || spins_ > options().spin_limit) {
      report_deadlock();
      aborted_ = true;
    } else {
      current_ = thread;
      thread->fiber = std::move(thread->fiber).resume();
      current_ = nullptr;
    }
    if (aborted_) break;
    if (thread->state == Thread::State::kDone && thread->block->alive == 0) end_block(thread->block);
  }
  if (aborted_) {
    ready_.clear();
    for (const auto& block : blocks_) release_arena(*block);
    drop_bulk_copies();
    blocks_.clear();  // unwinds the threads' stacks
  }
  if (options().count) end_counting();
  launch_ = nullptr;
  return !aborted_;
}

Scheduler& scheduler() {
  static Scheduler value;
  return value;
}

}  // namespace

Options& options() {
  static Options value;
  return value;
}

Random& random_source() {
  static Random value;
  return value;
}

bool run(const Launch& launch) { return scheduler().run(launch); }
Thread* current() { return scheduler().current(); }
const Launch& current_launch() { return scheduler().launch(); }
uint32_t first_sequence_of_launch() { return scheduler().first_sequence(); }
void wait(const char* what, Place place) { scheduler().wait(what, place); }
void wake(Thread& thread) { scheduler().wake(thread); }
void yield(const char* what, Place place) { scheduler().yield(what, place, true); }
void preempt() { scheduler().yield("its turn", {}, false); }
void note_progress() { scheduler().note_progress(); }

std::string name_of(const Thread& thread) {
  return "block " + coordinates(thread.block->index) + " thread " + coordinates(thread.index);
}

uint3 thread_index() { return current()->index; }
uint3 block_index() { return current()->block->index; }
dim3 block_shape() { return current_launch().block; }
dim3 grid_shape() { return current_launch().grid; }
int lane_of_thread() { return current()->lane; }

std::string where_am_i() {
  if (!scheduler().is_running()) return "";
  if (const Thread* self = current(); self != nullptr) return current_launch().name + ", " + name_of(*self) + ": ";
  return current_launch().name + ": ";
}

}  // namespace headrace::emulator
