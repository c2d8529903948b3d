#include "emulator/access_counters.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <deque>
#include <map>
#include <unordered_map>
#include <utility>

#include "emulator/memory.h"
#include "emulator/threads.h"

namespace headrace::emulator {
namespace {

constexpr size_t kSector = 32;
constexpr int kBanks = 32;

// One execution of one instruction by a warp.
struct Request {
  uint64_t offset[32];
  uint8_t size[32];
  uint32_t lanes = 0;
  bool done = false;
};

struct Site {
  Region::Space space = Region::Space::kNone;
  bool store = false;
  const void* instruction = nullptr;
  uint32_t executions[32] = {};  // of each lane
  uint32_t first = 0;            // execution that open[0] is
  std::deque<Request> open;
};

// Sectors of device memory, each counted once in a launch.
class Footprint {
 public:
  void add(uint64_t sector) {
    if (seen_.empty()) seen_.resize(kDeviceBytes / kSector);
    if (seen_[sector]) return;
    seen_[sector] = true;
    sectors_.push_back(sector);
  }
  uint64_t take_bytes() {
    const uint64_t out = sectors_.size() * kSector;
    for (const uint64_t sector : sectors_) seen_[sector] = false;
    sectors_.clear();
    return out;
  }

 private:
  std::vector<bool> seen_;
  std::vector<uint64_t> sectors_;
};

struct State {
  Counters launch;
  Footprint read, written;
  std::map<const void*, uint64_t> conflicts;
  std::vector<Counters> finished;
};

State& state() {
  static State value;
  return value;
}

void add_global(const Request& request, bool store) {
  std::pair<uint64_t, uint32_t> sectors[2 * 32];  // with the bytes touched
  size_t count = 0;
  for (uint32_t lanes = request.lanes; lanes != 0; lanes &= lanes - 1) {
    const int lane = std::countr_zero(lanes);
    for (uint64_t at = request.offset[lane], end = at + request.size[lane]; at < end;) {
      const uint64_t first = at % kSector, last = std::min<uint64_t>(kSector, first + (end - at));
      const auto bytes = static_cast<uint32_t>((~uint64_t{0} >> (64 - (last - first))) << first);
      sectors[count++] = {at / kSector, bytes};
      at += last - first;
    }
  }
  std::sort(sectors, sectors + count);
  GlobalTraffic& traffic = store ? state().launch.global_stores : state().launch.global_loads;
  uint64_t bytes = 0;
  for (size_t i = 0; i < count;) {
    uint32_t touched = 0;
    const uint64_t sector = sectors[i].first;
    for (; i < count && sectors[i].first == sector; ++i) touched |= sectors[i].second;
    bytes += static_cast<uint64_t>(std::popcount(touched));
    ++traffic.sectors;
    (store ? state().written : state().read).add(sector);
  }
  ++traffic.requests;
  traffic.bytes += bytes;
  traffic.ideal_sectors += (bytes + kSector - 1) / kSector;
}

// Lanes are served 32, 16 or 8 at a time, for 4, 8 or 16 bytes each; different words of one bank one after another.
uint64_t add_shared(const Request& request, bool store) {
  int width = 4;
  for (uint32_t lanes = request.lanes; lanes != 0; lanes &= lanes - 1) {
    width = std::max<int>(width, request.size[std::countr_zero(lanes)]);
  }
  const int together = width <= 4 ? 32 : width <= 8 ? 16 : 8;
  SharedTraffic& traffic = store ? state().launch.shared_stores : state().launch.shared_loads;
  ++traffic.requests;
  uint64_t conflicts = 0;
  for (int first = 0; first < 32; first += together) {
    uint64_t words[4 * 32];
    size_t count = 0;
    for (int lane = first; lane < first + together; ++lane) {
      if ((request.lanes >> lane & 1) == 0) continue;
      const uint64_t end = request.offset[lane] + request.size[lane];
      for (uint64_t word = request.offset[lane] / 4; word * 4 < end; ++word) words[count++] = word;
    }
    if (count == 0) continue;
    std::sort(words, words + count);
    uint64_t of_bank[kBanks] = {}, passes = 0;
    for (size_t i = 0; i < count; ++i) {
      if (i == 0 || words[i] != words[i - 1]) passes = std::max(passes, ++of_bank[words[i] % kBanks]);
    }
    traffic.wavefronts += passes;
    conflicts += passes - 1;
  }
  traffic.conflicts += conflicts;
  return conflicts;
}

void add(const Site& site, const Request& request) {
  if (site.space == Region::Space::kGlobal) {
    add_global(request, site.store);
  } else if (const uint64_t conflicts = add_shared(request, site.store); conflicts > 0) {
    state().conflicts[site.instruction] += conflicts;
  }
}

}  // namespace

struct WarpCounters {
  std::vector<std::unordered_map<uint64_t, Site>> warps;
};

std::shared_ptr<WarpCounters> make_warp_counters(size_t warps) {
  auto out = std::make_shared<WarpCounters>();
  out->warps.resize(warps);
  return out;
}

void count_access(const Thread& thread, const Region& region, size_t size, bool store, const void* instruction) {
  if (size > 16) return count_bulk_copy(region, size, store);
  auto& sites = thread.block->counters->warps[static_cast<size_t>(thread.id / 32)];
  const bool global = region.space == Region::Space::kGlobal;
  Site& site = sites[reinterpret_cast<uint64_t>(instruction) * 4 + (global ? 2 : 0) + (store ? 1 : 0)];
  site.space = region.space;
  site.store = store;
  site.instruction = instruction;
  const uint32_t execution = site.executions[thread.lane]++;
  while (execution - site.first >= site.open.size()) site.open.emplace_back();
  Request& request = site.open[execution - site.first];
  request.offset[thread.lane] = region.offset;
  request.size[thread.lane] = static_cast<uint8_t>(size);
  request.lanes |= 1u << thread.lane;
  if (request.lanes != thread.warp->alive) return;
  add(site, request);
  request.done = true;
  for (; !site.open.empty() && site.open.front().done; ++site.first) site.open.pop_front();
}

void count_bulk_copy(const Region& global, size_t size, bool store) {
  if (global.space != Region::Space::kGlobal) return;
  GlobalTraffic& traffic = store ? state().launch.global_stores : state().launch.global_loads;
  ++traffic.requests;
  traffic.bytes += size;
  traffic.ideal_sectors += (size + kSector - 1) / kSector;
  for (uint64_t sector = global.offset / kSector; sector * kSector < global.offset + size; ++sector) {
    ++traffic.sectors;
    (store ? state().written : state().read).add(sector);
  }
}

void count_instruction(Instruction instruction) {
  if (options().count) ++state().launch.instructions[static_cast<int>(instruction)];
}

void count_mma(Instruction instruction, double operations) {
  if (!options().count) return;
  count_instruction(instruction);
  (instruction == Instruction::kMmaS8 ? state().launch.mma_s8_ops : state().launch.mma_f16_flops) += operations;
}

void start_counting(const Launch& launch) {
  State& s = state();
  s.launch = {};
  s.launch.kernel = launch.name;
  s.launch.blocks = uint64_t{launch.grid.x} * launch.grid.y * launch.grid.z;
  s.launch.threads_per_block = uint64_t{launch.block.x} * launch.block.y * launch.block.z;
  s.conflicts.clear();
}

void add_block(Block& block) {
  // Lanes that did not take part, in a branch or a last turn of a loop, leave requests open.
  for (auto& sites : block.counters->warps) {
    for (auto& [key, site] : sites) {
      for (const Request& request : site.open) {
        if (!request.done && request.lanes != 0) add(site, request);
      }
    }
  }
  state().launch.shared_bytes = std::max<uint64_t>(state().launch.shared_bytes, block.shared_used);
}

void end_counting() {
  State& s = state();
  s.launch.bytes_read = s.read.take_bytes();
  s.launch.bytes_written = s.written.take_bytes();
  s.launch.conflicts_at.assign(s.conflicts.begin(), s.conflicts.end());
  std::sort(s.launch.conflicts_at.begin(), s.launch.conflicts_at.end(),
            [](const auto& a, const auto& b) { return a.second > b.second; });
  s.finished.push_back(s.launch);
}

std::vector<Counters> take_counters() { return std::exchange(state().finished, {}); }

std::string to_string(const Counters& c) {
  char text[1024];
  std::snprintf(text, sizeof text,
                "%s: %llu blocks of %llu threads, %llu bytes of shared memory\n"
                "  device memory: %llu bytes read, %llu written; loads %llu sectors (ideal %llu), stores %llu (ideal "
                "%llu)\n"
                "  shared memory: %llu wavefronts, %llu of them conflicts; %.3g 16-bit matrix flops, %.3g 8-bit\n",
                c.kernel.c_str(), static_cast<unsigned long long>(c.blocks),
                static_cast<unsigned long long>(c.threads_per_block), static_cast<unsigned long long>(c.shared_bytes),
                static_cast<unsigned long long>(c.bytes_read), static_cast<unsigned long long>(c.bytes_written),
                static_cast<unsigned long long>(c.global_loads.sectors),
                static_cast<unsigned long long>(c.global_loads.ideal_sectors),
                static_cast<unsigned long long>(c.global_stores.sectors),
                static_cast<unsigned long long>(c.global_stores.ideal_sectors),
                static_cast<unsigned long long>(c.shared_loads.wavefronts + c.shared_stores.wavefronts),
                static_cast<unsigned long long>(c.conflicts()), c.mma_f16_flops, c.mma_s8_ops);
  std::string out = text;
  for (size_t i = 0; i < std::min<size_t>(c.conflicts_at.size(), 4); ++i) {
    out +=
        "  conflicts at " + place_of(c.conflicts_at[i].first) + ": " + std::to_string(c.conflicts_at[i].second) + "\n";
  }
  return out;
}

}  // namespace headrace::emulator
