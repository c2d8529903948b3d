#include "model/quantization/transposed_integers.h"

#include <cmath>
#include <cstring>

#include "formats/text_quote.h"
#include "tensor/dequantize.h"

namespace headrace {
namespace {

using Packing = TransposedIntegers::Packing;

class TransposedRows final : public DerivedRows {
 public:
  TransposedRows(const QuantizedModules& modules, TransposedIntegers integers, IntegerGroups groups)
      : file_(modules.file), whole_(modules.whole), w_(std::move(integers)), groups_(std::move(groups)) {}

  Status read(uint64_t first, uint64_t count, std::byte* out) const override {
    HEADRACE_ASSIGN_OR_RETURN(const auto parts, whole_->get(*file_, {w_.qweight, w_.qzeros, w_.scales}));
    const uint64_t row_size = *row_bytes(groups_.dtype, w_.inputs);
    const auto scale_size = static_cast<uint64_t>(dtype_info(w_.scales->dtype).block_bytes);
    std::vector<uint8_t> codes(w_.inputs);
    std::vector<float> scales(w_.num_groups);
    std::vector<int32_t> zeros(w_.num_groups);
    for (uint64_t n = first; n < first + count; ++n, out += row_size) {
      for (uint64_t k = 0; k < w_.inputs; ++k) codes[k] = code(*parts[0], groups_.column(k), n);
      for (uint64_t g = 0; g < w_.num_groups; ++g) {
        zeros[g] = w_.zero_of(stored_zero(*parts[1], g, n));
        if (zeros[g] < 0) return malformed(quote_name(w_.qzeros->name), "has a zero point that does not fit sym");
        HEADRACE_RETURN_IF_ERROR(
            dequantize_row(w_.scales->dtype, parts[2]->data() + (g * w_.outputs + n) * scale_size, &scales[g], 1));
        if (!std::isfinite(scales[g])) {
          return malformed(quote_name(w_.scales->name), "element [{}, {}] is not finite", g, n);
        }
        // 8-bit codes become signed.
        if (w_.bits == 8) zeros[g] -= 128;
      }
      write_row(groups_, codes, scales.data(), zeros.data(), out);
    }
    return {};
  }

 private:
  static uint32_t word(const std::vector<std::byte>& bytes, uint64_t index) {
    uint32_t value;
    std::memcpy(&value, bytes.data() + index * sizeof value, sizeof value);
    return value;
  }
  uint32_t mask() const { return (1u << w_.bits) - 1; }
  // Where output n lies in a word of eight.
  static uint64_t switched(uint64_t n) { return n % 2 == 0 ? n / 2 : 4 + n / 2; }

  uint8_t code(const std::vector<std::byte>& qweight, uint64_t k, uint64_t n) const {
    if (w_.packing == Packing::kSwitchOutputs) {
      return static_cast<uint8_t>((word(qweight, k * (w_.outputs / 8) + n / 8) >> (4 * switched(n % 8))) & 15);
    }
    const uint64_t per_word = 32 / static_cast<uint64_t>(w_.bits),
                   shift = k % per_word * static_cast<uint64_t>(w_.bits);
    const uint32_t value = (word(qweight, k / per_word * w_.outputs + n) >> shift) & mask();
    return static_cast<uint8_t>(w_.bits == 8 ? value ^ 0x80 : value);
  }

  int32_t stored_zero(const std::vector<std::byte>& qzeros, uint64_t g, uint64_t n) const {
    const uint64_t per_word = 32 / static_cast<uint64_t>(w_.bits), position = n % per_word;
    const uint64_t place = w_.packing == Packing::kSwitchOutputs ? switched(position) : position;
    const uint32_t value = word(qzeros, g * (w_.outputs / per_word) + n / per_word);
    return static_cast<int32_t>((value >> (place * static_cast<uint64_t>(w_.bits))) & mask());
  }

  std::shared_ptr<const TensorFile> file_;
  std::shared_ptr<WholeTensors> whole_;
  TransposedIntegers w_;
  IntegerGroups groups_;
};

}  // namespace

void add_transposed(QuantizedModules& modules, const std::string& module, TransposedIntegers integers,
                    IntegerGroups groups) {
  const DType dtype = groups.dtype;
  const ColumnOrder order = groups.column_order;
  std::vector<uint64_t> shape = {integers.outputs, integers.inputs};
  modules.add(module, dtype, std::move(shape), {".qweight", ".qzeros", ".scales", ".g_idx"},
              std::make_unique<TransposedRows>(modules, std::move(integers), std::move(groups)), order);
}

}  // namespace headrace
