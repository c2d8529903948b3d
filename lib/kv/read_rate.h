// How long a tier takes for what is read of it, as measured.
#pragma once

#include <cstddef>
#include <cstdint>

namespace headrace::kv {

// One thread at a time.
class ReadRate {
 public:
  // 0 before anything was measured: the first read is how it is.
  double predict_ns(uint64_t bytes) const { return ns_per_byte_ * static_cast<double>(bytes); }
  void observe(uint64_t bytes, int64_t ns) {
    if (bytes == 0) return;
    const double now = static_cast<double>(ns) / static_cast<double>(bytes);
    ns_per_byte_ = measured_ ? ns_per_byte_ + (now - ns_per_byte_) / 8.0 : now;
    measured_ = true;
  }
  // A prediction kept somebody from reading. It may have come of one slow moment: after some of these, somebody reads again.
  void fade() { ns_per_byte_ *= 0.9; }

 private:
  double ns_per_byte_ = 0.0;
  bool measured_ = false;
};

}  // namespace headrace::kv
