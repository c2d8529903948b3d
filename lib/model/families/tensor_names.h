// Names of the tensors around the layers that most files agree on.
#pragma once

#include <algorithm>
#include <string_view>

#include "model/weight_names.h"

namespace headrace {

// Whether a prefix is that of the file's names. One tensor alone would not tell: a file that lacks it seemed to have others.
inline bool has_prefix(const TensorFile& file, std::string_view prefix) {
  return std::ranges::any_of(file.tensors(),
                             [&](const TensorEntry& tensor) { return tensor.name.starts_with(prefix); });
}

inline constexpr NamePair kHfTopNames[] = {
    {"embed", "model.embed_tokens"}, {"final_norm", "model.norm"}, {"lm_head", "lm_head"}};
// Of the text model inside one for images, as newer transformers writes it, and in the files of before.
inline constexpr NamePair kLanguageModelTopNames[] = {{"embed", "model.language_model.embed_tokens"},
                                                      {"final_norm", "model.language_model.norm"},
                                                      {"lm_head", "lm_head"}};
inline constexpr NamePair kOldLanguageModelTopNames[] = {{"embed", "language_model.model.embed_tokens"},
                                                         {"final_norm", "language_model.model.norm"},
                                                         {"lm_head", "language_model.lm_head"}};
inline constexpr NamePair kGgufTopNames[] = {
    {"embed", "token_embd"}, {"final_norm", "output_norm"}, {"lm_head", "output"}};

// Suffixes of tensors to leave alone: a copy of the embeddings where the head is tied to them, and, in old checkpoints,
// frequencies stored beside the parameters they follow from.
inline constexpr std::string_view kTiedHead[] = {"lm_head.weight"};
inline constexpr std::string_view kHfSurplus[] = {"rotary_emb.inv_freq", "lm_head.weight"};

}  // namespace headrace
