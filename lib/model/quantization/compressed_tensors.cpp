// compressed-tensors: packed and plain integers, FP8, NVFP4 and MXFP4. Source: PyPI's compressed-tensors 0.20.1,
// compressors/*/base.py and quantization/lifecycle/forward.py.

#include <nlohmann/json.hpp>

#include "base/format_full.h"
#include "formats/text_quote.h"
#include "model/quantization/float_rows.h"
#include "model/quantization/methods.h"
#include "model/quantization/row_integers.h"

namespace headrace {
namespace {

constexpr std::string_view kKeys[] = {
    "quant_method", "config_groups", "format", "ignore", "sparsity_config", "transform_config",
    // Read from the tensors, or of how activations and the cache are rounded elsewhere.
    "kv_cache_scheme", "quantization_status", "global_compression_ratio", "version", "run_compressed"};
constexpr std::string_view kFormats[] = {"pack-quantized",  "int-quantized",        "float-quantized",
                                         "naive-quantized", "nvfp4-pack-quantized", "mxfp4-pack-quantized",
                                         "mixed-precision"};
constexpr std::string_view kGroupKeys[] = {"weights", "targets", "format", "input_activations", "output_activations"};
constexpr std::string_view kWeightKeys[] = {"num_bits", "type", "symmetric", "strategy", "group_size",
                                            "block_structure", "dynamic",
                                            // Of the tensors' types, and of how the weights were found.
                                            "scale_dtype", "zp_dtype", "observer", "observer_kwargs", "actorder"};
// What says how activations or the cache are rounded.
constexpr std::string_view kActivationParts[] = {
    ".input_scale", ".input_zero_point", ".input_global_scale", ".output_scale", ".output_zero_point", ".k_scale",
    ".v_scale",     ".q_scale",          ".k_zero_point",       ".v_zero_point"};

struct Schemes {
  bool all_asymmetric = true;
  uint64_t block_rows = 0, block_cols = 0;
};

Status check_format(const ConfigReader& config) {
  HEADRACE_ASSIGN_OR_RETURN(const std::string format, config.text_or("format", "pack-quantized"));
  for (const std::string_view known : kFormats) {
    if (format == known) return {};
  }
  return unsupported(config.place_of("format"), "'{}' is not read (known: {})", quote_name(format),
                     fmt::join(kFormats, ", "));
}

Status read_group(const ConfigReader& group, Schemes& out) {
  HEADRACE_RETURN_IF_ERROR(group.check_known(kGroupKeys));
  HEADRACE_RETURN_IF_ERROR(check_format(group));
  if (!group.has("weights")) return {};
  HEADRACE_ASSIGN_OR_RETURN(const ConfigReader weights, group.object("weights"));
  HEADRACE_RETURN_IF_ERROR(weights.check_known(kWeightKeys));
  HEADRACE_RETURN_IF_ERROR(weights.only("dynamic", false));
  HEADRACE_ASSIGN_OR_RETURN(const bool symmetric, weights.boolean_or("symmetric", true));
  out.all_asymmetric &= !symmetric;
  HEADRACE_ASSIGN_OR_RETURN(const std::vector<int64_t> block, weights.integers("block_structure"));
  if (block.empty()) return {};
  if (block.size() != 2 || block[0] < 1 || block[1] < 1) {
    return malformed(weights.place_of("block_structure"), "is no pair of sizes");
  }
  const auto rows = static_cast<uint64_t>(block[0]), cols = static_cast<uint64_t>(block[1]);
  if (out.block_rows != 0 && (out.block_rows != rows || out.block_cols != cols)) {
    return unsupported(weights.place_of("block_structure"), "two groups have different blocks");
  }
  out.block_rows = rows;
  out.block_cols = cols;
  return {};
}

Result<Schemes> read_config(const ConfigReader& config) {
  HEADRACE_RETURN_IF_ERROR(config.check_known(kKeys));
  HEADRACE_RETURN_IF_ERROR(check_format(config));
  HEADRACE_ASSIGN_OR_RETURN(const ConfigReader sparsity, config.object("sparsity_config"));
  HEADRACE_RETURN_IF_ERROR(sparsity.only("format", "dense"));
  // Rotations of the inputs.
  HEADRACE_RETURN_IF_ERROR(config.only("transform_config", nlohmann::json::object()));
  Schemes out;
  const nlohmann::json* groups = config.find("config_groups");
  if (groups == nullptr || !groups->is_object()) return malformed(config.place_of("config_groups"), "is no object");
  for (const auto& [name, value] : groups->items()) {
    const std::string place = fmt::format("{}/{}", config.place_of("config_groups"), quote_name(name));
    if (!value.is_object()) return malformed(place, "is no object");
    HEADRACE_RETURN_IF_ERROR(read_group(ConfigReader(value, place), out));
  }
  return out;
}

// Scales [rows, groups], [rows] or one.
uint64_t groups_of(const TensorEntry& scales) { return scales.shape.size() == 2 ? scales.shape[1] : 1; }

Result<IntegerGroups> divide(const QuantizedModules& modules, const std::string& module, const RowIntegers& w) {
  const std::string place = quote_name(w.codes->name), name = module + ".weight_g_idx";
  if (modules.find(name) == nullptr) {
    const uint64_t size = w.groups == 0 ? 0 : w.cols / w.groups;
    if (size == 0 || w.cols % w.groups != 0) {
      return malformed(quote_name(w.scales->name), "{} columns do not divide into {} groups", w.cols, w.groups);
    }
    return divide_columns(place, w.bits, w.cols, size);
  }
  HEADRACE_ASSIGN_OR_RETURN(const auto groups, read_group_index(modules, name, w.cols, w.groups));
  return divide_columns(place, w.bits, groups);
}

Status add_integers(QuantizedModules& modules, const std::string& module, RowIntegers w, const Schemes& schemes) {
  const std::string zeros = module + ".weight_zero_point";
  HEADRACE_ASSIGN_OR_RETURN(w.scales, modules.need(module + ".weight_scale", kScaleTypes));
  w.groups = groups_of(*w.scales);
  if (modules.find(zeros) != nullptr) {
    HEADRACE_ASSIGN_OR_RETURN(w.zeros, modules.need(zeros, {DType::kI8, DType::kI32}));
    w.packed_zeros = w.zeros->dtype == DType::kI32;
  } else if (schemes.all_asymmetric) {
    return not_found(quote_name(zeros), "the file has no such tensor, which asymmetric weights need");
  }
  HEADRACE_ASSIGN_OR_RETURN(IntegerGroups division, divide(modules, module, w));
  return add_rows(
      modules, module, w, std::move(division),
      {".weight_packed", ".weight_scale", ".weight_zero_point", ".weight_shape", ".weight_g_idx", ".weight"});
}

Status add_packed(QuantizedModules& modules, const std::string& module, const Schemes& schemes) {
  HEADRACE_ASSIGN_OR_RETURN(const TensorEntry* codes,
                            modules.need(module + ".weight_packed", {DType::kI32, DType::kU8}));
  const std::string place = quote_name(codes->name);
  if (codes->dtype == DType::kU8) {
    HEADRACE_ASSIGN_OR_RETURN(const TensorEntry* scales,
                              modules.need(module + ".weight_scale", {DType::kF8_E4M3, DType::kU8}));
    if (scales->dtype == DType::kU8)
      return add_mxfp4(modules, module, *codes, *scales, {".weight_packed", ".weight_scale"});
    HEADRACE_ASSIGN_OR_RETURN(const TensorEntry* global, modules.need(module + ".weight_global_scale", {DType::kF32}));
    return add_nvfp4(modules, module, *codes, *scales, *global, /*divides=*/true,
                     {".weight_packed", ".weight_scale", ".weight_global_scale"});
  }
  RowIntegers w;
  w.packed = true;
  w.codes = codes;
  HEADRACE_ASSIGN_OR_RETURN(const TensorEntry* shape,
                            modules.need(module + ".weight_shape", {DType::kI64, DType::kI32}));
  HEADRACE_RETURN_IF_ERROR(expect_shape(*shape, {2}));
  HEADRACE_ASSIGN_OR_RETURN(const std::vector<float> sizes, read_floats(*modules.file, *shape));
  // Exact: a size above 2^24 is none of a weight's.
  if (!(sizes[0] >= 1 && sizes[1] >= 1 && sizes[0] < 0x1p24f && sizes[1] < 0x1p24f)) {
    return malformed(quote_name(shape->name), "[{}, {}] is no shape", sizes[0], sizes[1]);
  }
  w.rows = static_cast<uint64_t>(sizes[0]);
  w.cols = static_cast<uint64_t>(sizes[1]);
  const uint64_t words = codes->shape.size() == 2 ? codes->shape[1] : 0;
  if (words * 8 == w.cols) {
    w.bits = 4;
  } else if (words * 4 != w.cols) {
    return unsupported(place, "{} words for {} columns are of neither 4 nor 8 bits", words, w.cols);
  }
  return add_integers(modules, module, w, schemes);
}

}  // namespace

Status read_compressed_tensors(const ConfigReader& config, QuantizedModules& modules) {
  HEADRACE_ASSIGN_OR_RETURN(const Schemes schemes, read_config(config));
  for (const std::string& module : modules.with(".weight_packed")) {
    HEADRACE_RETURN_IF_ERROR(add_packed(modules, module, schemes));
  }
  for (const std::string& module : modules.with(".weight")) {
    const TensorEntry& weight = *modules.find(module + ".weight");
    if (weight.dtype == DType::kI8) {
      RowIntegers w;
      w.codes = &weight;
      if (weight.shape.size() != 2) return malformed(quote_name(weight.name), "is no matrix");
      w.rows = weight.shape[0];
      w.cols = weight.shape[1];
      HEADRACE_RETURN_IF_ERROR(add_integers(modules, module, w, schemes));
    } else if (weight.dtype == DType::kF8_E4M3) {
      HEADRACE_ASSIGN_OR_RETURN(const TensorEntry* scales, modules.need(module + ".weight_scale", kScaleTypes));
      HEADRACE_RETURN_IF_ERROR(add_fp8(modules, module, weight, *scales, schemes.block_rows, schemes.block_cols,
                                       {".weight", ".weight_scale"}));
    }
  }
  modules.hide(kActivationParts);
  return check_not_converted(config, "ignore", modules);
}

}  // namespace headrace
