#include <cstring>

#include "kernels/linear_q8_0.h"
#include "tensor/block_formats.h"

namespace headrace::cuda {

void pack_q8_0(const std::byte* blocks, int64_t rows, int64_t cols, uint8_t* codes, uint16_t* scales) {
  const int64_t steps = cols / 32;
  for (int64_t row = 0; row < q8_padded_rows(rows); ++row) {
    for (int64_t step = 0; step < steps; ++step) {
      BlockQ8_0 block{};
      if (row < rows) {
        std::memcpy(&block, blocks + static_cast<size_t>(row * steps + step) * sizeof block, sizeof block);
      }
      const int64_t record = row / 16 * steps + step;
      scales[record * 16 + row % 16] = block.d;
      for (int64_t column = 0; column < 32; ++column) {
        codes[q8_code_at(cols, row, step * 32 + column)] = static_cast<uint8_t>(block.qs[column] + 128);
      }
    }
  }
}

}  // namespace headrace::cuda
