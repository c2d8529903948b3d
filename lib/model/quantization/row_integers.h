// Weights of whole numbers that lie row by row, as compressed-tensors and bitsandbytes store them.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

#include "model/quantization/integer_groups.h"
#include "model/quantization/module_parts.h"

namespace headrace {

struct RowIntegers {
  int bits = 8;
  bool packed = false;  // codes: int32 words of codes plus 2^(bits - 1), the first in the lowest bits; else int8
  uint64_t rows = 0, cols = 0;
  const TensorEntry* codes = nullptr;
  const TensorEntry* scales = nullptr;  // one, or [rows, groups]
  uint64_t groups = 1;
  float scale_factor = 1.0f;  // of every scale
  // Null: the code 0 stands for zero. Else of the scales' shape in int8, or with packed_zeros words as `codes`, packed
  // along the rows: [ceil(rows * bits / 32), groups].
  const TensorEntry* zeros = nullptr;
  bool packed_zeros = false;
};

// Adds the module's weight, its columns divided as `division` says, instead of its tensors with these suffixes. kMalformed
// for parts whose shapes do not go together.
Status add_rows(QuantizedModules& modules, const std::string& module, const RowIntegers& integers,
                IntegerGroups division, std::initializer_list<std::string_view> suffixes);

}  // namespace headrace
