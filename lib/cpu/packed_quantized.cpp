#include "cpu/packed_quantized.h"

namespace headrace {

Result<std::unique_ptr<CpuPackedWeight>> pack_quantized(const WeightSource& source, const PackOptions&, ThreadPool&) {
  return unsupported(source.name, "no kernels for {} weights", dtype_name(source.dtype));
}

}  // namespace headrace
