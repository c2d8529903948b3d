// What tests of the emulator and of emulated kernels share: arrays in device memory, and runs under many schedules.
#pragma once

#include <cuda_runtime.h>

#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "emulator/access_counters.h"
#include "emulator/findings.h"
#include "emulator/options.h"

namespace headrace::emulator {

// Roundings of float32 and float16 relative to the value, and half of the smallest float16.
constexpr double kUnit = 0x1p-24, kHalfUnit = 0x1p-11, kHalfSmallest = 0x1p-25;

inline std::vector<int> counting(int size) {
  std::vector<int> out(static_cast<size_t>(size));
  std::iota(out.begin(), out.end(), 0);
  return out;
}

inline std::vector<float> random_floats(size_t count, uint32_t seed, float scale = 1.0f) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> out(count);
  for (float& x : out) x = normal(generator);
  return out;
}

template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t size) : size_(size) { REQUIRE(cudaMalloc(&data_, size * sizeof(T)) == cudaSuccess); }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) { write(values); }
  ~DeviceArray() { cudaFree(data_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  T* get() const { return data_; }
  void write(const std::vector<T>& values) {
    REQUIRE(cudaMemcpy(data_, values.data(), size_ * sizeof(T), cudaMemcpyHostToDevice) == cudaSuccess);
  }
  void fill(int byte) { REQUIRE(cudaMemset(data_, byte, size_ * sizeof(T)) == cudaSuccess); }
  // Waits for the default stream. After a launch that was given up the values mean nothing.
  std::vector<T> read() const {
    std::vector<T> out(size_);
    static_cast<void>(cudaMemcpy(out.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost));
    return out;
  }

 private:
  T* data_ = nullptr;
  size_t size_;
};

// Fifo, reverse, and `random` seeds, each with another way in which copies complete; threads are interrupted in the last.
inline std::vector<Options> schedules(int random = 20) {
  std::vector<Options> out;
  for (const Completion completion : {Completion::kEarly, Completion::kLate}) {
    for (const Order order : {Order::kFifo, Order::kReverse}) {
      Options options;
      options.order = order;
      options.completion = completion;
      out.push_back(options);
    }
  }
  for (int seed = 1; seed <= random; ++seed) {
    Options options;
    options.order = Order::kRandom;
    options.completion = seed % 3 == 0 ? Completion::kRandom : seed % 3 == 1 ? Completion::kLate : Completion::kEarly;
    options.seed = static_cast<uint64_t>(seed);
    options.resident_blocks = 1 + seed % 3;
    options.preempt_every = seed % 2 == 0 ? 20 : 0;
    out.push_back(options);
  }
  return out;
}

// Runs `check` under each schedule, and requires that nothing is found.
template <class Check>
void under_schedules(const std::vector<Options>& list, Check check) {
  for (const Options& one : list) {
    options() = one;
    INFO("order " << static_cast<int>(one.order) << " completion " << static_cast<int>(one.completion) << " seed "
                  << one.seed);
    check();
    const std::vector<Finding> findings = take_findings();
    INFO(to_string(findings));
    REQUIRE(findings.empty());
  }
  options() = Options{};
  take_counters();
}

// What a faulty run leaves behind, by kind.
inline bool contains(const std::vector<Finding>& findings, FindingKind kind, const std::string& text = "") {
  for (const Finding& finding : findings) {
    if (finding.kind == kind && finding.text.find(text) != std::string::npos) return true;
  }
  return false;
}

}  // namespace headrace::emulator
