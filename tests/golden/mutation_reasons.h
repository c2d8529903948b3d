// Damage that is no error, each kind with its reason: keys that the computation does not read, values that are another model
// of the class as good as the first, tensors that nothing reads.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "golden/mutations.h"

namespace headrace::golden {

struct Reason {
  const char* why;
  std::vector<std::string_view> names;
  std::vector<std::string_view> models = {};  // of which alone it is true; none: of all
};

inline const char* find_reason(const std::vector<Reason>& reasons, std::string_view name, std::string_view model = {}) {
  for (const Reason& reason : reasons) {
    if (std::ranges::find(reason.names, name) == reason.names.end()) continue;
    if (reason.models.empty() || std::ranges::find(reason.models, model) != reason.models.end()) return reason.why;
  }
  return nullptr;
}

// Why a changed config may give the very same model.
inline const char* reason_to_ignore(const ConfigMutation& mutation, std::string_view model) {
  static const std::vector<Reason> kReasons = {
      {"of training alone",
       {"activation_dropout",
        "attention_dropout",
        "attention_probs_dropout_prob",
        "attn_pdrop",
        "apply_spec_augment",
        "classifier_dropout",
        "decoder_layerdrop",
        "dropout",
        "dropout_rate",
        "embd_pdrop",
        "embedding_dropout",
        "encoder_layerdrop",
        "hidden_dropout",
        "hidden_dropout_prob",
        "init_std",
        "initializer_cutoff_factor",
        "initializer_factor",
        "initializer_range",
        "linear_a_log_max",
        "linear_a_log_min",
        "linear_dt_init_floor",
        "linear_dt_max",
        "linear_dt_min",
        "mask_feature_length",
        "mask_feature_min_masks",
        "mask_feature_prob",
        "mask_time_length",
        "mask_time_min_masks",
        "mask_time_prob",
        "mlp_dropout",
        "output_router_logits",
        "rescale_prenorm_residual",
        "resid_pdrop",
        "residual_dropout",
        "router_aux_loss_coef",
        "router_jitter_noise",
        "sparse_pred_ignore_index",
        "sparse_prediction",
        "time_step_floor",
        "time_step_init_scheme",
        "time_step_max",
        "time_step_min",
        "time_step_rank",
        "time_step_scale",
        "altup_coef_clip"}},
      {"of how a program runs the model: types, cuts and kernels",
       {"block_size", "chunk_size", "deterministic_flash_attn", "dtype", "enable_moe_fp32_combine", "mamba_chunk_size",
        "mamba_ssm_cache_dtype", "moe_shared_expert_overlap", "num_logits_to_keep", "pretraining_tp",
        "reorder_and_upcast_attn", "residual_in_fp32", "torch_dtype", "transformers_version", "use_associative_scan",
        "use_cache", "use_mamba_kernels", "use_mambapy"}},
      {"of other tasks, of pooling, of videos, or of generation",
       {"begin_suppress_tokens", "classifier_activation", "classifier_bias", "classifier_pooling",
        "classifier_proj_size", "median_filter_width", "projection_dim", "summary_activation", "summary_first_dropout",
        "summary_proj_to_labels", "summary_type", "summary_use_proj", "suppress_tokens", "tokens_per_second",
        "use_weighted_layer_sum", "vision_use_head", "image_seq_length"}},
      {"an id of a token that the model itself does not look for",
       {"boi_token_index", "bos_token_id", "cls_token_id", "eod_token_id", "eoi_token_index", "eos_token_id",
        "pad_token_id", "sep_token_id", "video_token_id", "vision_end_token_id", "vision_start_token_id"}},
      {"of layers that predict tokens further ahead, which the decoder does without",
       {"mtp_layers_block_type", "num_nextn_predict_layers"}},
      {"layer_types or mlp_layer_types decides",
       {"_sliding_window_pattern", "sliding_window_pattern", "full_attn_idxs", "first_k_dense_replace"},
       {"gemma3_text", "gemma3_vlm", "exaone4", "lfm2", "deepseek_v32", "glm_moe_dsa"}},
      {"a list of the layers beside it decides",
       {"interleave_moe_layer_step", "no_rope_layer_interval", "moe_layer_interval"},
       {"llama4_text", "smollm3", "ernie4_5_moe"}},
      {"use_sliding_window is off, or layer_types decides",
       {"max_window_layers", "sliding_window"},
       {"qwen2", "qwen2_5_vl", "qwen2_moe", "qwen2_sliding", "qwen3", "qwen3_moe", "smollm3"}},
      {"the size that it is a factor of is given",
       {"block_ffn_dim_multiplier", "block_multiple_of", "expand", "mamba_expand"},
       {"lfm2", "mamba", "nemotron_h", "falcon_h1"}},
      {"enable_moe_block is off", {"moe_intermediate_size", "num_experts", "top_k_experts"}, {"gemma4_text"}},
      {"the rotation's own parameters decide",
       {"partial_rotary_factor"},
       {"deepseek_v4", "glm4", "glm4_moe", "gpt_neox", "nemotron", "phi", "phi3", "qwen3_5_moe_text", "qwen3_5_text",
        "qwen3_next"}},
      {"the same key outside decides", {"original_max_position_embeddings"}, {"phi3"}},
      {"of a rotation of another kind, which does not read it",
       {"beta_fast", "beta_slow", "mscale", "mscale_all_dim"},
       {"hunyuan_v1_dense"}},
      {"heads of latent attention have the sizes of their parts",
       {"head_dim"},
       {"deepseek_v2", "deepseek_v3", "deepseek_v32", "glm_moe_dsa", "kimi_linear"}},
      {"the other key names the class by itself", {"architectures", "model_type"}},
      {"the class is a decoder whatever it says", {"is_decoder"}},
      {"no layer has such a part",
       {"n_shared_experts", "use_double_wide_mlp", "vocab_size_per_layer_input"},
       {"nemotron_h", "gemma4_moe_text"}},
      {"every layer has its own, or none a window", {"use_sliding_window"}, {"qwen2", "qwen2_5_vl", "qwen3"}},
      {"rounded to whole patches, or to halves of a window", {"local_attention", "window_size"}},
      {"past the last layer", {"moe_layer_end_index"}},
      {"whether the head is the table is told by the tensors, or there is none", {"tie_word_embeddings"}},
      {"the reference keeps the factor and does not multiply by it", {"scale_embedding"}},
      {"a layer named twice", {"fullatt_block_indexes", "mlp_only_layers", "moe_layers"}},
  };
  if (mutation.kind == "renamed" || mutation.kind == "unknown key") return nullptr;
  static const std::vector<Reason> kRounded = {{"the borders of yarn's ramp are whole dims",
                                                {"original_max_position_embeddings"},
                                                {"arcee", "deepseek_v3", "deepseek_v32", "llama_yarn", "olmo3"}}};
  if (mutation.kind == "one more" || mutation.kind == "fraction") {
    if (const char* why = find_reason(kRounded, mutation.key, model)) return why;
  }
  if (mutation.kind == "empty" && mutation.key == "layer_types")
    return "the pattern that its absence means is the same";
  return find_reason(kReasons, mutation.key, model);
}

// Why a key that the class has no default for may be left out.
inline const char* reason_to_leave_out(const ConfigMutation& mutation, bool same_model, std::string_view model) {
  static const std::vector<Reason> kSame = {
      {"as its absence says", {"rope_type", "time_step_limit", "is_gated_act", "dense_act_fn", "rope_scaling"}},
      {"what stands in it is what its absence means", {"full_attention", "sliding_attention"}},
      {"the class has the same in its table", {"compressed_sparse_attention"}, {"deepseek_v4"}},
      {"it follows from others", {"head_dim", "intermediate_size", "qk_head_dim", "qk_rope_head_dim"}},
      {"latent attention has as many as queries",
       {"num_key_value_heads"},
       {"deepseek_v3", "deepseek_v32", "glm4_moe_lite", "glm_moe_dsa", "kimi_linear"}},
      {"every model of the class has it so", {"partial_rotary_factor"}, {"mimo_v2_flash"}},
      {"the default of the other name", {"moe_renormalize", "num_shared_experts"}, {"kimi_linear"}},
      {"every model of the class has it so", {"mrope_interleaved"}, {"qwen3_vl", "qwen3_5_vl"}},
      {"what older files leave out",
       {"rope_theta", "rope_local_base_freq", "rotary_emb_base", "rotary_pct", "original_max_position_embeddings",
        "beta_fast", "beta_slow", "factor"}},
  };
  static const std::vector<Reason> kAnother = {
      {"a rotation without it is the plain one, or that of its kind",
       {"alpha", "full_attention", "sliding_attention", "llama_4_scaling_beta", "mscale", "mscale_all_dim",
        "original_max_position_embeddings", "partial_rotary_factor", "rope_scaling", "rope_theta", "rope_type",
        "truncate"}},
      {"no token's id is guessed", {"bos_token_id", "eos_token_id", "decoder_start_token_id"}},
      {"model_type stands for its plainest class", {"architectures"}, {"modernbert", "roberta_mlm"}},
      {"a length, which has a default", {"model_max_length"}, {"kimi_linear"}},
      {"tied embeddings are scaled", {"scale_decoder_outputs"}, {"t5"}},
      {"every layer has a window then", {"fullatt_block_indexes"}, {"qwen2_5_vl"}},
  };
  if (const char* why = find_reason(same_model ? kSame : kAnother, mutation.key, model)) return why;
  return same_model ? reason_to_ignore(mutation, model) : nullptr;
}

// Why a changed config may give another model, which the same tensors fit.
inline const char* reason_for_another(const ConfigMutation& mutation, std::string_view model) {
  static const std::vector<Reason> kReasons = {
      {"a factor, which may be any number",
       {"attention_in_multiplier",
        "attention_multiplier",
        "attention_out_multiplier",
        "attention_value_scale",
        "attn_scale",
        "embedding_multiplier",
        "full_attn_alpha_factor",
        "full_attn_beta_factor",
        "key_multiplier",
        "linear_attn_alpha_factor",
        "linear_attn_beta_factor",
        "llama_4_scaling_beta",
        "lm_head_multiplier",
        "logit_scale",
        "mlp_alpha_factor",
        "mlp_beta_factor",
        "mscale",
        "mscale_all_dim",
        "residual_multiplier",
        "routed_scaling_factor",
        "router_scaling_factor",
        "ssm_in_multiplier",
        "ssm_out_multiplier",
        "moe_norm_min"}},
      {"an angle's base or a stretch, which may be any positive number",
       {"alpha", "beta_slow", "factor", "high_freq_factor", "original_max_position_embeddings", "query_pre_attn_scalar",
        "rope_theta", "rotary_emb_base", "logits_scaling", "rope_local_base_freq"}},
      {"zero is none", {"attn_logit_softcapping", "final_logit_softcapping", "hc_eps"}},
      {"how far or how long: no tensor has that size",
       {"attention_chunk_size", "floor_scale", "hc_sinkhorn_iters", "max_position_embeddings", "model_max_length",
        "relative_attention_max_distance", "sliding_window"}},
      {"how many are chosen of what there is",
       {"index_topk", "moe_k", "num_experts_per_tok", "num_experts_per_token", "top_k_experts", "topk_group", "n_group",
        "altup_active_idx", "vision_feature_layer", "num_kv_shared_layers"}},
      {"another token's id",
       {"bos_token_id", "decoder_start_token_id", "eos_token_id", "image_token_id", "image_token_index",
        "pad_token_id"}},
      {"heads are cut out of rows of the same number", {"num_attention_heads", "num_heads"}},
      {"layers of the encoder past the one that is used are not read", {"num_hidden_layers"}},
      {"a pattern of layers, which share their tensors' shapes",
       {"fullatt_block_indexes", "layer_types", "no_rope_layers", "full_attention", "sliding_attention"}},
  };
  static const std::vector<Reason> kSwitches = {
      {"a switch that has no tensor of its own",
       {"altup_correct_scale", "attention_k_eq_v", "attn_temperature_tuning", "linear_allow_neg_eigval",
        "mamba_norm_before_gate", "moe_renormalize", "norm_topk_prob", "rope_interleave", "scale_decoder_outputs",
        "truncate", "use_parallel_residual", "use_qk_norm"}},
  };
  if (mutation.kind == "renamed" || mutation.kind == "unknown key") return nullptr;
  if (mutation.kind == "other") {
    if (const char* why = find_reason(kSwitches, mutation.key, model)) return why;
  }
  if (mutation.kind == "empty" && mutation.key == "architectures") return "model_type stands for its plainest class";
  return find_reason(kReasons, mutation.key, model);
}

// Why a changed tensor may be taken.
inline const char* reason_to_take(const TableMutation& mutation) {
  const std::string name = without_digits(mutation.tensor);
  static const std::vector<Reason> kReasons = {
      {"follows from the config and is not read",
       {"model.layers..self_attn.diagonal_decay", "model.layers..self_attn.key_decay",
        "model.layers..self_attn.query_decay", "model.layers..self_attn.slope_rate"}},
      {"behind the layer whose rows the projector reads",
       {"vision_tower.post_layernorm.weight", "vision_tower.post_layernorm.bias"}},
      {"a model without a pooler is the same class", {"pooler.dense.weight"}},
      {"numbers of experts", {"model.layers..ffn.gate.tideid"}},
  };
  // Files of the bare models keep the heads of other tasks.
  constexpr std::string_view kHeads[] = {"decoder.", "head.", "lm_head."};
  if (mutation.kind == "surplus" && std::ranges::any_of(kHeads, [&](auto head) { return name.starts_with(head); })) {
    return "below a head that the class may be without";
  }
  constexpr std::string_view kColumns[] = {"convd.weight", "conv.conv.weight", "A_log"};
  if (mutation.kind.starts_with("swapped") &&
      std::ranges::any_of(kColumns, [&](auto column) { return name.ends_with(column); })) {
    return "one of the two axes is one, which says nothing";
  }
  return find_reason(kReasons, name);
}

// Why a changed GGUF file may be taken; name: of the key behind its architecture's, or of the tensor.
inline const char* reason_to_take_gguf(const std::string& name, const std::string& kind) {
  static const std::vector<Reason> kReasons = {
      {"the tensors tell",
       {"expert_shared_count", "expert_shared_feed_forward_length", "leading_dense_block_count",
        "interleave_moe_layer_step"}},
      {"of a kind of layer that the model has none of", {"attention.head_count", "feed_forward_length"}},
      {"how the scaling came about", {"rope.scaling.finetuned"}},
      {"zero says that the family decides", {"expert_gating_func"}},
      {"a factor, which may be any number",
       {"logit_scale", "expert_weights_scale", "rope.scaling.yarn_log_multiplier", "attention.scale", "embedding_scale",
        "residual_scale", "attention.temperature_scale"}},
      {"a choice that has no tensor of its own", {"expert_weights_norm"}},
      {"a length, which may be any", {"rope.scaling.original_context_length"}},
      {"zero is none", {"final_logit_softcapping"}},
  };
  constexpr std::string_view kColumns[] = {".ssm_conv1d.weight", ".shortconv.conv.weight", ".ssm_a", ".ssm_d",
                                           ".ssm_norm.weight"};
  if (kind.starts_with("swapped") &&
      std::ranges::any_of(kColumns, [&](auto column) { return name.ends_with(column); })) {
    return "one of the two axes is one, which says nothing";
  }
  return find_reason(kReasons, name);
}

}  // namespace headrace::golden
