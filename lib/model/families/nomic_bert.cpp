// Nomic BERT: BERT with rotary positions, a gated feed-forward and no biases but those of norms. Reference: transformers
// models/nomic_bert, and the first files' own code, whose config has GPT-2's names.
#include <nlohmann/json.hpp>

#include "model/families/config_keys.h"
#include "model/families/encoder.h"

namespace headrace {

namespace {

constexpr std::string_view kOwnKeys[] = {
    "layer_norm_eps", "type_vocab_size",
    // Of the first files.
    "n_embd", "n_head", "n_inner", "n_layer", "n_positions", "max_trained_positions", "layer_norm_epsilon",
    "activation_function", "causal", "prenorm", "parallel_block", "qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias",
    "use_rms_norm", "rotary_emb_base", "rotary_emb_fraction", "rotary_emb_interleaved", "rotary_emb_scale_base",
    "rotary_scaling_factor", "scale_attn_weights", "scale_attn_by_inverse_layer_idx",
    // Of how the file was trained and run.
    "classifier_dropout", "attn_pdrop", "embd_pdrop", "resid_pdrop", "fused_bias_fc", "fused_dropout_add_ln",
    "use_flash_attn", "use_xentropy", "pad_vocab_size_multiple", "dense_seq_output", "last_layer_subset",
    "reorder_and_upcast_attn", "parallel_block_tied_norm", "summary_activation", "summary_first_dropout",
    "summary_proj_to_labels", "summary_type", "summary_use_proj"};

Status refuse_other_computations(const ConfigReader& config) {
  const std::pair<const char*, nlohmann::json> kPlain[] = {
      {"activation_function", "swiglu"},
      {"causal", false},
      {"prenorm", false},
      {"parallel_block", false},
      {"qkv_proj_bias", false},
      {"mlp_fc1_bias", false},
      {"mlp_fc2_bias", false},
      {"use_rms_norm", false},
      {"rotary_emb_fraction", 1.0},
      {"rotary_emb_interleaved", false},
      {"rotary_emb_scale_base", nullptr},
      {"rotary_scaling_factor", nullptr},
      {"scale_attn_weights", true},
      {"scale_attn_by_inverse_layer_idx", false},
      {"is_decoder", false},
  };
  for (const auto& [key, plain] : kPlain) HEADRACE_RETURN_IF_ERROR(config.only(key, plain));
  return {};
}

void set_blocks(ModelSpec& spec) {
  spec.architecture = "nomic-bert";
  set_encoder_layers(spec, /*norm_bias=*/true);
  set_stream_norms(spec);
  spec.embedding_norm = true;
}

Result<ModelSpec> from_config(const ConfigReader& config, const TensorFile&) {
  HEADRACE_RETURN_IF_ERROR(check_config_keys(config, kOwnKeys));
  HEADRACE_RETURN_IF_ERROR(refuse_other_computations(config));
  DenseDefaults defaults;
  defaults.vocab_size = 30528;
  defaults.hidden_size = 768;
  defaults.intermediate_size = 3072;
  defaults.num_layers = 12;
  defaults.num_heads = 12;
  defaults.num_kv_heads = -1;
  defaults.max_position_embeddings = 2048;
  defaults.norm_eps = 1e-12;
  defaults.tied = true;
  defaults.keys.norm_eps = "layer_norm_eps";
  if (config.has("n_embd")) {
    defaults.keys = {"n_embd", "n_inner", "n_layer", "n_head", "n_positions", "layer_norm_epsilon"};
  }
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_dense_config(config, defaults));
  set_blocks(spec);
  // Beyond what they were trained for, the first files' code stretches the rotation by the sequence's length.
  HEADRACE_ASSIGN_OR_RETURN(const int64_t trained, config.integer_or("max_trained_positions", 1, 1 << 28, 2048));
  if (config.has("n_embd") && trained < spec.max_position_embeddings) {
    spec.max_position_embeddings = static_cast<int32_t>(trained);
  }
  HEADRACE_ASSIGN_OR_RETURN(const int64_t types, config.integer_or("type_vocab_size", 0, 1 << 24, 2));
  spec.token_types = static_cast<int32_t>(types);
  HEADRACE_ASSIGN_OR_RETURN(const double theta, config.positive_or("rotary_emb_base", 1000.0));
  HEADRACE_ASSIGN_OR_RETURN(const RopeSpec rope, read_rotation(config, spec, theta));
  LayerChoices choices;
  choices.attention_bias_key = nullptr;
  HEADRACE_RETURN_IF_ERROR(read_layer_choices(config, spec, choices));
  for (LayerSpec& layer : spec.layers) gqa(layer).rope = rope;
  return spec;
}

constexpr NamePair kLayer[] = {
    {"q_proj", "attn.Wqkv"},
    {"k_proj", "attn.Wqkv"},
    {"v_proj", "attn.Wqkv"},
    {"o_proj", "attn.out_proj"},
    {"gate_proj", "mlp.fc12"},
    {"up_proj", "mlp.fc11"},
    {"down_proj", "mlp.fc2"},
    {"attention_stream_norm", "norm1"},
    {"feed_forward_stream_norm", "norm2"},
};
constexpr NamePair kTop[] = {{"embed", "embeddings.word_embeddings"},
                             {"token_types", "embeddings.token_type_embeddings"},
                             {"embedding_norm", "emb_ln"}};

WeightNaming hf_names(const TensorFile&) { return {"encoder.layers.", kLayer, kTop, {}, {}}; }

Result<ModelSpec> from_gguf(const GgufReader& gguf) {
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_encoder_gguf(gguf));
  HEADRACE_RETURN_IF_ERROR(refuse_gguf_attention_keys(gguf));
  const HeadSpec head = spec.head;
  set_blocks(spec);
  spec.head = head;
  return spec;
}

constexpr NamePair kGgufLayer[] = {
    {"q_proj", "attn_qkv"},
    {"k_proj", "attn_qkv"},
    {"v_proj", "attn_qkv"},
    {"o_proj", "attn_output"},
    {"gate_proj", "ffn_gate"},
    {"up_proj", "ffn_up"},
    {"down_proj", "ffn_down"},
    {"attention_stream_norm", "attn_output_norm"},
    {"feed_forward_stream_norm", "layer_output_norm"},
};
constexpr NamePair kGgufTop[] = {{"embed", "token_embd"},
                                 {"token_types", "token_types"},
                                 {"transform", "cls"},
                                 {"lm_head", "cls.output"},
                                 {"embedding_norm", "token_embd_norm"}};

WeightNaming gguf_names() { return {"blk.", kGgufLayer, kGgufTop, {}, {}}; }

}  // namespace

const Family kNomicBertFamily = {"nomic-bert", "NomicBertModel", "nomic_bert", "nomic-bert",
                                 from_config,  from_gguf,        hf_names,     gguf_names};

}  // namespace headrace
