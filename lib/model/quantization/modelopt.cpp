// ModelOpt (NVIDIA): NVFP4 whose scales have a factor, weight_scale_2, and FP8. Source: NVIDIA/Model-Optimizer,
// modelopt/torch/quantization/qtensor/nvfp4_tensor.py and export/quant_utils.py.
#include "formats/text_quote.h"
#include "model/quantization/float_rows.h"
#include "model/quantization/methods.h"

namespace headrace {
namespace {

constexpr std::string_view kKeys[] = {
    "quant_method", "quant_algo", "group_size", "ignore", "exclude_modules",
    // Read from the tensors, or of how activations and the cache are rounded elsewhere.
    "config_groups", "kv_cache_scheme", "kv_cache_quant_algo", "producer", "quantized_layers"};
constexpr std::string_view kActivationParts[] = {".input_scale", ".k_scale", ".v_scale", ".k_bias", ".v_bias"};

}  // namespace

Status read_modelopt(const ConfigReader& config, QuantizedModules& modules) {
  HEADRACE_RETURN_IF_ERROR(config.check_known(kKeys));
  HEADRACE_ASSIGN_OR_RETURN(const std::string algorithm, config.text_or("quant_algo", ""));
  if (algorithm != "NVFP4" && algorithm != "FP8" && algorithm != "MIXED_PRECISION") {
    return unsupported(config.place_of("quant_algo"), "'{}' is not read (NVFP4, FP8 and MIXED_PRECISION are)",
                       quote_name(algorithm));
  }
  HEADRACE_RETURN_IF_ERROR(config.only("group_size", 16));
  for (const std::string& module : modules.with(".weight_scale")) {
    HEADRACE_ASSIGN_OR_RETURN(const TensorEntry* weight,
                              modules.need(module + ".weight", {DType::kU8, DType::kF8_E4M3}));
    if (weight->dtype == DType::kF8_E4M3) {
      HEADRACE_ASSIGN_OR_RETURN(const TensorEntry* scales, modules.need(module + ".weight_scale", kScaleTypes));
      HEADRACE_RETURN_IF_ERROR(add_fp8(modules, module, *weight, *scales, 0, 0, {".weight", ".weight_scale"}));
      continue;
    }
    HEADRACE_ASSIGN_OR_RETURN(const TensorEntry* scales, modules.need(module + ".weight_scale", {DType::kF8_E4M3}));
    HEADRACE_ASSIGN_OR_RETURN(const TensorEntry* global, modules.need(module + ".weight_scale_2", {DType::kF32}));
    HEADRACE_RETURN_IF_ERROR(add_nvfp4(modules, module, *weight, *scales, *global, /*divides=*/false,
                                       {".weight", ".weight_scale", ".weight_scale_2"}));
  }
  modules.hide(kActivationParts);
  HEADRACE_RETURN_IF_ERROR(check_not_converted(config, "exclude_modules", modules));
  return check_not_converted(config, "ignore", modules);
}

}  // namespace headrace
