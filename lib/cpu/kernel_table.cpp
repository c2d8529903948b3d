#include "cpu/kernel_table.h"

#include "base/cpu_features.h"

namespace headrace {

#if defined(__aarch64__)

namespace isa_neon {
extern const KernelTable kKernelTable;
}
namespace isa_neon_dotprod {
extern const KernelTable kKernelTable;
}

const KernelTable& kernel_table(int32_t isa) {
  return static_cast<Isa>(isa) == Isa::kNeonDotprod ? isa_neon_dotprod::kKernelTable : isa_neon::kKernelTable;
}

#else

namespace isa_baseline {
extern const KernelTable kKernelTable;
}
namespace isa_avx2 {
extern const KernelTable kKernelTable;
}
namespace isa_avx_vnni {
extern const KernelTable kKernelTable;
}
namespace isa_avx512_vnni {
extern const KernelTable kKernelTable;
}

const KernelTable& kernel_table(int32_t isa) {
  switch (static_cast<Isa>(isa)) {
    case Isa::kAvx512Vnni: return isa_avx512_vnni::kKernelTable;
    case Isa::kAvxVnni: return isa_avx_vnni::kKernelTable;
    case Isa::kAvx2: return isa_avx2::kKernelTable;
    default: return isa_baseline::kKernelTable;
  }
}

#endif

}  // namespace headrace
