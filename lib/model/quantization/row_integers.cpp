#include "model/quantization/row_integers.h"

#include "base/format_full.h"
#include "formats/text_quote.h"

namespace headrace {
namespace {

uint32_t code_in(const std::vector<uint32_t>& words, uint64_t word, uint64_t position, int bits) {
  const uint32_t shift = static_cast<uint32_t>(position) * static_cast<uint32_t>(bits);
  return (words[word] >> shift) & ((1u << bits) - 1);
}

class IntegerRows final : public DerivedRows {
 public:
  IntegerRows(const QuantizedModules& modules, const RowIntegers& integers, IntegerGroups division)
      : file_(modules.file), w_(integers), division_(std::move(division)), one_scale_(scales_of(integers) == 1) {}

  static uint64_t scales_of(const RowIntegers& w) { return *num_elements(w.scales->shape); }

  Status read(uint64_t first, uint64_t count, std::byte* out) const override {
    const uint64_t row_size = *row_bytes(division_.dtype, w_.cols);
    std::vector<uint8_t> stored, codes(w_.cols);
    for (uint64_t row = first; row < first + count; ++row, out += row_size) {
      HEADRACE_RETURN_IF_ERROR(read_codes(row, stored));
      for (uint64_t k = 0; k < w_.cols; ++k) codes[k] = stored[division_.column(k)];
      HEADRACE_ASSIGN_OR_RETURN(
          std::vector<float> scales,
          read_floats(*file_, *w_.scales, one_scale_ ? 0 : row * w_.groups, one_scale_ ? 1 : w_.groups));
      for (float& scale : scales) scale *= w_.scale_factor;
      std::vector<int32_t> zeros(scales.size(), w_.bits == 4 ? 8 : 0);
      if (w_.zeros != nullptr) HEADRACE_RETURN_IF_ERROR(read_zeros(row, zeros));
      write_row(division_, codes, scales.data(), zeros.data(), out);
    }
    return {};
  }

 private:
  // Four bits: 0..15, which stand for -8..7. Eight: two's complement.
  Status read_codes(uint64_t row, std::vector<uint8_t>& out) const {
    if (!w_.packed) {
      HEADRACE_ASSIGN_OR_RETURN(out, read_elements<uint8_t>(*file_, *w_.codes, row * w_.cols, w_.cols));
      return {};
    }
    const uint64_t per_word = 32 / static_cast<uint64_t>(w_.bits), words = w_.cols / per_word;
    HEADRACE_ASSIGN_OR_RETURN(const auto packed, read_elements<uint32_t>(*file_, *w_.codes, row * words, words));
    out.resize(w_.cols);
    for (uint64_t k = 0; k < w_.cols; ++k) {
      const uint32_t code = code_in(packed, k / per_word, k % per_word, w_.bits);
      out[k] = static_cast<uint8_t>(w_.bits == 8 ? code ^ 0x80 : code);
    }
    return {};
  }

  Status read_zeros(uint64_t row, std::vector<int32_t>& out) const {
    if (!w_.packed_zeros) {
      HEADRACE_ASSIGN_OR_RETURN(const auto zeros,
                                read_elements<int8_t>(*file_, *w_.zeros, one_scale_ ? 0 : row * w_.groups, out.size()));
      for (size_t g = 0; g < out.size(); ++g) {
        out[g] += zeros[g];
        if (w_.bits == 4 && (out[g] < 0 || out[g] > 15)) {
          return malformed(quote_name(w_.zeros->name), "{} is no zero point of 4 bits", zeros[g]);
        }
      }
      return {};
    }
    const uint64_t per_word = 32 / static_cast<uint64_t>(w_.bits);
    HEADRACE_ASSIGN_OR_RETURN(const auto words,
                              read_elements<uint32_t>(*file_, *w_.zeros, row / per_word * w_.groups, w_.groups));
    for (size_t g = 0; g < out.size(); ++g) {
      const auto code = static_cast<int32_t>(code_in(words, g, row % per_word, w_.bits));
      out[g] = w_.bits == 8 ? code - 128 : code;
    }
    return {};
  }

  std::shared_ptr<const TensorFile> file_;
  RowIntegers w_;
  IntegerGroups division_;
  bool one_scale_;
};

}  // namespace

Status add_rows(QuantizedModules& modules, const std::string& module, const RowIntegers& w, IntegerGroups division,
                std::initializer_list<std::string_view> suffixes) {
  const auto bits = static_cast<uint64_t>(w.bits);
  HEADRACE_RETURN_IF_ERROR(expect_shape(*w.codes, {w.rows, w.packed ? w.cols * bits / 32 : w.cols}));
  if (w.groups == 0 || w.groups > w.cols) {
    return malformed(quote_name(w.scales->name), "{} groups of {} columns", w.groups, w.cols);
  }
  const uint64_t scales = IntegerRows::scales_of(w);
  if (scales != w.rows * w.groups && !(scales == 1 && w.groups == 1)) {
    return malformed(quote_name(w.scales->name), "shape [{}], expected [{}, {}]", fmt::join(w.scales->shape, ", "),
                     w.rows, w.groups);
  }
  if (w.zeros != nullptr && w.packed_zeros) {
    HEADRACE_RETURN_IF_ERROR(expect_shape(*w.zeros, {(w.rows * bits + 31) / 32, w.groups}));
  } else if (w.zeros != nullptr && *num_elements(w.zeros->shape) != scales) {
    return malformed(quote_name(w.zeros->name), "shape [{}], its scales have [{}]", fmt::join(w.zeros->shape, ", "),
                     fmt::join(w.scales->shape, ", "));
  }
  const DType dtype = division.dtype;
  const ColumnOrder order = division.column_order;
  modules.add(module, dtype, {w.rows, w.cols}, suffixes, std::make_unique<IntegerRows>(modules, w, std::move(division)),
              order);
  return {};
}

}  // namespace headrace
