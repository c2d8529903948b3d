// MXFP4 of gpt-oss: NAME_blocks [experts, rows, blocks, 16] and NAME_scales [experts, rows, blocks]. Source: transformers
// 5.24, integrations/mxfp4.py.
#include "model/quantization/float_rows.h"
#include "model/quantization/methods.h"

namespace headrace {
namespace {

constexpr std::string_view kKeys[] = {"quant_method", "modules_to_not_convert", "dequantize"};

}  // namespace

Status read_mxfp4(const ConfigReader& config, QuantizedModules& modules) {
  HEADRACE_RETURN_IF_ERROR(config.check_known(kKeys));
  for (const std::string& module : modules.with("_blocks")) {
    HEADRACE_ASSIGN_OR_RETURN(const TensorEntry* blocks, modules.need(module + "_blocks", {DType::kU8}));
    HEADRACE_ASSIGN_OR_RETURN(const TensorEntry* scales, modules.need(module + "_scales", {DType::kU8}));
    HEADRACE_RETURN_IF_ERROR(add_mxfp4(modules, module, *blocks, *scales, {"_blocks", "_scales"}));
  }
  return check_not_converted(config, "modules_to_not_convert", modules);
}

}  // namespace headrace
