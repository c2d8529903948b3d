#include "model/families/gemma_layers.h"

#include <algorithm>
#include <cmath>

#include "model/families/config_keys.h"

namespace headrace {

namespace {

void set_layer(LayerSpec& layer) {
  gqa(layer).scale = 1.0f;
  gqa(layer).qk_norm = gqa(layer).value_norm = true;
  layer.post_attention_norm = layer.post_feed_forward_norm = true;
}

}  // namespace

Result<std::vector<bool>> read_gemma_layers(const ConfigReader& config, ModelSpec& spec, int64_t pattern) {
  spec.embedding_scale = std::sqrt(static_cast<float>(spec.hidden_size));
  HEADRACE_ASSIGN_OR_RETURN(const double softcap, config.number_or("final_logit_softcapping", 0));
  spec.head.logit_softcap = static_cast<float>(softcap);
  HEADRACE_RETURN_IF_ERROR(read_layer_choices(config, spec, {"hidden_activation", "gelu_pytorch_tanh"}));
  HEADRACE_RETURN_IF_ERROR(read_windows(config, spec, 512, pattern));
  std::vector<bool> windowed;
  for (LayerSpec& layer : spec.layers) {
    set_layer(layer);
    windowed.push_back(gqa(layer).window > 0);
  }
  return windowed;
}

Status set_kv_sharing(ModelSpec& spec, const std::vector<bool>& windowed, int64_t num_shared,
                      const std::string& place) {
  const size_t own = spec.layers.size() - static_cast<size_t>(num_shared);
  for (size_t i = own; i < spec.layers.size(); ++i) {
    size_t source = own;
    while (source > 0 && windowed[source - 1] != windowed[i]) --source;
    if (source == 0) return malformed(place, "no layer before them keeps keys and values of layer {}'s kind", i);
    if (gqa(spec.layers[source - 1]).head_dim != gqa(spec.layers[i]).head_dim) {
      return malformed(place, "layer {} has keys of {} dims, layer {} before it of {}", i, gqa(spec.layers[i]).head_dim,
                       source - 1, gqa(spec.layers[source - 1]).head_dim);
    }
    gqa(spec.layers[i]).kv_layer = static_cast<int32_t>(source) - 1;
  }
  return {};
}

Status read_kv_sharing(const ConfigReader& config, ModelSpec& spec, const std::vector<bool>& windowed,
                       int64_t fallback) {
  const auto most = static_cast<int64_t>(spec.layers.size()) - 1;
  HEADRACE_ASSIGN_OR_RETURN(const int64_t num_shared, config.integer_or("num_kv_shared_layers", 0, most, fallback));
  return set_kv_sharing(spec, windowed, num_shared, config.place_of("num_kv_shared_layers"));
}

// GGUF has the cap, the windows, and the rotation of windowed layers beside that of full ones, which is whole already.
Result<std::vector<bool>> read_gemma_gguf_layers(const GgufReader& gguf, ModelSpec& spec, int64_t pattern) {
  spec.embedding_scale = std::sqrt(static_cast<float>(spec.hidden_size));
  HEADRACE_ASSIGN_OR_RETURN(const double softcap, gguf.number_or("final_logit_softcapping", 0));
  if (softcap < 0) return malformed(gguf.key("final_logit_softcapping"), "{} is negative", softcap);
  spec.head.logit_softcap = static_cast<float>(softcap);
  for (const LayerSpec& layer : spec.layers) {
    const GqaAttention& attention = std::get<GqaAttention>(layer.attention);
    if (attention.num_kv_heads > 0 && attention.num_heads % attention.num_kv_heads == 0) continue;
    return malformed(gguf.key("attention.head_count_kv"), "{} heads are no multiple of {}", attention.num_heads,
                     attention.num_kv_heads);
  }
  HEADRACE_RETURN_IF_ERROR(read_gguf_windows(gguf, spec, pattern));
  HEADRACE_ASSIGN_OR_RETURN(const double theta, gguf.positive_or("rope.freq_base_swa", 1e4));
  std::vector<bool> windowed;
  for (LayerSpec& layer : spec.layers) {
    GqaAttention& attention = gqa(layer);
    set_layer(layer);
    dense(layer).activation = Activation::kGeluTanh;
    windowed.push_back(attention.window > 0);
    if (!windowed.back()) continue;
    auto rope = make_rope(theta, attention.head_dim, {});
    if (!rope.ok()) return rope.status().within(gguf.key("rope.freq_base_swa"));
    attention.rope = rope.take();
  }
  const auto most = static_cast<int64_t>(spec.layers.size()) - 1;
  HEADRACE_ASSIGN_OR_RETURN(const int64_t num_shared, gguf.integer_or("attention.shared_kv_layers", 0, most, 0));
  HEADRACE_RETURN_IF_ERROR(set_kv_sharing(spec, windowed, num_shared, gguf.key("attention.shared_kv_layers")));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t size, gguf.integer_or("embedding_length_per_layer_input", 0, 1 << 16, 0));
  if (size == 0) return windowed;
  const TensorEntry* table = gguf.file().find("per_layer_token_embd.weight");
  if (table == nullptr) return not_found("per_layer_token_embd.weight", "the file has no such tensor");
  const uint64_t rows = table->shape.empty() ? 0 : std::min<uint64_t>(table->shape[0], 1 << 24);
  spec.per_layer_inputs = make_per_layer_inputs(spec, size, static_cast<int64_t>(rows));
  return windowed;
}

PerLayerInputs make_per_layer_inputs(const ModelSpec& spec, int64_t size, int64_t vocab_size) {
  PerLayerInputs inputs;
  inputs.size = static_cast<int32_t>(size);
  inputs.vocab_size = static_cast<int32_t>(vocab_size);
  inputs.table_scale = std::sqrt(static_cast<float>(size));
  inputs.projection_scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(spec.hidden_size)));
  inputs.sum_scale = static_cast<float>(std::sqrt(0.5));
  return inputs;
}

Status read_per_layer_inputs(const ConfigReader& config, ModelSpec& spec) {
  HEADRACE_ASSIGN_OR_RETURN(const int64_t size, config.integer_or("hidden_size_per_layer_input", 0, 1 << 16, 256));
  HEADRACE_ASSIGN_OR_RETURN(const int64_t vocab, config.integer_or("vocab_size_per_layer_input", 1, 1 << 24, 262144));
  if (size == 0) return {};
  spec.per_layer_inputs = make_per_layer_inputs(spec, size, vocab);
  spec.per_layer_inputs->activation = dense(spec.layers[0]).activation;
  return {};
}

Status set_rotations(ModelSpec& spec, const std::vector<bool>& windowed, const GemmaRotations& rotations,
                     const std::string& place) {
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    const RopeConfig& rotation = windowed[i] ? rotations.sliding : rotations.full;
    auto rope = make_rope(rotation.theta, gqa(spec.layers[i]).head_dim, rotation.scaling);
    if (!rope.ok()) return rope.status().within(place);
    gqa(spec.layers[i]).rope = rope.take();
  }
  return {};
}

Result<ModelSpec> read_wrapped_text(const ConfigReader& config, std::span<const std::string_view> wrapper_keys,
                                    const TensorFile& weights,
                                    Result<ModelSpec> (*read_text)(const ConfigReader&, const TensorFile&)) {
  if (!config.has("text_config")) return malformed(config.place_of("text_config"), "missing");
  HEADRACE_RETURN_IF_ERROR(check_config_keys(config, wrapper_keys));
  HEADRACE_ASSIGN_OR_RETURN(const ConfigReader text, config.object("text_config"));
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_text(text, weights));
  HEADRACE_ASSIGN_OR_RETURN(spec.head.tied, config.boolean_or("tie_word_embeddings", spec.head.tied));
  HEADRACE_ASSIGN_OR_RETURN(const std::vector<int64_t> eos, config.integers("eos_token_id"));
  if (!eos.empty()) spec.eos_token_ids.clear();
  for (const int64_t id : eos) {
    if (id < 0 || id >= spec.vocab_size)
      return malformed(config.place_of("eos_token_id"), "{} is outside the vocabulary", id);
    spec.eos_token_ids.push_back(static_cast<int32_t>(id));
  }
  std::sort(spec.eos_token_ids.begin(), spec.eos_token_ids.end());
  return spec;
}

namespace {

constexpr NamePair kLayer[] = {
    {"q_proj", "self_attn.q_proj"},
    {"k_proj", "self_attn.k_proj"},
    {"v_proj", "self_attn.v_proj"},
    {"o_proj", "self_attn.o_proj"},
    {"q_norm", "self_attn.q_norm"},
    {"k_norm", "self_attn.k_norm"},
    {"gate_proj", "mlp.gate_proj"},
    {"up_proj", "mlp.up_proj"},
    {"down_proj", "mlp.down_proj"},
    {"attention_norm", "input_layernorm"},
    {"post_attention_norm", "post_attention_layernorm"},
    {"feed_forward_norm", "pre_feedforward_layernorm"},
    {"post_feed_forward_norm", "post_feedforward_layernorm"},
    {"per_layer_gate", "per_layer_input_gate"},
    {"per_layer_projection", "per_layer_projection"},
    {"per_layer_norm", "post_per_layer_input_norm"},
    {"output_scale.weight", "layer_scalar"},
    {"laurel.left", "laurel.linear_left"},
    {"laurel.right", "laurel.linear_right"},
    {"laurel.norm", "laurel.post_laurel_norm"},
    {"altup.router_norm", "altup.router_norm"},
    {"altup.router", "altup.modality_router"},
    {"altup.prediction", "altup.prediction_coefs"},
    {"altup.correction", "altup.correction_coefs"},
    {"altup.output_scale.weight", "altup.correct_output_scale"},
    {"router", "router.proj"},
    {"router.expert_scale", "router.per_expert_scale"},
    {"router_norm.weight", "router.scale"},
    {"experts.*.gate_proj.weight", "experts.gate_up_proj"},
    {"experts.*.up_proj.weight", "experts.gate_up_proj"},
    {"experts.*.down_proj.weight", "experts.down_proj"},
    {"dense_post_norm", "post_feedforward_layernorm_1"},
    {"experts_norm", "pre_feedforward_layernorm_2"},
    {"experts_post_norm", "post_feedforward_layernorm_2"},
};
constexpr NamePair kTop[] = {{"embed", "model.embed_tokens"},
                             {"final_norm", "model.norm"},
                             {"lm_head", "lm_head"},
                             {"per_layer_table", "model.embed_tokens_per_layer"},
                             {"per_layer_projection", "model.per_layer_model_projection"},
                             {"per_layer_projection_norm", "model.per_layer_projection_norm"},
                             {"stream_projections.*", "model.altup_projections.*"},
                             {"stream_unprojections.*", "model.altup_unembed_projections.*"}};
constexpr NamePair kWrappedTop[] = {{"embed", "model.language_model.embed_tokens"},
                                    {"final_norm", "model.language_model.norm"},
                                    {"lm_head", "lm_head"},
                                    {"per_layer_table", "model.language_model.embed_tokens_per_layer"},
                                    {"per_layer_projection", "model.language_model.per_layer_model_projection"},
                                    {"per_layer_projection_norm", "model.language_model.per_layer_projection_norm"},
                                    {"stream_projections.*", "model.language_model.altup_projections.*"},
                                    {"stream_unprojections.*", "model.language_model.altup_unembed_projections.*"}};
constexpr std::string_view kOtherTowers[] = {"model.vision_tower.", "model.embed_vision.", "model.audio_tower.",
                                             "model.embed_audio."};

constexpr NamePair kGgufLayer[] = {
    {"q_proj", "attn_q"},
    {"k_proj", "attn_k"},
    {"v_proj", "attn_v"},
    {"o_proj", "attn_output"},
    {"q_norm", "attn_q_norm"},
    {"k_norm", "attn_k_norm"},
    {"gate_proj", "ffn_gate"},
    {"up_proj", "ffn_up"},
    {"down_proj", "ffn_down"},
    {"attention_norm", "attn_norm"},
    {"feed_forward_norm", "ffn_norm"},
    {"post_attention_norm", "post_attention_norm"},
    {"post_feed_forward_norm", "post_ffw_norm"},
    {"per_layer_gate", "inp_gate"},
    {"per_layer_projection", "proj"},
    {"per_layer_norm", "post_norm"},
    {"output_scale", "layer_output_scale"},
    {"laurel.left", "laurel_l"},
    {"laurel.right", "laurel_r"},
    {"laurel.norm", "laurel_post_norm"},
    {"altup.router_norm", "altup_router_norm"},
    {"altup.router", "altup_router"},
    {"altup.prediction", "altup_predict_coef"},
    {"altup.correction", "altup_correct_coef"},
    {"altup.output_scale", "altup_correct_scale"},
    {"router", "ffn_gate_inp"},
    {"router.expert_scale", "ffn_down_exps.scale"},
    {"router_norm.weight", "ffn_gate_inp.scale"},
    {"experts.*.gate_proj", "ffn_gate_up_exps"},
    {"experts.*.up_proj", "ffn_gate_up_exps"},
    {"experts.*.gate_proj", "ffn_gate_exps"},
    {"experts.*.up_proj", "ffn_up_exps"},
    {"experts.*.down_proj", "ffn_down_exps"},
    {"dense_post_norm", "post_ffw_norm_1"},
    {"experts_norm", "pre_ffw_norm_2"},
    {"experts_post_norm", "post_ffw_norm_2"},
};
constexpr NamePair kGgufTop[] = {{"embed", "token_embd"},
                                 {"final_norm", "output_norm"},
                                 {"lm_head", "output"},
                                 {"per_layer_table", "per_layer_token_embd"},
                                 {"per_layer_projection", "per_layer_model_proj"},
                                 {"per_layer_projection_norm", "per_layer_proj_norm"},
                                 {"stream_projections.*", "altup_proj"},
                                 {"stream_unprojections.*", "altup_unembd_proj"}};
// Factors of the rotation, read into its frequencies, and the keys and values of layers that see those of others.
constexpr std::string_view kGgufSurplus[] = {"rope_freqs.weight", "attn_k.weight", "attn_v.weight",
                                             "attn_k_norm.weight"};

// The head's copy, tensors that published files have of layers that see the keys and values of others, and a scale that
// altup_correct_scale turns off.
constexpr std::string_view kSharedSurplus[] = {"lm_head.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight",
                                               "self_attn.k_norm.weight", "altup.correct_output_scale"};

}  // namespace

WeightNaming gemma_layer_names(const TensorFile&) { return {"model.layers.", kLayer, kTop, {}, kSharedSurplus}; }

WeightNaming wrapped_gemma_layer_names(const TensorFile&) {
  return {"model.language_model.layers.", kLayer, kWrappedTop, kOtherTowers, kSharedSurplus};
}

WeightNaming gemma_layer_gguf_names() { return {"blk.", kGgufLayer, kGgufTop, {}, kGgufSurplus}; }

}  // namespace headrace
