// What one op works on: places on the device for values that are in the program's memory, and for its own.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "backend/device_stream.h"

namespace headrace::cuda {

// Arrays of numbers that steps bring along. Layer after layer has the same, so they are copied where they have changed.
enum class StepArray { kTokenIds, kPositions, kSlots, kSequences, kBlockTables, kTiles, kCount };

// Thread rule: who holds the device's mutex. Pointers are good until the next begin(), those of constant() and
// step_array() until they are asked for with other contents.
class OpBuffers {
 public:
  explicit OpBuffers(std::shared_ptr<DeviceStream> device) : device_(std::move(device)) {}

  // A new op: what the last one had may be used again.
  void begin();
  // Copies what output() stood in for to the program's memory.
  void end();

  // Not written yet; null, with the failure noted, where there is no room.
  std::byte* scratch(size_t bytes);
  template <class T>
  T* scratch(int64_t count) {
    return reinterpret_cast<T*>(scratch(static_cast<size_t>(count) * sizeof(T)));
  }
  // The values where kernels can read them; null stays null.
  const float* input(const float* values, int64_t count);
  // Where kernels write them; with `keep` they are there before.
  float* output(float* values, int64_t count, bool keep);
  // Of the model's: they are there from the last time, as long as the bytes are the same.
  const float* constant(const float* values, int64_t count);
  template <class T>
  const T* step_array(StepArray which, const T* values, int64_t count) {
    return static_cast<const T*>(
        kept(of_step_[static_cast<size_t>(which)], values, static_cast<size_t>(count) * sizeof(T)));
  }

 private:
  struct Kept {
    DeviceBytes device;
    std::vector<std::byte> bytes;  // what it holds
  };
  struct Output {
    float* host;
    const std::byte* device;
    size_t bytes;
  };
  const void* kept(Kept& place, const void* values, size_t bytes);
  bool reserve(DeviceBytes& place, size_t bytes);

  static constexpr size_t kMostConstants = 1 << 14;  // with so many the next op starts with none: models come and go

  const std::shared_ptr<DeviceStream> device_;
  std::vector<DeviceBytes> arenas_;  // the last is in use
  size_t used_ = 0;
  std::vector<Output> outputs_;
  Kept of_step_[static_cast<size_t>(StepArray::kCount)];
  std::unordered_map<const float*, Kept> constants_;
};

}  // namespace headrace::cuda
