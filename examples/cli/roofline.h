// What this machine can do at most, measured here and now.
#pragma once

#include <string>

namespace cli {

// Of num_threads threads together, with an instruction set's own loads and multiply-adds; best of a few passes.
struct Roofline {
  double read_bytes_per_second = 0;  // from buffers far larger than the caches
  double int8_multiply_adds_per_second = 0;
  double float_multiply_adds_per_second = 0;
};

// isa: "baseline", "avx2" or "avx512_vnni", one that this machine has. Takes about half a second and 256 MiB for each
// thread; throws std::runtime_error where there is no such memory.
Roofline measure_roofline(const std::string& isa, int num_threads);

}  // namespace cli
