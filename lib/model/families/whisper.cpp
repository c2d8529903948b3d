// Whisper: convolutions over a log-mel spectrogram and an encoder; a decoder with learned positions. Layer norms, biases
// everywhere but on keys. Reference: transformers models/whisper.
#include "model/families/config_keys.h"
#include "model/families/dense_decoder.h"
#include "model/families/encoder.h"

namespace headrace {

namespace {

constexpr std::string_view kOwnKeys[] = {
    "d_model", "decoder_layers", "decoder_attention_heads", "decoder_ffn_dim", "encoder_layers",
    "encoder_attention_heads", "encoder_ffn_dim", "activation_function", "max_source_positions", "max_target_positions",
    "num_mel_bins", "scale_embedding", "is_encoder_decoder", "decoder_start_token_id",
    // Of training, and of the class that labels audio.
    "dropout", "activation_dropout", "decoder_layerdrop", "encoder_layerdrop", "init_std", "apply_spec_augment",
    "mask_time_prob", "mask_time_length", "mask_time_min_masks", "mask_feature_prob", "mask_feature_length",
    "mask_feature_min_masks", "classifier_proj_size", "use_weighted_layer_sum",
    // Of generation: the caller's prompt and logit biases; of times of words.
    "begin_suppress_tokens", "suppress_tokens", "forced_decoder_ids", "median_filter_width"};

Result<ModelSpec> read_stack(const ConfigReader& config, const DenseKeys& keys, int64_t max_positions) {
  DenseDefaults defaults;
  defaults.vocab_size = 51865;
  defaults.hidden_size = 384;
  defaults.intermediate_size = 1536;
  defaults.num_layers = 4;
  defaults.num_heads = 6;
  defaults.num_kv_heads = -1;
  defaults.max_position_embeddings = max_positions;
  defaults.norm_eps = 1e-5;
  defaults.tied = true;
  defaults.keys = keys;
  defaults.own_keys = {"is_encoder_decoder"};
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec, read_dense_config(config, defaults));
  LayerChoices choices;
  choices.activation_key = "activation_function";
  choices.activation = "gelu";
  choices.attention_bias_key = nullptr;
  choices.attention_bias = choices.feed_forward_bias = true;
  HEADRACE_RETURN_IF_ERROR(read_layer_choices(config, spec, choices));
  spec.norm = NormKind::kLayer;
  spec.norm_bias = true;
  spec.learned_positions = spec.max_position_embeddings;
  for (LayerSpec& layer : spec.layers) {
    gqa(layer).key_bias = false;
    dense(layer).gated = false;
  }
  return spec;
}

Result<ModelSpec> decoder_from_config(const ConfigReader& config, const TensorFile& weights) {
  HEADRACE_RETURN_IF_ERROR(check_config_keys(config, kOwnKeys));
  HEADRACE_RETURN_IF_ERROR(config.only("is_encoder_decoder", true));
  HEADRACE_ASSIGN_OR_RETURN(ModelSpec spec,
                            read_stack(config,
                                       {"d_model", "decoder_ffn_dim", "decoder_layers", "decoder_attention_heads",
                                        "max_target_positions", "layer_norm_eps"},
                                       448));
  spec.architecture = "whisper";
  for (LayerSpec& layer : spec.layers) {
    const GqaAttention& own = gqa(layer);
    layer.cross = CrossAttention{own.num_heads, own.head_dim, own.scale, true, false, true};
  }
  // Whatever it says: the reference keeps the factor and does not multiply by it.
  HEADRACE_RETURN_IF_ERROR(config.boolean_or("scale_embedding", false).status());
  spec.head.tied = weights.find("proj_out.weight") == nullptr;
  return spec;
}

Result<EncoderSpec> encoder_from_config(const ConfigReader& config, const ModelSpec& decoder) {
  EncoderSpec spec;
  HEADRACE_ASSIGN_OR_RETURN(spec.encoder,
                            read_stack(config,
                                       {"d_model", "encoder_ffn_dim", "encoder_layers", "encoder_attention_heads",
                                        "max_source_positions", "layer_norm_eps"},
                                       1500));
  spec.encoder.architecture = "whisper_encoder";
  spec.encoder.vocab_size = 0;
  spec.encoder.bos_token_id = -1;
  set_encoder_layers(spec.encoder, /*norm_bias=*/true);
  HEADRACE_ASSIGN_OR_RETURN(const int64_t mels, config.integer_or("num_mel_bins", 1, 1 << 12, 80));
  spec.audio = AudioFrontEnd{static_cast<int32_t>(mels), 2 * spec.encoder.max_position_embeddings};
  HEADRACE_ASSIGN_OR_RETURN(const int64_t start,
                            config.integer_or("decoder_start_token_id", 0, decoder.vocab_size - 1, 50257));
  spec.start_token_id = static_cast<int32_t>(start);
  return spec;
}

constexpr NamePair kLayer[] = {
    {"q_proj", "self_attn.q_proj"},
    {"k_proj", "self_attn.k_proj"},
    {"v_proj", "self_attn.v_proj"},
    {"o_proj", "self_attn.out_proj"},
    {"attention_norm", "self_attn_layer_norm"},
    {"cross.q_proj", "encoder_attn.q_proj"},
    {"cross.k_proj", "encoder_attn.k_proj"},
    {"cross.v_proj", "encoder_attn.v_proj"},
    {"cross.o_proj", "encoder_attn.out_proj"},
    {"cross_norm", "encoder_attn_layer_norm"},
    {"up_proj", "fc1"},
    {"down_proj", "fc2"},
    {"feed_forward_norm", "final_layer_norm"},
};
constexpr NamePair kDecoderTop[] = {{"embed", "model.decoder.embed_tokens"},
                                    {"positions", "model.decoder.embed_positions"},
                                    {"final_norm", "model.decoder.layer_norm"},
                                    {"lm_head", "proj_out"}};
constexpr NamePair kEncoderTop[] = {{"conv_1", "model.encoder.conv1"},
                                    {"conv_2", "model.encoder.conv2"},
                                    {"positions", "model.encoder.embed_positions"},
                                    {"final_norm", "model.encoder.layer_norm"}};
constexpr std::string_view kEncoderPrefix[] = {"model.encoder."};

WeightNaming decoder_names(const TensorFile&) {
  return {"model.decoder.layers.", kLayer, kDecoderTop, kEncoderPrefix, {}};
}
WeightNaming encoder_names(const TensorFile&) {
  return {"model.encoder.layers.", kLayer, kEncoderTop, {}, {}, /*more_layers=*/false, kEncoderPrefix};
}

}  // namespace

const Family kWhisperFamily = {"whisper",
                               "WhisperForConditionalGeneration",
                               "whisper",
                               "",
                               decoder_from_config,
                               nullptr,
                               decoder_names,
                               nullptr,
                               nullptr,
                               nullptr,
                               encoder_from_config,
                               encoder_names};

}  // namespace headrace
