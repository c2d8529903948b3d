// FP8 with scales of blocks (DeepSeek-V3's README_WEIGHTS.md: weight_scale_inv is what codes are multiplied by), or of
// whole tensors. Key names: transformers 5.24, FineGrainedFP8Config.
#include "formats/text_quote.h"
#include "model/quantization/float_rows.h"
#include "model/quantization/methods.h"

namespace headrace {
namespace {

constexpr std::string_view kKeys[] = {
    "quant_method", "fmt", "weight_block_size", "modules_to_not_convert", "ignored_layers",
    // Of activations, of how scales were rounded, and of how the weights are run elsewhere.
    "activation_scheme", "scale_fmt", "dequantize", "kv_cache_scheme"};
constexpr std::string_view kActivationParts[] = {".input_scale", ".activation_scale", ".k_scale", ".v_scale"};

}  // namespace

Status read_fp8(const ConfigReader& config, QuantizedModules& modules) {
  HEADRACE_RETURN_IF_ERROR(config.check_known(kKeys));
  HEADRACE_ASSIGN_OR_RETURN(const std::string format, config.text_or("fmt", "e4m3"));
  if (format != "e4m3" && format != "float8_e4m3fn") {
    return unsupported(config.place_of("fmt"), "'{}' is not read (e4m3 is)", quote_name(format));
  }
  HEADRACE_ASSIGN_OR_RETURN(const std::vector<int64_t> block, config.integers("weight_block_size"));
  if (!block.empty() && (block.size() != 2 || block[0] < 1 || block[1] < 1)) {
    return malformed(config.place_of("weight_block_size"), "is no pair of sizes");
  }
  const uint64_t rows = block.empty() ? 0 : static_cast<uint64_t>(block[0]);
  const uint64_t cols = block.empty() ? 0 : static_cast<uint64_t>(block[1]);
  for (const std::string& module : modules.with(".weight")) {
    const TensorEntry& weight = *modules.find(module + ".weight");
    if (weight.dtype != DType::kF8_E4M3) continue;
    const bool inverse = modules.find(module + ".weight_scale") == nullptr;
    HEADRACE_ASSIGN_OR_RETURN(const TensorEntry* scales,
                              modules.need(module + (inverse ? ".weight_scale_inv" : ".weight_scale"), kScaleTypes));
    HEADRACE_RETURN_IF_ERROR(add_fp8(modules, module, weight, *scales, rows, cols,
                                     {".weight", inverse ? ".weight_scale_inv" : ".weight_scale"}));
  }
  modules.hide(kActivationParts);
  HEADRACE_RETURN_IF_ERROR(check_not_converted(config, "ignored_layers", modules));
  return check_not_converted(config, "modules_to_not_convert", modules);
}

}  // namespace headrace
