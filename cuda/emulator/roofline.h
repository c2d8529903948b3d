// The least time that a launch's counted work takes on a device, by the manufacturer's figures: no launch is faster, and
// nothing here says how close a device comes.
#pragma once

#include <algorithm>

#include "emulator/access_counters.h"

namespace headrace::emulator {

struct DeviceLimits {
  const char* name;
  double dram_bytes_per_second;
  double f16_flops_per_second;          // dense, float32 sums
  double s8_ops_per_second;             // dense
  double shared_wavefronts_per_second;  // multiprocessors * clock
};

// NVIDIA's data sheets (SXM modules). The matrix rate of the B200 is that of tcgen05, which mma.sync does not reach.
inline constexpr DeviceLimits kH200{"H200", 4.8e12, 989e12, 1979e12, 132 * 1.83e9};
inline constexpr DeviceLimits kB200{"B200", 8.0e12, 2250e12, 4500e12, 148 * 1.85e9};

struct Roofline {
  double seconds;
  const char* limit;
};

inline Roofline roofline(const Counters& counters, const DeviceLimits& device) {
  const Roofline limits[] = {
      {static_cast<double>(counters.bytes_read + counters.bytes_written) / device.dram_bytes_per_second, "memory"},
      {counters.mma_f16_flops / device.f16_flops_per_second + counters.mma_s8_ops / device.s8_ops_per_second, "matrix"},
      {static_cast<double>(counters.shared_loads.wavefronts + counters.shared_stores.wavefronts) /
           device.shared_wavefronts_per_second,
       "shared memory"}};
  return *std::max_element(std::begin(limits), std::end(limits),
                           [](const Roofline& a, const Roofline& b) { return a.seconds < b.seconds; });
}

}  // namespace headrace::emulator
