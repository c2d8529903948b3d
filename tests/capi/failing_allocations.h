// Makes one allocation of the calling thread fail, or every one from there on, through this program's operator new.
#pragma once

#include <cstdint>

#include <catch2/catch.hpp>

#include <headrace/headrace.h>

namespace capi_test {

struct FailingAllocations {
  int64_t left = -1;     // the allocation at 0 fails; -1: none
  bool and_all = false;  // and so do all after it
  bool failed = false;
};
extern thread_local FailingAllocations failing_allocations;

// Does something that no allocation fails in.
template <class Work>
void aside(const Work& work) {
  const FailingAllocations kept = failing_allocations;
  failing_allocations = FailingAllocations();
  work();
  failing_allocations = kept;
}

// Calls until no allocation is left to fail, and the last call must succeed; every outcome before it is success or the
// error.
template <class Call>
void fail_each_in_mode(const Call& call, bool and_all) {
  for (int64_t k = 0;; ++k) {
    failing_allocations = {k, and_all, false};
    const headrace_status status = call();
    const bool failed = failing_allocations.failed;
    failing_allocations = FailingAllocations();
    INFO((and_all ? "every allocation from " : "allocation ") << k << " gave " << headrace_status_get_name(status));
    if (!failed) {
      REQUIRE(status == HEADRACE_OK);
      return;
    }
    REQUIRE((status == HEADRACE_OK || status == HEADRACE_OUT_OF_MEMORY));
  }
}

// One failing allocation: calls that go on afterwards.
template <class Call>
void fail_each(const Call& call) {
  fail_each_in_mode(call, false);
}

// The same, and then with no memory at all from each allocation on: what unwinds must not ask for more.
template <class Call>
void fail_each_and_all(const Call& call) {
  fail_each_in_mode(call, false);
  fail_each_in_mode(call, true);
}

}  // namespace capi_test
