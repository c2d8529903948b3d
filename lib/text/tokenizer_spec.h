// A tokenizer as GGUF metadata describes it, without the file: lib/text does not know formats.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace headrace::text {

// Values of tokenizer.ggml.token_type.
enum class GgufTokenType : int32_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};

// Every member is the metadata key of the comment, unchecked; Tokenizer::from_gguf checks them.
struct GgufTokenizerSpec {
  std::string model;                 // tokenizer.ggml.model: gpt2, llama, t5, bert
  std::string pre;                   // tokenizer.ggml.pre; only gpt2 reads it
  std::vector<std::string> tokens;   // tokenizer.ggml.tokens; the index is the id
  std::vector<float> scores;         // tokenizer.ggml.scores; empty or one per token
  std::vector<int32_t> token_types;  // tokenizer.ggml.token_type; empty (all normal) or one per token
  std::vector<std::string> merges;   // tokenizer.ggml.merges: "left right", best first
  std::optional<int32_t> bos_id, eos_id, unk_id, pad_id, sep_id, cls_id, mask_id;
  std::optional<bool> add_bos, add_eos;
  std::optional<bool> add_space_prefix;
  std::optional<bool> remove_extra_whitespaces;
  std::string precompiled_charsmap;  // raw bytes of tokenizer.ggml.precompiled_charsmap
  std::vector<int32_t> eog_ids;      // eot, eom and other ids that end a turn, besides eos
};

}  // namespace headrace::text
