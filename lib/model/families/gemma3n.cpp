// Gemma 3n, text: four residual streams with alternating updates, learned augmented residuals, inputs of each layer's own,
// gates that are mostly zero, and layers that see the keys and values of others. Reference: transformers models/gemma3n.
// Norm weights are stored whole. In training alone coefficients of the streams are clipped (altup_coef_clip).
#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "model/families/config_keys.h"
#include "model/families/gemma_layers.h"

namespace headrace {

namespace {

constexpr std::string_view kOwnKeys[] = {
    "activation_sparsity_pattern",
    "altup_active_idx",
    "altup_correct_scale",
    "altup_num_inputs",
    "laurel_rank",
    "rope_local_base_freq",
    // Of training: how fast and how far coefficients change.
    "altup_coef_clip",
    "altup_lr_multiplier",
    // Of Gemma 3; scores are not scaled here.
    "query_pre_attn_scalar",
};
constexpr std::string_view kWrapperKeys[] = {
    "text_config",
    // Encoders of images and audio, which are not read, and their tokens.
    "vision_config",
    "audio_config",
    "audio_soft_tokens_per_image",
    "vision_soft_tokens_per_image",
    "boi_token_id",
    "eoi_token_id",
    "image_token_id",
    "boa_token_id",
    "eoa_token_id",
    "audio_token_id",
};

// The value below which a share of a normal distribution lies, by Newton's method, which approaches from one side.
double normal_quantile(double share) {
  double x = 0.0;
  for (int i = 0; i < 200; ++i) {
    const double below = 0.5 * std::erfc(-x / std::numbers::sqrt2);
    const double density = std::exp(-0.5 * x * x) / std::sqrt(2.0 * std::numbers::pi);
    const double step = (share - below) / density;
    x += step;
    if (std::fabs(step) < 1e-12) break;
  }
  return x;
}

// A share of each layer's gates that is to be zero; without the key 0.95 in the first ten of more than ten layers.
Status read_sparsity(const ConfigReader& config, ModelSpec& spec) {
  const char* const key = "activation_sparsity_pattern";
  const size_t num_layers = spec.layers.size();
  HEADRACE_ASSIGN_OR_RETURN(std::vector<double> shares, config.numbers(key));
  if (!config.has(key)) {
    for (size_t i = 0; i < num_layers; ++i) shares.push_back(num_layers > 10 && i < 10 ? 0.95 : 0.0);
  }
  if (shares.size() != num_layers) {
    return malformed(config.place_of(key), "{} entries for {} layers", shares.size(), num_layers);
  }
  for (size_t i = 0; i < num_layers; ++i) {
    if (!(shares[i] >= 0) || !(shares[i] < 0.9999)) {
      return malformed(config.place_of(key), "{} is no share that leaves something", shares[i]);
    }
    if (shares[i] > 0) dense(spec.layers[i]).gate_cutoff = static_cast<float>(normal_quantile(shares[i]));
  }
  return {};
}

void set_streams(ModelSpec& spec, int64_t count, int64_t active, bool output_scale, int64_t laurel_rank) {
  AltUp altup;
  altup.num_streams = static_cast<int32_t>(count);
  altup.active = static_cast<int32_t>(active);
  altup.output_scale = output_scale;
  spec.streams = altup;
  for (LayerSpec& layer : spec.layers) layer.laurel_rank = static_cast<int32_t>(laurel_rank);
}

// rope_parameters with a set for each kind of layer, or rope_theta, rope_scaling and rope_local_base_freq.
Result<GemmaRotations> read_rotations(const ConfigReader& config, int64_t max_positions) {
  GemmaRotations out;
  HEADRACE_ASSIGN_OR_RETURN(out.sliding.theta, config.positive_or("rope_local_base_freq", 1e4));
  HEADRACE_ASSIGN_OR_RETURN(const ConfigReader nested, config.object("rope_parameters"));
  if (!nested.has("full_attention") && !nested.has("sliding_attention")) {
    HEADRACE_RETURN_IF_ERROR(config.only("rope_parameters", nullptr));
    HEADRACE_ASSIGN_OR_RETURN(out.full, read_rope(config, 1e6, max_positions));
    return out;
  }
  HEADRACE_RETURN_IF_ERROR(
      nested.check_known(std::to_array<std::string_view>({"full_attention", "sliding_attention"})));
  HEADRACE_ASSIGN_OR_RETURN(const ConfigReader full, nested.object("full_attention"));
  HEADRACE_ASSIGN_OR_RETURN(const ConfigReader sliding, nested.object("sliding_attention"));
  HEADRACE_ASSIGN_OR_RETURN(out.full, read_rope_parameters(full, 1e6, max_positions));
  HEADRACE_ASSIGN_OR_RETURN(out.sliding, read_rope_parameters(sliding, out.sliding.theta, max_positions));
  return out;
}

Result<ModelSpec> gemma3n_text_from_config(const ConfigReader& config, const TensorFile&) {
  std::vector<std::string_view> keys(std::begin(kOwnKeys), std::end(kOwnKeys));
  keys.insert(keys.end(), std::begin(kGemmaLayerKeys), std::end(kGemmaLayerKeys));
  HEADRACE_RETURN_IF_ERROR(check_config_keys(config, keys));
  DenseDefaults defaults{262400, 2048, 16384, 35, 8, 2, 256, 32768, 1e-6, true};
  defaults.own_keys = {"altup_num_inputs"};
  defaults.by_layer = true;
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_dense_config(config, defaults));
  spec.architecture = "gemma3n";
  HEADRACE_ASSIGN_OR_RETURN(const std::vector<bool> windowed, read_gemma_layers(config, spec, 5));
  if (!config.contains_null("final_logit_softcapping") && !config.has("final_logit_softcapping")) {
    spec.head.logit_softcap = 30.0f;
  }
  HEADRACE_ASSIGN_OR_RETURN(const GemmaRotations rotations, read_rotations(config, spec.max_position_embeddings));
  HEADRACE_RETURN_IF_ERROR(set_rotations(spec, windowed, rotations, config.place_of("rope_parameters")));
  HEADRACE_RETURN_IF_ERROR(read_kv_sharing(config, spec, windowed, 15));
  HEADRACE_RETURN_IF_ERROR(read_sparsity(config, spec));
  HEADRACE_RETURN_IF_ERROR(read_per_layer_inputs(config, spec));
  if (!spec.per_layer_inputs) return unsupported(config.place_of("hidden_size_per_layer_input"), "0");
  HEADRACE_ASSIGN_OR_RETURN(const int64_t count, config.integer_or("altup_num_inputs", 1, 64, 4));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t active, config.integer_or("altup_active_idx", 0, count - 1, 0));
  HEADRACE_ASSIGN_OR_RETURN(const bool output_scale, config.boolean_or("altup_correct_scale", true));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t rank, config.integer_or("laurel_rank", 1, 1 << 18, 64));
  set_streams(spec, count, active, output_scale, rank);
  return spec;
}

Result<ModelSpec> gemma3n_from_config(const ConfigReader& config, const TensorFile& weights) {
  return read_wrapped_text(config, kWrapperKeys, weights, gemma3n_text_from_config);
}

constexpr std::string_view kGgufKeys[] = {
    "activation_sparsity_scale",        "altup.active_idx", "altup.num_inputs", "attention.shared_kv_layers",
    "embedding_length_per_layer_input",
};

Result<ModelSpec> gemma3n_from_gguf(const GgufReader& gguf) {
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_dense_gguf(gguf, {.more_keys = kGgufKeys, .by_layer = true}));
  spec.architecture = "gemma3n";
  HEADRACE_ASSIGN_OR_RETURN(const std::vector<bool> windowed, read_gemma_gguf_layers(gguf, spec, 5));
  const std::string cutoff_key = gguf.key("activation_sparsity_scale");
  HEADRACE_ASSIGN_OR_RETURN(const std::vector<float> cutoffs, gguf.file().get_f32_array(cutoff_key));
  if (cutoffs.size() != spec.layers.size()) {
    return malformed(cutoff_key, "{} entries for {} layers", cutoffs.size(), spec.layers.size());
  }
  for (size_t i = 0; i < cutoffs.size(); ++i) {  // minus infinity: nothing is cut
    if (cutoffs[i] == -INFINITY) continue;
    if (!std::isfinite(cutoffs[i])) return malformed(cutoff_key, "entry {} is not finite", i);
    dense(spec.layers[i]).gate_cutoff = cutoffs[i];
  }
  HEADRACE_ASSIGN_OR_RETURN(const int64_t count, gguf.integer("altup.num_inputs", 1, 64));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t active, gguf.integer("altup.active_idx", 0, count - 1));
  const TensorEntry* laurel = gguf.file().find("blk.0.laurel_l.weight");
  if (laurel == nullptr) return not_found("blk.0.laurel_l.weight", "the file has no such tensor");
  const bool scaled = gguf.file().find("blk.0.altup_correct_scale.weight") != nullptr;
  const uint64_t rank = laurel->shape.empty() ? 0 : std::min<uint64_t>(laurel->shape[0], 1 << 18);
  set_streams(spec, count, active, scaled, static_cast<int64_t>(rank));
  return spec;
}

}  // namespace

const Family kGemma3nTextFamily = {"gemma3n",         "Gemma3nForCausalLM",     "gemma3n_text",
                                   "gemma3n",         gemma3n_text_from_config, gemma3n_from_gguf,
                                   gemma_layer_names, gemma_layer_gguf_names};
const Family kGemma3nFamily = {"gemma3n", "Gemma3nForConditionalGeneration", "gemma3n", "", gemma3n_from_config,
                               nullptr,   wrapped_gemma_layer_names,         nullptr};

}  // namespace headrace
