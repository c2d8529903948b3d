// The quantization methods of checkpoints: each finds its modules and adds their weights.
#pragma once

#include "model/config_reader.h"
#include "model/quantization/module_parts.h"

namespace headrace {

// config: the quantization_config.
Status read_gptq(const ConfigReader& config, QuantizedModules& modules);
Status read_awq(const ConfigReader& config, QuantizedModules& modules);
Status read_compressed_tensors(const ConfigReader& config, QuantizedModules& modules);
Status read_fp8(const ConfigReader& config, QuantizedModules& modules);
Status read_modelopt(const ConfigReader& config, QuantizedModules& modules);
Status read_mxfp4(const ConfigReader& config, QuantizedModules& modules);
Status read_bitsandbytes(const ConfigReader& config, QuantizedModules& modules);

// kMalformed for a quantized weight of a module that the list under `key` names.
Status check_not_converted(const ConfigReader& config, std::string_view key, const QuantizedModules& modules);

}  // namespace headrace
