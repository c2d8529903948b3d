#include "bandwidth.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

namespace cli {
namespace {

// Eight independent sums, so that the loop waits for memory and not for additions.
uint64_t sum(const uint64_t* values, size_t count) {
  uint64_t sums[8] = {};
  for (size_t i = 0; i + 8 <= count; i += 8) {
    for (size_t lane = 0; lane < 8; ++lane) sums[lane] += values[i + lane];
  }
  uint64_t total = 0;
  for (uint64_t lane : sums) total += lane;
  return total;
}

}  // namespace

double measure_read_bandwidth(int num_threads) {
  constexpr size_t kBytesPerThread = size_t{256} << 20;
  constexpr int kPasses = 5;
  std::vector<std::vector<uint64_t>> buffers(static_cast<size_t>(num_threads));
  for (auto& buffer : buffers) buffer.assign(kBytesPerThread / 8, 1);
  std::vector<uint64_t> sums(buffers.size());
  double best = 0;
  for (int pass = 0; pass < kPasses; ++pass) {
    const auto start = std::chrono::steady_clock::now();
    std::vector<std::thread> threads;
    for (size_t thread = 0; thread < buffers.size(); ++thread) {
      threads.emplace_back([&, thread] { sums[thread] = sum(buffers[thread].data(), buffers[thread].size()); });
    }
    for (std::thread& thread : threads) thread.join();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    // The sums are compared so that the reads cannot be optimised away.
    const bool counted =
        std::all_of(sums.begin(), sums.end(), [](uint64_t value) { return value == kBytesPerThread / 8; });
    if (counted) best = std::max(best, static_cast<double>(kBytesPerThread) * num_threads / seconds.count());
  }
  return best;
}

}  // namespace cli
