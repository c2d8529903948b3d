// GPTQ, formats "gptq" and "gptq_v2". Source: auto-gptq 0.7.1, nn_modules/qlinear/qlinear_cuda_old.py.
#include <algorithm>

#include "formats/text_quote.h"
#include "model/quantization/methods.h"
#include "model/quantization/transposed_integers.h"

namespace headrace {
namespace {

constexpr std::string_view kKeys[] = {
    "quant_method", "bits", "group_size", "sym", "desc_act", "checkpoint_format", "format", "pack_dtype",
    "is_marlin_format",
    // Read from the tensors: modules left out, or with other bits and groups.
    "dynamic", "lm_head", "modules_in_block_to_quantize", "modules_to_not_convert",
    // Of how the weights were found.
    "static_groups", "true_sequential", "damp_percent", "damp_auto_increment", "mse", "act_group_aware", "hyb_act",
    "dataset", "tokenizer", "batch_size", "block_name_to_quantize", "cache_block_outputs",
    "module_name_preceding_first_block", "pad_token_id", "model_seqlen", "meta", "model_name_or_path",
    "model_file_base_name",
    // Of how they are run elsewhere.
    "use_exllama", "disable_exllama", "exllama_config", "use_cuda_fp16", "max_input_length", "backend", "device"};

struct GptqConfig {
  bool second = false;  // zero points as they are, not less one
  bool symmetric = true;
  bool act_order = false;
  int64_t group_size = 0;
};

Result<GptqConfig> read_config(const ConfigReader& config) {
  HEADRACE_RETURN_IF_ERROR(config.check_known(kKeys));
  HEADRACE_RETURN_IF_ERROR(config.only("is_marlin_format", false));
  HEADRACE_RETURN_IF_ERROR(config.only("pack_dtype", "int32"));
  GptqConfig out;
  HEADRACE_ASSIGN_OR_RETURN(const std::string newer, config.text_or("format", "gptq"));
  HEADRACE_ASSIGN_OR_RETURN(const std::string format, config.text_or("checkpoint_format", newer));
  if (format != "gptq" && format != "gptq_v2") {
    return unsupported(config.place_of(config.has("checkpoint_format") ? "checkpoint_format" : "format"),
                       "'{}' is not read (gptq and gptq_v2 are)", quote_name(format));
  }
  out.second = format == "gptq_v2";
  HEADRACE_ASSIGN_OR_RETURN(out.symmetric, config.boolean_or("sym", true));
  HEADRACE_ASSIGN_OR_RETURN(out.act_order, config.boolean_or("desc_act", false));
  HEADRACE_ASSIGN_OR_RETURN(out.group_size, config.integer("group_size", -1, 1 << 24));
  if (out.group_size == 0) return malformed(config.place_of("group_size"), "0 is no size");
  return out;
}

// The group of each input: g_idx, or by the group size.
Result<IntegerGroups> read_groups(const QuantizedModules& modules, const std::string& module, const GptqConfig& config,
                                  const TransposedIntegers& w) {
  const std::string place = quote_name(w.qweight->name);
  const std::string name = module + ".g_idx";
  if (modules.find(name) == nullptr) {
    if (config.act_order) return not_found(quote_name(name), "the file has no such tensor, which desc_act needs");
    const uint64_t size = config.group_size < 0 ? w.inputs : static_cast<uint64_t>(config.group_size);
    if ((w.inputs + size - 1) / size != w.num_groups) {
      return malformed(quote_name(w.scales->name), "{} groups, but {} inputs have groups of {}", w.num_groups, w.inputs,
                       size);
    }
    return divide_columns(place, w.bits, w.inputs, size);
  }
  HEADRACE_ASSIGN_OR_RETURN(const auto groups, read_group_index(modules, name, w.inputs, w.num_groups));
  return divide_columns(place, w.bits, groups);
}

Status add_module(QuantizedModules& modules, const std::string& module, const GptqConfig& config) {
  TransposedIntegers w;
  HEADRACE_ASSIGN_OR_RETURN(w.qweight, modules.need(module + ".qweight", {DType::kI32}));
  HEADRACE_ASSIGN_OR_RETURN(w.qzeros, modules.need(module + ".qzeros", {DType::kI32}));
  HEADRACE_ASSIGN_OR_RETURN(w.scales, modules.need(module + ".scales", kScaleTypes));
  const std::string place = quote_name(w.qweight->name);
  if (w.qweight->shape.size() != 2 || w.scales->shape.size() != 2 || w.qzeros->shape.size() != 2) {
    return malformed(place, "it, its scales and its zero points are not all matrices");
  }
  w.num_groups = w.scales->shape[0];
  w.outputs = w.scales->shape[1];
  HEADRACE_RETURN_IF_ERROR(expect_shape(*w.qweight, {w.qweight->shape[0], w.outputs}));
  if (w.outputs == 0 || w.qweight->shape[0] == 0) return malformed(place, "is empty");
  if (w.qzeros->shape[1] * 8 == w.outputs) {
    w.bits = 4;
  } else if (w.qzeros->shape[1] * 4 == w.outputs) {
    w.bits = 8;
  } else {
    return unsupported(place, "{} words of zero points for {} outputs are of neither 4 nor 8 bits", w.qzeros->shape[1],
                       w.outputs);
  }
  w.inputs = w.qweight->shape[0] * 32 / static_cast<uint64_t>(w.bits);
  HEADRACE_RETURN_IF_ERROR(expect_shape(*w.qzeros, {w.num_groups, w.outputs * static_cast<uint64_t>(w.bits) / 32}));
  HEADRACE_ASSIGN_OR_RETURN(IntegerGroups groups, read_groups(modules, module, config, w));
  const int32_t half = 1 << (w.bits - 1), mask = 2 * half - 1;
  if (config.symmetric) {
    // Writers disagree on what the format's name says of the stored zero points; a symmetric one can only mean this.
    w.zero_of = [half](int32_t stored) { return stored == half || stored == half - 1 ? half : -1; };
  } else {
    w.zero_of = [mask, add = config.second ? 0 : 1](int32_t stored) { return (stored + add) & mask; };
  }
  add_transposed(modules, module, std::move(w), std::move(groups));
  return {};
}

// Older writers gave every module a bias, of zeros where the model has none.
Status hide_zero_bias(QuantizedModules& modules, const std::string& module) {
  const TensorEntry* bias = modules.find(module + ".bias");
  if (bias == nullptr) return {};
  HEADRACE_ASSIGN_OR_RETURN(const std::vector<float> values, read_floats(*modules.file, *bias));
  if (std::all_of(values.begin(), values.end(), [](float value) { return value == 0.0f; })) {
    modules.hidden.push_back(bias->name);
  }
  return {};
}

}  // namespace

Status read_gptq(const ConfigReader& config, QuantizedModules& modules) {
  HEADRACE_ASSIGN_OR_RETURN(const GptqConfig read, read_config(config));
  for (const std::string& module : modules.with(".qweight")) {
    HEADRACE_RETURN_IF_ERROR(add_module(modules, module, read));
    HEADRACE_RETURN_IF_ERROR(hide_zero_bias(modules, module));
  }
  return check_not_converted(config, "modules_to_not_convert", modules);
}

}  // namespace headrace
