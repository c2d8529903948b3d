#include "base/cpu_identity.h"

#if defined(__x86_64__)
#include <cpuid.h>

#include <cstring>
#elif defined(__aarch64__)
#include <cinttypes>
#include <cstdio>

#include "base/format.h"
#endif

namespace headrace {

#if defined(__x86_64__)

CpuIdentity cpu_identity() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid(0, &eax, &ebx, &ecx, &edx) == 0) return {};
  char vendor[12];
  std::memcpy(vendor, &ebx, 4);
  std::memcpy(vendor + 4, &edx, 4);
  std::memcpy(vendor + 8, &ecx, 4);
  CpuIdentity identity;
  identity.vendor.clear();
  for (const char c : vendor) identity.vendor += c >= 0x20 && c < 0x7f ? c : '?';
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0) return identity;
  const unsigned family = eax >> 8 & 15, model = eax >> 4 & 15;
  const bool is_extended = family == 15;
  identity.family = static_cast<int32_t>(is_extended ? family + (eax >> 20 & 255) : family);
  const bool has_extended_model = is_extended || family == 6;
  identity.model = static_cast<int32_t>(has_extended_model ? model | (eax >> 16 & 15) << 4 : model);
  return identity;
}

#elif defined(__aarch64__)

CpuIdentity cpu_identity() {
  std::FILE* file = std::fopen("/sys/devices/system/cpu/cpu0/regs/identification/midr_el1", "re");
  if (file == nullptr) return {};
  uint64_t midr = 0;
  const int fields = std::fscanf(file, "%" SCNx64, &midr);
  std::fclose(file);
  if (fields != 1) return {};
  CpuIdentity identity;
  identity.vendor = fmt::format("implementer 0x{:02x}", midr >> 24 & 255);
  identity.model = static_cast<int32_t>(midr >> 4 & 0xfff);
  return identity;
}

#endif

}  // namespace headrace
