#include "base/cpu_features.h"

#include <sched.h>
#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include <algorithm>
#include <cstdio>

namespace headrace {
namespace {

#if defined(__x86_64__)

struct Registers {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Registers cpuid(unsigned leaf, unsigned subleaf) {
  Registers r;
  if (leaf <= static_cast<unsigned>(__get_cpuid_max(0, nullptr)))
    __cpuid_count(leaf, subleaf, r.eax, r.ebx, r.ecx, r.edx);
  return r;
}

bool bit(unsigned word, int index) { return (word >> index) & 1; }

// Intel SDM vol. 1, 13.3: XCR0 tells which register files the operating system saves.
unsigned saved_register_files() {
  if (!bit(cpuid(1, 0).ecx, 27)) return 0;  // OSXSAVE
  unsigned low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

bool has_avx2() {
  const Registers one = cpuid(1, 0), seven = cpuid(7, 0);
  const bool ymm_saved = (saved_register_files() & 0x6) == 0x6;
  return ymm_saved && bit(one.ecx, 28) && bit(one.ecx, 12) && bit(one.ecx, 29) && bit(seven.ebx, 5);
}

bool has_avx_vnni() {
  // Leaf 7 says in eax which of its subleaves exist.
  return has_avx2() && cpuid(7, 0).eax >= 1 && bit(cpuid(7, 1).eax, 4);
}

bool has_avx512_vnni() {
  const Registers seven = cpuid(7, 0);
  const bool zmm_saved = (saved_register_files() & 0xe6) == 0xe6;
  return zmm_saved && has_avx2() && bit(seven.ebx, 16) && bit(seven.ebx, 17) && bit(seven.ebx, 30) &&
         bit(seven.ebx, 31) && bit(seven.ecx, 11);
}

bool available(Isa isa) {
  switch (isa) {
    case Isa::kBaseline: return true;
    case Isa::kAvx2: return has_avx2();
    case Isa::kAvxVnni: return has_avx_vnni();
    case Isa::kAvx512Vnni: return has_avx512_vnni();
    default: return false;
  }
}

#elif defined(__aarch64__)

bool available(Isa isa) {
  switch (isa) {
    case Isa::kNeon: return true;
    case Isa::kNeonDotprod: return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
    default: return false;
  }
}

#else
#error "kernels exist for x86-64 and AArch64"
#endif

// cgroup v2's cpu.max: "quota period" in microseconds, or "max period".
int cgroup_processors() {
  FILE* file = std::fopen("/sys/fs/cgroup/cpu.max", "re");
  if (!file) return 0;
  long quota = 0, period = 0;
  const int fields = std::fscanf(file, "%ld %ld", &quota, &period);
  std::fclose(file);
  if (fields != 2 || quota <= 0 || period <= 0) return 0;
  return static_cast<int>((quota + period - 1) / period);
}

}  // namespace

std::string_view isa_name(Isa isa) {
  switch (isa) {
    case Isa::kBaseline: return "baseline";
    case Isa::kAvx2: return "avx2";
    case Isa::kAvxVnni: return "avx_vnni";
    case Isa::kAvx512Vnni: return "avx512_vnni";
    case Isa::kNeon: return "neon";
    case Isa::kNeonDotprod: return "neon_dotprod";
  }
  return "unknown";
}

bool isa_available(Isa isa) { return available(isa); }

std::vector<Isa> available_isas() {
  std::vector<Isa> isas;
  for (Isa isa : kAllIsas) {
    if (isa_available(isa)) isas.push_back(isa);
  }
  return isas;
}

Result<Isa> choose_isa(std::string_view name) {
  const std::vector<Isa> isas = available_isas();
  if (name.empty() || name == "auto") return isas.back();
  std::string names;
  for (Isa isa : isas) {
    if (isa_name(isa) == name) return isa;
    names += names.empty() ? "" : ", ";
    names += isa_name(isa);
  }
  return unsupported("isa", "instruction set '{}' is not available here; available: {}", name, names);
}

int usable_processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  int processors = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
  if (const int quota = cgroup_processors(); quota > 0) processors = std::min(processors, quota);
  return std::max(processors, 1);
}

}  // namespace headrace
