// Weights of whole numbers that lie input by input, as GPTQ and AWQ store them: a word holds codes of several inputs or
// outputs, and scales and zero points are [groups, outputs].
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "model/quantization/integer_groups.h"
#include "model/quantization/module_parts.h"

namespace headrace {

struct TransposedIntegers {
  enum class Packing : int32_t {
    kInputs,  // qweight [inputs * bits / 32, outputs]: a word holds 32 / bits inputs, the first in the lowest bits
    kSwitchOutputs,  // qweight [inputs, outputs / 8], 4 bits: a word holds eight outputs as 0, 2, 4, 6, 1, 3, 5, 7
  };
  Packing packing = Packing::kInputs;
  int bits = 4;
  uint64_t inputs = 0, outputs = 0, num_groups = 0;
  const TensorEntry *qweight = nullptr, *qzeros = nullptr, *scales = nullptr;
  // The zero point of what qzeros hold; a negative result is malformed.
  std::function<int32_t(int32_t stored)> zero_of;
};

// Adds the module's weight, its columns divided as `groups` says.
void add_transposed(QuantizedModules& modules, const std::string& module, TransposedIntegers integers,
                    IntegerGroups groups);

}  // namespace headrace
