#include "model/families/config_keys.h"

namespace headrace {
namespace {

// What every decoder has, and read_dense_config, read_rope and the registry read or refuse.
constexpr std::string_view kDecoderKeys[] = {
    "architectures",
    "model_type",
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "hidden_act",
    "max_position_embeddings",
    "rms_norm_eps",
    "rope_parameters",
    "rope_theta",
    "rope_scaling",
    "partial_rotary_factor",
    "original_max_position_embeddings",
    "tie_word_embeddings",
    "bos_token_id",
    "eos_token_id",
    "quantization_config",
    // Of training alone: dropout, losses, noise, initialisation.
    "attention_dropout",
    "hidden_dropout",
    "router_aux_loss_coef",
    "output_router_logits",
    "router_jitter_noise",
    "aux_loss_alpha",
    "seq_aux",
    "initializer_range",
    "moe_aux_loss_coeff",
    // Of how the file was made or is run, not of what it computes.
    "_name_or_path",
    "auto_map",
    "dtype",
    "torch_dtype",
    "transformers_version",
    "use_cache",
    "pad_token_id",
    "pretraining_tp",
    "ep_size",
    // Extra layers that predict tokens further ahead; the decoder does without them.
    "num_nextn_predict_layers",
    "num_mtp_layers",
    "mtp_num_layers",
    "use_mtp",
};

}  // namespace

Status check_config_keys(const ConfigReader& config, std::span<const std::string_view> own) {
  return config.check_known(kDecoderKeys, own);
}

}  // namespace headrace
