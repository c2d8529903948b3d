// What this machine can do at most, measured here and now.
#pragma once

#include <memory>
#include <string>

namespace cli {

// Of num_threads threads together, with an instruction set's own loads and multiply-adds; best of a few passes.
struct Roofline {
  double read_bytes_per_second = 0;  // from buffers far larger than the caches
  double int8_multiply_adds_per_second = 0;
  double float_multiply_adds_per_second = 0;
};

// The rate at which all threads together read memory that no cache holds. Throws as measure_roofline does.
class ReadProbe {
 public:
  ReadProbe(const std::string& isa, int num_threads);
  ~ReadProbe();
  ReadProbe(const ReadProbe&) = delete;
  ReadProbe& operator=(const ReadProbe&) = delete;
  // Bytes per second of one pass. On a shared machine the rate varies with the neighbours: ask right before and after
  // what it is compared with.
  double pass() const;

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

// isa: a name of the library's ("baseline", "avx2", ...), one that this machine has. Takes about half a second and 256 MiB for each
// thread; throws std::runtime_error where there is no such memory.
Roofline measure_roofline(const std::string& isa, int num_threads);

}  // namespace cli
