// What a launch was found to do wrong, and how a launch ends that cannot go on.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace headrace::emulator {

// A place in the kernel's source. Functions that a kernel calls take it as a last argument with this default.
struct Place {
  const char* file = "";
  unsigned line = 0;
  static constexpr Place here(const char* file = __builtin_FILE(), unsigned line = __builtin_LINE()) {
    return {file, line};
  }
};
std::string to_string(Place place);  // "rms_norm.cu:31"

// The place of an instruction, from its return address and the program's line table.
std::string place_of(const void* return_address);

enum class FindingKind {
  kRace,
  kUninitialised,  // a read of shared or device memory that nothing has written
  kOutOfBounds,    // shared or device memory outside an allocation, or host memory
  kDeadlock,
  kMisuse,  // divergent collectives and barriers, misaligned copies, a launch that no device would accept
};
const char* name_of(FindingKind kind);

struct Finding {
  FindingKind kind;
  std::string text;
  uint64_t times = 1;  // how often at this place
};

// Findings since the last call.
std::vector<Finding> take_findings();
bool has_findings();
std::string to_string(const std::vector<Finding>& findings);

// Records a finding. Those of equal kind and `site`, an instruction or a place, are counted together.
void report(FindingKind kind, const void* site, const std::string& text);
// Whether report would only count: texts are costly.
bool is_known(FindingKind kind, const void* site);

// Thrown through a kernel whose launch cannot go on; the scheduler catches it.
struct LaunchAborted {};
[[noreturn]] void fail(FindingKind kind, const std::string& text);

}  // namespace headrace::emulator
