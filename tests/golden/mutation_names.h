// Whether a refusal says where the damage is.
#pragma once

#include <algorithm>
#include <cctype>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "golden/mutations.h"

namespace headrace::golden {

inline bool is_name_char(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// Whether `word` stands in the text with nothing of a name around it.
inline bool says(std::string_view text, std::string_view word) {
  for (size_t at = text.find(word); at != std::string_view::npos; at = text.find(word, at + 1)) {
    const size_t end = at + word.size();
    if ((at == 0 || !is_name_char(text[at - 1])) && (end == text.size() || !is_name_char(text[end]))) return true;
  }
  return false;
}

// The name up to its last two parts: where a tensor of a module belongs that the file may have none of.
inline std::string_view module_of(std::string_view name) {
  for (int i = 0; i < 2; ++i) name = name.substr(0, std::max<size_t>(name.find_last_of('.'), 1));
  return name;
}

// A tensor of the file, or one that is missing beside others of its module, or of another layer like theirs.
inline bool names_a_tensor(const Status& status, const std::vector<std::string>& tensors) {
  std::string place = status.place();
  if (const size_t colon = place.rfind(": "); colon != std::string::npos) place = place.substr(colon + 2);
  const std::string kind = without_digits(place), module = without_digits(std::string(module_of(place)));
  return std::ranges::any_of(tensors, [&](const std::string& tensor) {
    if (says(status.place(), tensor)) return true;
    if (status.code() != StatusCode::kNotFound) return false;
    return without_digits(tensor) == kind || without_digits(tensor).starts_with(module + ".");
  });
}

// Keys that contradict each other when one of them is damaged: a refusal may name the one beside it, which is whole.
inline bool is_contradiction(std::string_view key, std::string_view place) {
  static const std::multimap<std::string_view, std::string_view> kBeside = {
      {"d_model", "decoder_attention_heads"},
      {"enable_moe_block", "num_experts"},
      {"feed_forward_proj", "dense_act_fn"},
      {"head_dim", "expand"},
      {"head_dim", "mrope_section"},
      {"head_dim", "num_kv_shared_layers"},
      {"head_dim", "qk_rope_head_dim"},
      {"hidden_size", "expand"},
      {"hidden_size", "mamba_d_head"},
      {"hidden_size", "out_hidden_size"},
      {"layer_types", "num_kv_shared_layers"},
      {"mamba_d_ssm", "mamba_d_head"},
      {"mamba_expand", "mamba_d_head"},
      {"mamba_n_heads", "mamba_d_head"},
      {"mamba_n_heads", "mamba_d_ssm"},
      {"mamba_num_heads", "n_groups"},
      {"mamba_proj_bias", "projectors_bias"},
      {"n_embd", "n_head"},
      {"n_group", "topk_group"},
      {"n_routed_experts", "n_group"},
      {"num_attention_heads", "num_key_value_heads"},
      {"num_attention_heads", "o_groups"},
      {"num_expert_group", "topk_group"},
      {"num_experts", "num_expert_group"},
      {"num_heads", "expand"},
      {"num_heads", "n_groups"},
      {"num_hidden_layers", "intermediate_size"},
      {"num_hidden_layers", "layer_types"},
      {"num_hidden_layers", "mlp_layer_types"},
      {"num_hidden_layers", "no_rope_layers"},
      {"partial_rotary_factor", "mrope_section"},
      {"patch_size", "image_size"},
      {"patch_size", "mm_tokens_per_image"},
      {"qk_nope_head_dim", "qk_head_dim"},
      {"qk_rope_head_dim", "qk_head_dim"},
      {"relative_attention_num_buckets", "position_buckets.num_buckets"},
      {"rope_type", "partial_rotary_factor"},
      {"tie_word_embeddings", "cls.predictions.decoder.weight"},
      {"tie_word_embeddings", "lm_head.weight"},
      // Objects: what stands beside them, or would stand in them.
      {"3", "num_kv_shared_layers"},
      {"5", "num_kv_shared_layers"},
      {"compress", "main"},
      {"main", "compress"},
      {"text_config", "mrope_section"},
      {"vision_config", "mm_tokens_per_image"},
  };
  const auto [first, last] = kBeside.equal_range(key);
  return std::any_of(first, last, [&](const auto& pair) { return says(place, pair.second); });
}

// The key of the damage, or the one that it gave another name; a key that is a plain word has to be in the place. Or a tensor
// that no longer fits, or a key that contradicts the damaged one.
inline bool names_its_place(const Status& status, const ConfigMutation& mutation,
                            const std::vector<std::string>& tensors) {
  const std::string& new_name = mutation.new_name.empty() ? mutation.key : mutation.new_name;
  for (const std::string& name : {new_name, mutation.key}) {
    const bool plain = name.find('_') == std::string::npos;
    if (says(plain ? status.place() : status.to_string(), name)) return true;
  }
  return names_a_tensor(status, tensors) || is_contradiction(mutation.key, status.place());
}

}  // namespace headrace::golden
