// Measuring which of a backend's ways to compute its products is the fastest on this machine.
#pragma once

#include <string>

#include "base/status.h"

namespace headrace {

struct TuneRequest {
  double seconds = 60;  // no measurement but the first starts later
  // A table of an earlier tuning, as BackendTuner::table gave it, to be extended; empty: none. What it has is kept.
  std::string known;
};

// Thread rule: that of the backend it came from, whose ops step runs. The backend and the weights must outlive it.
class BackendTuner {
 public:
  virtual ~BackendTuner() = default;
  // Measures the next of the products; false when none is left or the time is over. kInternal where the backend's
  // kernels do not agree with their reference. Throws std::bad_alloc.
  virtual Result<bool> step() = 0;
  // Of what step has to do, 0 to 1.
  virtual double fraction() const = 0;
  // What is known so far, as text that the backend's options take.
  virtual std::string table() const = 0;
};

}  // namespace headrace
