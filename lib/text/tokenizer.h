// Text to token ids and back: the tokenizers of Hugging Face tokenizer.json files and of GGUF metadata.
//
// The reference is the `tokenizers` library, version 0.23: ids are equal to its ids for every text.
// Truncation and padding settings of a tokenizer.json are not applied.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/tokenizer_spec.h"

namespace headrace::text {

struct TokenizerParts;  // the pipeline, private to this folder

struct EncodeOptions {
  // What the post-processor puts around a text: BOS, EOS, [CLS] ... [SEP].
  bool add_special = true;
  // Whether tokens of the added vocabulary (control and user-defined ones) written in the text count as those
  // tokens. When false the text is plain pieces and no id of the added vocabulary can result from its
  // spelling.
  bool parse_special = true;
};

// Immutable after creation; every member may be called from any thread at the same time.
class Tokenizer {
 public:
  // A stretch of a text that is encoded as one.
  struct Span {
    std::string_view text;
    bool parse_special = true;
  };

  // tokenizer_json: the file's bytes, parsed here and not kept. tokenizer_config_json: the file beside it, or
  // empty; it names bos, eos, pad and unk. kMalformed: not JSON, a wrong type, an id out of range;
  // kUnsupported: a component that is not known. The place is a JSON pointer into the file.
  static Result<std::shared_ptr<const Tokenizer>> from_json(std::string_view tokenizer_json,
                                                            std::string_view tokenizer_config_json = {});

  // kMalformed or kUnsupported with the metadata key as the place. An unknown `pre` is refused by its name.
  static Result<std::shared_ptr<const Tokenizer>> from_gguf(GgufTokenizerSpec spec);

  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // kInvalidArgument when the text is not UTF-8 (place "byte N", counted from 0).
  Result<std::vector<int32_t>> encode(std::string_view utf8, EncodeOptions options = {}) const;

  // The concatenation of the spans as one text: pieces form across span borders as if there were none; only a
  // match of the added vocabulary must lie wholly in spans with parse_special. For rendered chat templates,
  // where the scaffold's markers count and the same markers in a user's message do not.
  Result<std::vector<int32_t>> encode_spans(std::span<const Span> spans, bool add_special) const;

  // Text of the ids, valid UTF-8: an invalid byte, and each incomplete character, becomes U+FFFD. Ids outside
  // the vocabulary give nothing. skip_special leaves out the control tokens.
  std::string decode(std::span<const int32_t> ids, bool skip_special = false) const;

  // The bytes that this token alone stands for, before any stripping at the start of a text; possibly part of
  // a character; empty for an id outside the vocabulary.
  std::string token_bytes(int32_t id) const;

  // Highest id + 1, added tokens included. (A model's embedding may have more rows.)
  int32_t vocab_size() const;
  std::optional<int32_t> bos_id() const;
  std::optional<int32_t> eos_id() const;
  std::optional<int32_t> pad_id() const;
  std::optional<int32_t> unk_id() const;
  // The token's stored spelling ("Ġthe", "▁the", "<0x0A>"), not text.
  std::optional<int32_t> token_to_id(std::string_view token) const;
  // Empty when there is no such id. Lives as long as the tokenizer.
  std::string_view id_to_token(int32_t id) const;
  // Whether the id is a control token (left out by skip_special).
  bool is_special(int32_t id) const;
  // Whether the id belongs to the added vocabulary: control and user-defined tokens.
  bool is_added(int32_t id) const;
  // Ids that end a generation: eos and what the files name besides (eot, eom). Ascending, without repeats.
  const std::vector<int32_t>& end_of_generation_ids() const;

 private:
  friend class StreamingDetokenizer;
  explicit Tokenizer(std::unique_ptr<const TokenizerParts> parts);
  std::unique_ptr<const TokenizerParts> parts_;
};

}  // namespace headrace::text
