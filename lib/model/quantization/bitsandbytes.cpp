// bitsandbytes: int8 with a scale for each row, and NF4 with scales of blocks, which may be quantized themselves. Source:
// PyPI's bitsandbytes 0.50.2, functional.py (QuantState, int8_vectorwise_dequant, dequantize_4bit).
#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>

#include "base/format_full.h"
#include "formats/json.h"
#include "formats/text_quote.h"
#include "model/quantization/methods.h"
#include "model/quantization/row_integers.h"
#include "tensor/block_formats.h"
#include "tensor/nf4.h"

namespace headrace {
namespace {

constexpr std::string_view kKeys[] = {
    "quant_method", "llm_int8_has_fp16_weight", "bnb_4bit_quant_storage", "llm_int8_skip_modules",
    // Read from the tensors.
    "load_in_4bit", "load_in_8bit", "_load_in_4bit", "_load_in_8bit", "bnb_4bit_quant_type",
    "bnb_4bit_use_double_quant",
    // Of activations.
    "llm_int8_threshold", "llm_int8_enable_fp32_cpu_offload", "bnb_4bit_compute_dtype"};
constexpr std::string_view kState = ".weight.quant_state.bitsandbytes__";
constexpr uint64_t kBlock = 64;  // elements of a block of NF4_G64

// The scales of a weight's blocks, in order over all its rows.
struct BlockScales {
  std::vector<float> values;
  uint64_t block_size = 0;
};

class Nf4Rows final : public DerivedRows {
 public:
  Nf4Rows(const QuantizedModules& modules, const TensorEntry& codes, uint64_t cols, BlockScales scales)
      : file_(modules.file), codes_(codes), cols_(cols), scales_(std::move(scales)) {}

  Status read(uint64_t first, uint64_t count, std::byte* out) const override {
    HEADRACE_ASSIGN_OR_RETURN(const auto pairs,
                              read_elements<uint8_t>(*file_, codes_, first * cols_ / 2, count * cols_ / 2));
    for (uint64_t at = 0; at < count * cols_; at += kBlock, out += sizeof(BlockNf4)) {
      BlockNf4 block;
      block.d = scales_.values[(first * cols_ + at) / scales_.block_size];
      // The first of a byte's two lies in its high half.
      const auto nibble = [&](uint64_t e) { return pairs[(at + e) / 2] >> (e % 2 == 0 ? 4 : 0) & 15; };
      for (uint64_t j = 0; j < kBlock / 2; ++j) {
        block.qs[j] = static_cast<uint8_t>(nibble(j) | nibble(j + kBlock / 2) << 4);
      }
      std::memcpy(out, &block, sizeof block);
    }
    return {};
  }

 private:
  std::shared_ptr<const TensorFile> file_;
  const TensorEntry& codes_;
  uint64_t cols_;
  BlockScales scales_;
};

// The 8-bit codes of the scales, through a table and under scales of their own, plus what was taken off them.
Result<std::vector<float>> read_nested(const QuantizedModules& modules, const std::string& module,
                                       const TensorEntry& codes, const ConfigReader& state) {
  HEADRACE_ASSIGN_OR_RETURN(const TensorEntry* table_entry,
                            modules.need(module + ".weight.nested_quant_map", {DType::kF32}));
  HEADRACE_ASSIGN_OR_RETURN(const TensorEntry* scales_entry,
                            modules.need(module + ".weight.nested_absmax", {DType::kF32}));
  HEADRACE_RETURN_IF_ERROR(expect_shape(*table_entry, {256}));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t block, state.integer("nested_blocksize", 1, 1 << 24));
  if (!state.has("nested_offset")) return malformed(state.place_of("nested_offset"), "missing");
  HEADRACE_ASSIGN_OR_RETURN(const double offset, state.number_or("nested_offset", 0));
  if (!(std::abs(offset) <= std::numeric_limits<float>::max())) {
    return malformed(state.place_of("nested_offset"), "{} is no float32", offset);
  }
  const uint64_t count = *num_elements(codes.shape), size = static_cast<uint64_t>(block);
  HEADRACE_RETURN_IF_ERROR(expect_shape(*scales_entry, {(count + size - 1) / size}));
  HEADRACE_ASSIGN_OR_RETURN(const std::vector<float> table, read_floats(*modules.file, *table_entry));
  HEADRACE_ASSIGN_OR_RETURN(const std::vector<float> scales, read_floats(*modules.file, *scales_entry));
  HEADRACE_ASSIGN_OR_RETURN(const auto stored, read_elements<uint8_t>(*modules.file, codes, 0, count));
  std::vector<float> out(count);
  for (size_t i = 0; i < out.size(); ++i) {
    const float product = table[stored[i]] * scales[i / size];
    out[i] = product + static_cast<float>(offset);
    if (!std::isfinite(out[i])) return malformed(quote_name(codes.name), "scale {} is not finite", i);
  }
  return out;
}

Result<HeldJson<nlohmann::json>> read_state(const QuantizedModules& modules, const TensorEntry& entry) {
  HEADRACE_ASSIGN_OR_RETURN(const auto text, read_elements<char>(*modules.file, entry, 0, *num_elements(entry.shape)));
  HEADRACE_ASSIGN_OR_RETURN(auto json, parse_json({text.data(), text.size()}, quote_name(entry.name)));
  if (!json.is_object()) return malformed(quote_name(entry.name), "is no JSON object");
  return json;
}

Status add_nf4(QuantizedModules& modules, const std::string& module) {
  HEADRACE_ASSIGN_OR_RETURN(const TensorEntry* codes, modules.need(module + ".weight", {DType::kU8}));
  HEADRACE_ASSIGN_OR_RETURN(const TensorEntry* absmax,
                            modules.need(module + ".weight.absmax", {DType::kF32, DType::kU8}));
  HEADRACE_ASSIGN_OR_RETURN(const TensorEntry* map, modules.need(module + ".weight.quant_map", {DType::kF32}));
  const std::string place = quote_name(codes->name), state_name = module + std::string(kState) + "nf4";
  HEADRACE_ASSIGN_OR_RETURN(const TensorEntry* state_entry, modules.need(state_name, {DType::kU8}));
  HEADRACE_ASSIGN_OR_RETURN(const auto json, read_state(modules, *state_entry));
  const ConfigReader state(json, quote_name(state_name));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t block, state.integer("blocksize", 1, 1 << 24));
  HEADRACE_ASSIGN_OR_RETURN(const std::vector<int64_t> shape, state.integers("shape"));
  if (shape.size() != 2 || shape[0] < 1 || shape[1] < 1 || shape[0] > INT32_MAX || shape[1] > INT32_MAX) {
    return malformed(state.place_of("shape"), "is no shape of a matrix");
  }
  const auto rows = static_cast<uint64_t>(shape[0]), cols = static_cast<uint64_t>(shape[1]);
  if (static_cast<uint64_t>(block) % kBlock != 0 || cols % kBlock != 0) {
    return unsupported(place, "{} columns with scales of {} elements are no whole blocks of {}", cols, block, kBlock);
  }
  if (*num_elements(codes->shape) * 2 != rows * cols) {
    return malformed(place, "shape [{}], expected codes of [{}, {}]", fmt::join(codes->shape, ", "), rows, cols);
  }
  HEADRACE_ASSIGN_OR_RETURN(const std::vector<float> values, read_floats(*modules.file, *map));
  if (!std::equal(values.begin(), values.end(), std::begin(kNf4Values), std::end(kNf4Values))) {
    return unsupported(quote_name(map->name), "are not the values of NF4");
  }
  BlockScales scales;
  scales.block_size = static_cast<uint64_t>(block);
  if (absmax->dtype == DType::kF32) {
    HEADRACE_ASSIGN_OR_RETURN(scales.values, read_floats(*modules.file, *absmax));
  } else {
    HEADRACE_ASSIGN_OR_RETURN(scales.values, read_nested(modules, module, *absmax, state));
  }
  if (scales.values.size() != (rows * cols + scales.block_size - 1) / scales.block_size) {
    return malformed(quote_name(absmax->name), "{} scales for {} elements", scales.values.size(), rows * cols);
  }
  modules.add(module, DType::kNF4_G64, {rows, cols},
              {".weight", ".weight.absmax", ".weight.quant_map", ".weight.nested_absmax", ".weight.nested_quant_map",
               ".weight.quant_state.bitsandbytes__nf4"},
              std::make_unique<Nf4Rows>(modules, *codes, cols, std::move(scales)));
  return {};
}

Status add_int8(QuantizedModules& modules, const std::string& module) {
  RowIntegers w;
  HEADRACE_ASSIGN_OR_RETURN(w.codes, modules.need(module + ".weight", {DType::kI8}));
  HEADRACE_ASSIGN_OR_RETURN(w.scales, modules.need(module + ".SCB", {DType::kF32}));
  if (w.codes->shape.size() != 2) return malformed(quote_name(w.codes->name), "is no matrix");
  if (const TensorEntry* format = modules.find(module + ".weight_format"); format != nullptr) {
    HEADRACE_ASSIGN_OR_RETURN(const std::vector<float> number, read_floats(*modules.file, *format));
    if (number.size() != 1 || number[0] != 0.0f) {
      return unsupported(quote_name(format->name), "its codes are not in rows");
    }
  }
  w.rows = w.codes->shape[0];
  w.cols = w.codes->shape[1];
  w.scale_factor = 1.0f / 127.0f;
  if (w.rows == 0 || w.cols == 0) return malformed(quote_name(w.codes->name), "is empty");
  HEADRACE_ASSIGN_OR_RETURN(IntegerGroups division, divide_columns(quote_name(w.codes->name), w.bits, w.cols, w.cols));
  return add_rows(modules, module, w, std::move(division), {".weight", ".SCB", ".weight_format"});
}

}  // namespace

Status read_bitsandbytes(const ConfigReader& config, QuantizedModules& modules) {
  HEADRACE_RETURN_IF_ERROR(config.check_known(kKeys));
  HEADRACE_RETURN_IF_ERROR(config.only("llm_int8_has_fp16_weight", false));
  HEADRACE_RETURN_IF_ERROR(config.only("bnb_4bit_quant_storage", "uint8"));
  for (const std::string& module : modules.with(std::string(kState) + "fp4")) {
    return unsupported(quote_name(module + ".weight"), "FP4 of bitsandbytes is not read (NF4 and int8 are)");
  }
  for (const std::string& module : modules.with(std::string(kState) + "nf4")) {
    HEADRACE_RETURN_IF_ERROR(add_nf4(modules, module));
  }
  for (const std::string& module : modules.with(".SCB")) HEADRACE_RETURN_IF_ERROR(add_int8(modules, module));
  return check_not_converted(config, "llm_int8_skip_modules", modules);
}

}  // namespace headrace
