#include "model/families/config_keys.h"

#include <algorithm>
#include <vector>

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
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "gradient_checkpointing",
    // Of how the file was made or is run, not of what it computes: pretraining_tp splits matrices and adds up the parts.
    "_name_or_path",
    "_attn_implementation",
    "_attn_implementation_autoset",
    "attn_implementation",
    "cache_implementation",
    "transformers.js_config",
    "is_llama_config",
    "is_decoder",
    "max_sequence_length",
    "num_logits_to_keep",
    "output_attentions",
    "output_hidden_states",
    "return_dict",
    "unsloth_fixed",
    "unsloth_version",
    "use_return_dict",
    "auto_map",
    "dtype",
    "torch_dtype",
    "transformers_version",
    "use_cache",
    "pad_token_id",
    // Of generation and of other tasks, which old files keep here.
    "do_sample",
    "temperature",
    "top_k",
    "top_p",
    "max_length",
    "id2label",
    "label2id",
    "problem_type",
    "task_specific_params",
    "tokenizer_class",
    // Of running in parts on several devices.
    "pretraining_tp",
    "ep_size",
    // Extra layers that predict tokens further ahead; the decoder does without them.
    "num_nextn_predict_layers",
    "num_mtp_layers",
    "mtp_num_layers",
    "use_mtp",
};

// Switches that files turn off by name; on, they are another computation.
constexpr std::string_view kOffKeys[] = {"add_cross_attention", "is_encoder_decoder", "rope_interleaved",
                                         "use_bidirectional_attention", "use_mrope"};

}  // namespace

Status check_config_keys(const ConfigReader& config, std::span<const std::string_view> own) {
  std::vector<std::string_view> more(own.begin(), own.end());
  for (const std::string_view key : kOffKeys) {
    if (std::find(own.begin(), own.end(), key) != own.end()) continue;
    HEADRACE_RETURN_IF_ERROR(config.only(key, false));
    more.push_back(key);
  }
  return config.check_known(kDecoderKeys, more);
}

}  // namespace headrace
