// AWQ, version "gemm": four bits with zero points. Source: autoawq 0.2.9, awq/utils/packing_utils.py.
#include "formats/text_quote.h"
#include "model/quantization/methods.h"
#include "model/quantization/transposed_integers.h"

namespace headrace {
namespace {

constexpr std::string_view kKeys[] = {"quant_method", "bits", "w_bit", "group_size", "q_group_size", "zero_point",
                                      "version", "format", "modules_to_not_convert",
                                      // Of how the weights are run elsewhere.
                                      "backend", "do_fuse", "fuse_max_seq_len", "modules_to_fuse", "exllama_config"};

Status add_module(QuantizedModules& modules, const std::string& module, int64_t group_size) {
  TransposedIntegers w;
  w.packing = TransposedIntegers::Packing::kSwitchOutputs;
  HEADRACE_ASSIGN_OR_RETURN(w.qweight, modules.need(module + ".qweight", {DType::kI32}));
  HEADRACE_ASSIGN_OR_RETURN(w.qzeros, modules.need(module + ".qzeros", {DType::kI32}));
  HEADRACE_ASSIGN_OR_RETURN(w.scales, modules.need(module + ".scales", kScaleTypes));
  const std::string place = quote_name(w.qweight->name);
  if (w.qweight->shape.size() != 2) return malformed(place, "is no matrix");
  w.inputs = w.qweight->shape[0];
  w.outputs = w.qweight->shape[1] * 8;
  if (w.inputs == 0 || w.outputs == 0) return malformed(place, "is empty");
  const uint64_t size = group_size < 0 ? w.inputs : static_cast<uint64_t>(group_size);
  w.num_groups = (w.inputs + size - 1) / size;
  HEADRACE_RETURN_IF_ERROR(expect_shape(*w.scales, {w.num_groups, w.outputs}));
  HEADRACE_RETURN_IF_ERROR(expect_shape(*w.qzeros, {w.num_groups, w.qweight->shape[1]}));
  HEADRACE_ASSIGN_OR_RETURN(IntegerGroups groups, divide_columns(place, w.bits, w.inputs, size));
  w.zero_of = [](int32_t stored) { return stored; };
  add_transposed(modules, module, std::move(w), std::move(groups));
  return {};
}

}  // namespace

Status read_awq(const ConfigReader& config, QuantizedModules& modules) {
  HEADRACE_RETURN_IF_ERROR(config.check_known(kKeys));
  HEADRACE_RETURN_IF_ERROR(config.only("zero_point", true));
  HEADRACE_RETURN_IF_ERROR(config.only("bits", 4));
  HEADRACE_RETURN_IF_ERROR(config.only("w_bit", 4));
  for (const char* key : {"version", "format"}) {
    HEADRACE_ASSIGN_OR_RETURN(std::string version, config.text_or(key, "gemm"));
    for (char& c : version) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
    if (version != "gemm") return unsupported(config.place_of(key), "'{}' is not read (gemm is)", quote_name(version));
  }
  const char* key = config.has("q_group_size") ? "q_group_size" : "group_size";
  HEADRACE_ASSIGN_OR_RETURN(const int64_t group_size, config.integer(key, -1, 1 << 24));
  if (group_size == 0) return malformed(config.place_of(key), "0 is no size");
  for (const std::string& module : modules.with(".qweight")) {
    HEADRACE_RETURN_IF_ERROR(add_module(modules, module, group_size));
  }
  return check_not_converted(config, "modules_to_not_convert", modules);
}

}  // namespace headrace
