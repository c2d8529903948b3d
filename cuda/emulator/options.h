// How the emulator runs kernels: the order of threads, when asynchronous work completes, and what is watched.
#pragma once

#include <cstdint>

namespace headrace::emulator {

enum class Order {
  kFifo,     // threads and blocks in order
  kReverse,  // the last thread first, and the one that has just become ready before those that wait for their turn
  kRandom,   // by the seed
};

// When a copy that a kernel has only started takes place. kLate shows what does not wait for it, kEarly what overwrites
// a buffer still in use.
enum class Completion { kEarly, kLate, kRandom };

struct Options {
  Order order = Order::kFifo;
  Completion completion = Completion::kLate;
  uint64_t seed = 1;
  int resident_blocks = 1;        // blocks that run side by side; of a cooperative launch all do
  int preempt_every = 0;          // n > 0: under kRandom one of n memory accesses lets other threads run first
  bool detect_races = true;       // memory accesses and synchronisation against vector clocks
  bool count = true;              // memory sectors, bank conflicts, instructions
  uint64_t spin_limit = 1 << 18;  // unsuccessful waits in a row, of all threads, that count as a deadlock
};

// Read at the start of each launch.
Options& options();

// The source of all the emulator's random choices, seeded at each launch.
class Random {
 public:
  void seed(uint64_t seed) { state_ = seed * 0x9E3779B97F4A7C15u + 0xD1B54A32D192ED03u; }
  uint32_t next() {  // splitmix64
    uint64_t z = state_ += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return static_cast<uint32_t>((z ^ (z >> 31)) >> 32);
  }
  uint32_t below(uint32_t bound) { return next() % bound; }

 private:
  uint64_t state_ = 1;
};
Random& random_source();

}  // namespace headrace::emulator
