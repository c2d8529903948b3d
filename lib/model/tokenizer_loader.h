// The tokenizer, chat template and special tokens of a model, from GGUF metadata or a model folder's files.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "base/status.h"
#include "formats/gguf.h"
#include "formats/model_folder.h"
#include "text/tokenizer.h"

namespace headrace {

struct LoadedTokenizer {
  std::shared_ptr<const text::Tokenizer> tokenizer;   // null when the files have none
  std::map<std::string, std::string> special_tokens;  // bos_token, eos_token, ...: variables of chat templates
  std::string chat_template;                          // empty when there is none
  // Why there is none although the files hold templates: a list of named ones without a default. Else ok.
  Status no_default_template = {};
};

// tokenizer.ggml.* as the spec that lib/text reads. kMalformed with the key as place.
Result<text::GgufTokenizerSpec> read_gguf_tokenizer_spec(const GgufFile& file);

Result<LoadedTokenizer> load_tokenizer(const GgufFile& file);
Result<LoadedTokenizer> load_tokenizer(const ModelFolder& folder);
// From a GGUF file or a folder; weights are not read.
Result<LoadedTokenizer> load_tokenizer(const std::string& path);

}  // namespace headrace
