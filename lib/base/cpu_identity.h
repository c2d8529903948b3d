// Which processor this is, as far as its measured numbers hold for others of its kind.
#pragma once

#include <cstdint>
#include <string>

namespace headrace {

struct CpuIdentity {
  std::string vendor = "unknown";
  int32_t family = 0;
  int32_t model = 0;

  bool operator==(const CpuIdentity&) const = default;
};

// x86-64: vendor text, family and model of CPUID leaves 0 and 1, extended ones added (AMD APM vol. 3, E.3.2).
// AArch64: "implementer 0x41" and the part number of MIDR_EL1, where Linux shows it. Otherwise "unknown".
CpuIdentity cpu_identity();

}  // namespace headrace
