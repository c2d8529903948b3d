// A backend whose threads the system refuses.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

#include "op_cases.h"

namespace headrace::test {
namespace {

// Of this process, in bytes.
rlim_t address_space() {
  rlim_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace

TEST_CASE("Threads that cannot be started are an error, and those that were end") {
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    alarm(60);  // a pool that waits for ever ends by a signal
    const rlimit limit = {address_space() + (rlim_t{256} << 20), RLIM_INFINITY};
    if (setrlimit(RLIMIT_AS, &limit) != 0) _exit(2);
    const auto backend = make_cpu_backend({available_isas().back(), 1024});
    _exit(!backend.ok() && backend.status().code() == StatusCode::kOutOfMemory ? 0 : 1);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}

}  // namespace headrace::test
