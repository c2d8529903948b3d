#include "emulator/barriers.h"

#include <bit>
#include <cstring>
#include <utility>

#include "emulator/access_counters.h"
#include "emulator/race_detector.h"
#include "emulator/sync_points.h"
#include "emulator/threads.h"

namespace headrace::emulator {
namespace {

void complete_if_full(Block& block, Barrier& barrier) {
  const int needed = barrier.expected == 0 ? block.alive : barrier.expected;
  if (barrier.arrived == 0 || barrier.arrived < needed) return;
  const std::vector<Thread*> waiting = std::exchange(barrier.waiting, {});
  if (barrier.expected == 0) {
    advance_epoch(block);
  } else {
    for (Thread* thread : waiting) acquire_from(&barrier, *thread);
    forget(&barrier);
  }
  const int result = barrier.accumulated;
  barrier.arrived = barrier.expected = barrier.accumulated = 0;
  for (Thread* thread : waiting) {
    thread->result = result;
    wake(*thread);
  }
}

// Threads that came to a barrier wait for the last; that one goes on at once, as do those that only arrive.
void arrive(Barrier& barrier, int id, int count, bool arrive_only, const char* name, Place place) {
  Thread& self = *current();
  Block& block = *self.block;
  if (count % 32 != 0 || count < 0) {
    fail(FindingKind::kMisuse, std::string(name) + ": " + std::to_string(count) + " threads are no whole warps");
  }
  if (barrier.arrived > 0 && barrier.expected != count) {
    fail(FindingKind::kMisuse, std::string(name) + " at " + to_string(place) + ": barrier " + std::to_string(id) +
                                   " expects " + std::to_string(barrier.expected) + " threads, and here " +
                                   std::to_string(count));
  }
  if (id == 0 && count == 0 && !barrier.waiting.empty()) {
    const Place other = barrier.waiting[0]->place;
    if (other.line != place.line || std::strcmp(other.file, place.file) != 0) {
      fail(FindingKind::kMisuse, std::string("threads of a block wait in different ") + name + ", at " +
                                     to_string(other) + " and at " + to_string(place));
    }
  }
  barrier.expected = count;
  ++barrier.arrived;
  if (count != 0) release_to(&barrier, self);
  if (!arrive_only) {
    self.place = place;
    barrier.waiting.push_back(&self);
  }
  complete_if_full(block, barrier);
  if (!arrive_only) wait(name, place);
}

// A mask, instruction or place that differs between lanes which should act together.
void check_same(const PendingCollective& pending, uint32_t mask, const char* name, Place place) {
  if (pending.mask == mask && std::strcmp(pending.name, name) == 0 && pending.place.line == place.line) return;
  char masks[64];
  std::snprintf(masks, sizeof masks, "masks %08x and %08x", pending.mask, mask);
  fail(FindingKind::kMisuse, std::string("lanes of a warp diverge: ") + pending.name + " at " +
                                 to_string(pending.place) + " and " + name + " at " + to_string(place) + ", " + masks);
}

bool complete_if_full(Warp& warp, size_t index) {
  const PendingCollective pending = warp.pending[index];
  if ((pending.arrived & warp.alive) != (pending.mask & warp.alive)) return false;
  warp.pending.erase(warp.pending.begin() + static_cast<std::ptrdiff_t>(index));
  std::vector<Thread*> threads;
  for (uint32_t lanes = pending.arrived; lanes != 0; lanes &= lanes - 1) {
    threads.push_back(warp.lanes[std::countr_zero(lanes)]);
  }
  if (pending.execute != nullptr) {
    pending.execute(warp, pending.arrived);
  } else {
    join_threads(threads);
  }
  for (Thread* thread : threads) wake(*thread);
  return true;
}

}  // namespace

void sync_block(int barrier, int count, bool arrive_only, const char* name, Place place) {
  if (!sync_point_enabled(name, place)) return;
  count_instruction(Instruction::kBarrier);
  if (barrier < 0 || barrier >= 16) fail(FindingKind::kMisuse, "there is no barrier " + std::to_string(barrier));
  arrive(current()->block->barriers[barrier], barrier, count, arrive_only, name, place);
}

int sync_block_reduce(Reduction reduction, bool value, const char* name, Place place) {
  count_instruction(Instruction::kBarrier);
  Barrier& barrier = current()->block->barriers[0];
  if (barrier.arrived == 0) barrier.accumulated = reduction == Reduction::kAnd ? 1 : 0;
  switch (reduction) {
    case Reduction::kOr: barrier.accumulated |= value; break;
    case Reduction::kAnd: barrier.accumulated &= value; break;
    case Reduction::kCount: barrier.accumulated += value; break;
  }
  arrive(barrier, 0, 0, false, name, place);
  return current()->result;
}

void collective(uint32_t mask, const char* name, void* operands, void (*execute)(Warp&, uint32_t mask), Place place) {
  Thread& self = *current();
  Warp& warp = *self.warp;
  const uint32_t bit = 1u << self.lane;
  if ((mask & bit) == 0) {
    fail(FindingKind::kMisuse, std::string(name) + " at " + to_string(place) + ": its mask leaves out lane " +
                                   std::to_string(self.lane) + ", which executes it");
  }
  size_t index = 0;
  while (index < warp.pending.size() && (warp.pending[index].mask & mask) == 0) ++index;
  if (index == warp.pending.size()) {
    warp.pending.push_back({mask, 0, name, place, execute});
  } else {
    check_same(warp.pending[index], mask, name, place);
  }
  warp.pending[index].arrived |= bit;
  warp.operands[self.lane] = operands;
  complete_if_full(warp, index);
  wait(name, place);
}

void sync_warp(uint32_t mask, Place place) {
  if (!sync_point_enabled("__syncwarp", place)) return;
  collective(mask, "__syncwarp", nullptr, nullptr, place);
}

uint64_t shuffle(uint32_t mask, uint64_t value, int source, const char* name, Place place) {
  struct Operands {
    uint64_t value, out;
    int source;
  } operands{value, 0, source};
  count_instruction(Instruction::kShuffle);
  collective(
      mask, name, &operands,
      [](Warp& warp, uint32_t lanes) {
        for (uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
          auto* own = static_cast<Operands*>(warp.operands[std::countr_zero(rest)]);
          const bool present = (lanes >> own->source & 1) != 0;
          own->out = present ? static_cast<Operands*>(warp.operands[own->source])->value : ~uint64_t{0};
        }
      },
      place);
  return operands.out;
}

uint32_t ballot(uint32_t mask, bool value, const char* name, Place place) {
  struct Operands {
    bool value;
    uint32_t out;
  } operands{value, 0};
  count_instruction(Instruction::kShuffle);
  collective(
      mask, name, &operands,
      [](Warp& warp, uint32_t lanes) {
        uint32_t out = 0;
        for (uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
          const int lane = std::countr_zero(rest);
          if (static_cast<Operands*>(warp.operands[lane])->value) out |= 1u << lane;
        }
        for (uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
          static_cast<Operands*>(warp.operands[std::countr_zero(rest)])->out = out;
        }
      },
      place);
  return operands.out;
}

uint32_t reduce_warp(WarpReduction reduction, uint32_t mask, uint32_t value, const char* name, Place place) {
  struct Operands {
    WarpReduction reduction;
    uint32_t value, out;
  } operands{reduction, value, 0};
  count_instruction(Instruction::kShuffle);
  collective(
      mask, name, &operands,
      [](Warp& warp, uint32_t lanes) {
        const auto* first = static_cast<const Operands*>(warp.operands[std::countr_zero(lanes)]);
        uint32_t out = first->value;
        for (uint32_t rest = lanes & (lanes - 1); rest != 0; rest &= rest - 1) {
          const uint32_t x = static_cast<const Operands*>(warp.operands[std::countr_zero(rest)])->value;
          const auto a = static_cast<int32_t>(out), b = static_cast<int32_t>(x);
          switch (first->reduction) {
            case WarpReduction::kAdd: out += x; break;
            case WarpReduction::kMin: out = static_cast<uint32_t>(b < a ? b : a); break;
            case WarpReduction::kMax: out = static_cast<uint32_t>(b > a ? b : a); break;
            case WarpReduction::kUnsignedMin: out = x < out ? x : out; break;
            case WarpReduction::kUnsignedMax: out = x > out ? x : out; break;
            case WarpReduction::kAnd: out &= x; break;
            case WarpReduction::kOr: out |= x; break;
            case WarpReduction::kXor: out ^= x; break;
          }
        }
        for (uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
          static_cast<Operands*>(warp.operands[std::countr_zero(rest)])->out = out;
        }
      },
      place);
  return operands.out;
}

uint32_t match_any(uint32_t mask, uint64_t value, Place place) {
  struct Operands {
    uint64_t value;
    uint32_t out;
  } operands{value, 0};
  count_instruction(Instruction::kShuffle);
  collective(
      mask, "__match_any_sync", &operands,
      [](Warp& warp, uint32_t lanes) {
        for (uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
          auto* own = static_cast<Operands*>(warp.operands[std::countr_zero(rest)]);
          for (uint32_t others = lanes; others != 0; others &= others - 1) {
            const int lane = std::countr_zero(others);
            if (static_cast<const Operands*>(warp.operands[lane])->value == own->value) own->out |= 1u << lane;
          }
        }
      },
      place);
  return operands.out;
}

void thread_ended(Thread& thread) {
  Block& block = *thread.block;
  for (Barrier& barrier : block.barriers) {
    if (barrier.arrived > 0 && barrier.expected == 0) complete_if_full(block, barrier);
  }
  for (size_t i = 0; i < thread.warp->pending.size();) {
    if (!complete_if_full(*thread.warp, i)) ++i;
  }
}

}  // namespace headrace::emulator
