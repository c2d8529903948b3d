// The places where kernels synchronise, numbered in the order in which they were first reached, each of which can be
// switched off: what a kernel's tests do not notice then, they do not test.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "emulator/findings.h"

namespace headrace::emulator {

struct SyncPoint {
  std::string kind;  // "__syncthreads", "cp.async.wait_group", ...
  Place place;
  bool enabled = true;
};

// Whether the running kernel synchronises here. Registers the place.
bool sync_point_enabled(const char* kind, Place place);

struct Mutant {
  size_t number;  // of the places reached in this process, in order
  SyncPoint point;
  bool caught;
  std::string how;  // the first finding, or "wrong result"
};

// Runs `run` once as it is, then with each synchronisation point it reached switched off. `run` executes kernels and
// says whether their results were right; a mutant is caught by a wrong result or a finding. The first run must be right
// and without findings, or the list is empty.
std::vector<Mutant> run_mutants(const std::function<bool()>& run);
std::string to_string(const std::vector<Mutant>& mutants);  // a line each

}  // namespace headrace::emulator
