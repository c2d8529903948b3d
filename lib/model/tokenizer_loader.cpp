#include "model/tokenizer_loader.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <vector>

#include "base/format_full.h"
#include "formats/text_quote.h"

namespace headrace {

namespace {

Status read_id(const GgufFile& file, std::string_view name, std::optional<int32_t>& out) {
  const std::string key = fmt::format("tokenizer.ggml.{}", name);
  if (file.find_metadata(key) == nullptr) return {};
  HEADRACE_ASSIGN_OR_RETURN(const int64_t id, file.get_i64(key));
  // -1 is what some converters write for "none".
  if (id < -1 || id > INT32_MAX) return malformed(key, "{} is no token id", id);
  if (id >= 0) out = static_cast<int32_t>(id);
  return {};
}

Status read_flag(const GgufFile& file, std::string_view name, std::optional<bool>& out) {
  const std::string key = fmt::format("tokenizer.ggml.{}", name);
  if (file.find_metadata(key) == nullptr) return {};
  HEADRACE_ASSIGN_OR_RETURN(out, file.get_bool(key));
  return {};
}

Status read_texts(const GgufFile& file, std::string_view key, std::vector<std::string>& out) {
  if (file.find_metadata(key) == nullptr) return {};
  HEADRACE_ASSIGN_OR_RETURN(const auto texts, file.get_string_array(key));
  out.assign(texts.begin(), texts.end());
  return {};
}

// The charsmap is stored as an array of bytes, signed or not.
Status read_charsmap(const GgufFile& file, std::string& out) {
  const std::string key = "tokenizer.ggml.precompiled_charsmap";
  if (file.find_metadata(key) == nullptr) return {};
  HEADRACE_ASSIGN_OR_RETURN(const std::vector<int32_t> bytes, file.get_i32_array(key));
  out.reserve(bytes.size());
  for (const int32_t byte : bytes) {
    if (byte < -128 || byte > 255) return malformed(key, "{} is no byte", byte);
    out.push_back(static_cast<char>(static_cast<unsigned char>(byte)));
  }
  return {};
}

// A token of tokenizer_config.json: its text, or an added token's object.
std::optional<std::string> token_text(const nlohmann::json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_object()) {
    const auto it = value.find("content");
    if (it != value.end() && it->is_string()) return it->get<std::string>();
  }
  return std::nullopt;
}

}  // namespace

Result<text::GgufTokenizerSpec> read_gguf_tokenizer_spec(const GgufFile& file) {
  text::GgufTokenizerSpec spec;
  HEADRACE_ASSIGN_OR_RETURN(spec.model, file.get_string("tokenizer.ggml.model"));
  HEADRACE_ASSIGN_OR_RETURN(spec.pre, file.get_string_or("tokenizer.ggml.pre", ""));
  HEADRACE_RETURN_IF_ERROR(read_texts(file, "tokenizer.ggml.tokens", spec.tokens));
  HEADRACE_RETURN_IF_ERROR(read_texts(file, "tokenizer.ggml.merges", spec.merges));
  if (file.find_metadata("tokenizer.ggml.scores") != nullptr) {
    HEADRACE_ASSIGN_OR_RETURN(spec.scores, file.get_f32_array("tokenizer.ggml.scores"));
  }
  if (file.find_metadata("tokenizer.ggml.token_type") != nullptr) {
    HEADRACE_ASSIGN_OR_RETURN(spec.token_types, file.get_i32_array("tokenizer.ggml.token_type"));
  }
  HEADRACE_RETURN_IF_ERROR(read_id(file, "bos_token_id", spec.bos_id));
  HEADRACE_RETURN_IF_ERROR(read_id(file, "eos_token_id", spec.eos_id));
  HEADRACE_RETURN_IF_ERROR(read_id(file, "unknown_token_id", spec.unk_id));
  HEADRACE_RETURN_IF_ERROR(read_id(file, "padding_token_id", spec.pad_id));
  HEADRACE_RETURN_IF_ERROR(read_id(file, "seperator_token_id", spec.sep_id));  // spelled so in files
  HEADRACE_RETURN_IF_ERROR(read_id(file, "cls_token_id", spec.cls_id));
  HEADRACE_RETURN_IF_ERROR(read_id(file, "mask_token_id", spec.mask_id));
  HEADRACE_RETURN_IF_ERROR(read_flag(file, "add_bos_token", spec.add_bos));
  HEADRACE_RETURN_IF_ERROR(read_flag(file, "add_eos_token", spec.add_eos));
  HEADRACE_RETURN_IF_ERROR(read_flag(file, "add_space_prefix", spec.add_space_prefix));
  HEADRACE_RETURN_IF_ERROR(read_flag(file, "remove_extra_whitespaces", spec.remove_extra_whitespaces));
  HEADRACE_RETURN_IF_ERROR(read_charsmap(file, spec.precompiled_charsmap));
  for (const char* name : {"eot_token_id", "eom_token_id"}) {
    std::optional<int32_t> id;
    HEADRACE_RETURN_IF_ERROR(read_id(file, name, id));
    if (id) spec.eog_ids.push_back(*id);
  }
  // Files without these keys mark the end of a turn by its spelling alone; only control tokens count.
  for (size_t id = 0; id < spec.tokens.size() && id < spec.token_types.size(); ++id) {
    constexpr std::string_view kTurnEnds[] = {"<|eot_id|>", "<|im_end|>", "<end_of_turn>",
                                              "<|end|>",    "<|eom_id|>", "<|endoftext|>"};
    if (spec.token_types[id] != static_cast<int32_t>(text::GgufTokenType::kControl)) continue;
    if (std::find(std::begin(kTurnEnds), std::end(kTurnEnds), spec.tokens[id]) == std::end(kTurnEnds)) continue;
    spec.eog_ids.push_back(static_cast<int32_t>(id));
  }
  return spec;
}

Result<LoadedTokenizer> load_tokenizer(const GgufFile& file) {
  LoadedTokenizer out;
  HEADRACE_ASSIGN_OR_RETURN(out.chat_template, file.get_string_or("tokenizer.chat_template", ""));
  if (file.find_metadata("tokenizer.ggml.model") == nullptr) return out;
  HEADRACE_ASSIGN_OR_RETURN(auto spec, read_gguf_tokenizer_spec(file));
  const std::pair<const char*, std::optional<int32_t>> kTokens[] = {
      {"bos_token", spec.bos_id}, {"eos_token", spec.eos_id}, {"unk_token", spec.unk_id}, {"pad_token", spec.pad_id}};
  for (const auto& [name, id] : kTokens) {
    if (!id) continue;
    if (static_cast<size_t>(*id) >= spec.tokens.size()) {
      return malformed("tokenizer.ggml.tokens", "the {} id {} is outside the vocabulary of {}", name, *id,
                       spec.tokens.size());
    }
    out.special_tokens[name] = spec.tokens[static_cast<size_t>(*id)];
  }
  HEADRACE_ASSIGN_OR_RETURN(out.tokenizer, text::Tokenizer::from_gguf(std::move(spec)));
  return out;
}

Result<LoadedTokenizer> load_tokenizer(const ModelFolder& folder) {
  LoadedTokenizer out;
  out.chat_template = folder.chat_template;
  if (out.chat_template.empty() && !folder.named_chat_templates.empty()) {
    std::vector<std::string> names;
    for (const auto& [name, source] : folder.named_chat_templates) names.push_back(quote_name(name));
    out.no_default_template =
        not_found("chat_template", "the files hold templates of names ({}) and no default", fmt::join(names, ", "));
  }
  if (folder.tokenizer_config.is_object()) {
    for (const char* name :
         {"bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token"}) {
      const auto it = folder.tokenizer_config.find(name);
      if (it == folder.tokenizer_config.end()) continue;
      if (const auto token = token_text(*it)) out.special_tokens[name] = *token;
    }
  }
  if (folder.tokenizer_json.empty()) return out;
  const std::string config =
      folder.tokenizer_config.is_object()
          ? folder.tokenizer_config.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)
          : std::string();
  HEADRACE_ASSIGN_OR_RETURN(out.tokenizer, text::Tokenizer::from_json(folder.tokenizer_json, config));
  return out;
}

Result<LoadedTokenizer> load_tokenizer(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    HEADRACE_ASSIGN_OR_RETURN(const ModelFolder folder, open_model_folder(path));
    return load_tokenizer(folder);
  }
  HEADRACE_ASSIGN_OR_RETURN(const auto file, GgufFile::open_path(path, /*use_mmap=*/false));
  return load_tokenizer(*file);
}

}  // namespace headrace
