#include "text/tokenizer_json_parts.h"

#include <utility>

#include "text/unicode.h"
#include "text/utf8.h"
#include "text/vocabulary.h"

namespace headrace::text {
namespace {

constexpr int kMaxDepth = 16;

Status unknown_component(const JsonNode& node, std::string_view kind, std::string_view type) {
  return unsupported(node.pointer() + "/type", "the {} {} is not known", kind, type);
}

Status too_deep(const JsonNode& node) { return malformed(node.pointer(), "nested more than {} deep", kMaxDepth); }

// {"String": literal} or {"Regex": pattern}.
struct Pattern {
  std::optional<std::string> literal;
  std::optional<Regex> regex;
};

Result<Pattern> read_pattern(const JsonNode& owner) {
  HEADRACE_ASSIGN_OR_RETURN(const JsonNode node, owner.at("pattern"));
  Pattern out;
  if (const auto literal = node.find("String")) {
    HEADRACE_ASSIGN_OR_RETURN(const std::string_view text, literal->as_string());
    if (text.empty()) return unsupported(literal->pointer(), "an empty pattern");
    out.literal = std::string(text);
    return out;
  }
  HEADRACE_ASSIGN_OR_RETURN(const JsonNode regex, node.at("Regex"));
  HEADRACE_ASSIGN_OR_RETURN(const std::string_view text, regex.as_string());
  HEADRACE_ASSIGN_OR_RETURN(out.regex, Regex::compile(text, regex.pointer()));
  return out;
}

// A member that is one character.
Result<std::string> read_char(const JsonNode& owner, std::string_view key) {
  HEADRACE_ASSIGN_OR_RETURN(const std::string_view text, owner.string_at(key));
  if (text.empty() || utf8_length(text[0]) != text.size()) {
    return malformed(owner.pointer() + "/" + std::string(key), "not one character");
  }
  return std::string(text);
}

Result<SplitBehavior> read_behavior(const JsonNode& node) {
  HEADRACE_ASSIGN_OR_RETURN(const std::string_view name, node.as_string());
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  return unsupported(node.pointer(), "the behavior {} is not known", name);
}

struct MetaspaceFields {
  std::string replacement;
  PrependScheme scheme = PrependScheme::kAlways;
  bool split = true;
};

Result<MetaspaceFields> read_metaspace(const JsonNode& node) {
  MetaspaceFields out;
  HEADRACE_ASSIGN_OR_RETURN(out.replacement, read_char(node, "replacement"));
  HEADRACE_ASSIGN_OR_RETURN(const std::string_view scheme, node.string_or("prepend_scheme", "always"));
  if (scheme == "never") {
    out.scheme = PrependScheme::kNever;
  } else if (scheme == "first") {
    out.scheme = PrependScheme::kFirst;
  } else if (scheme != "always") {
    return unsupported(node.pointer() + "/prepend_scheme", "{} is not known", scheme);
  }
  HEADRACE_ASSIGN_OR_RETURN(const bool prefix, node.bool_or("add_prefix_space", true));
  if (!prefix) {
    if (node.find("prepend_scheme") && out.scheme != PrependScheme::kNever) {
      return malformed(node.pointer() + "/add_prefix_space", "does not go with the prepend_scheme {}", scheme);
    }
    if (!node.find("prepend_scheme")) {
      return malformed(node.pointer() + "/add_prefix_space", "false without a prepend_scheme, as the reference says");
    }
  }
  HEADRACE_ASSIGN_OR_RETURN(out.split, node.bool_or("split", true));
  return out;
}

Result<NormalizerPtr> read_replace(const JsonNode& node) {
  HEADRACE_ASSIGN_OR_RETURN(Pattern pattern, read_pattern(node));
  HEADRACE_ASSIGN_OR_RETURN(const std::string_view content, node.string_at("content"));
  if (pattern.literal) return make_replace_normalizer(*std::move(pattern.literal), std::string(content));
  return make_regex_replace_normalizer(*std::move(pattern.regex), std::string(content));
}

}  // namespace

Result<std::string> decode_base64(std::string_view text, const std::string& place) {
  std::string out;
  out.reserve(text.size() / 4 * 3);
  while (text.ends_with('=')) text.remove_suffix(1);
  uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    uint32_t value = 0;
    if (c >= 'A' && c <= 'Z') {
      value = static_cast<uint32_t>(c - 'A');
    } else if (c >= 'a' && c <= 'z') {
      value = static_cast<uint32_t>(c - 'a' + 26);
    } else if (c >= '0' && c <= '9') {
      value = static_cast<uint32_t>(c - '0' + 52);
    } else if (c == '+' || c == '/') {
      value = c == '+' ? 62 : 63;
    } else {
      return malformed(place, "not base64");
    }
    bits = (bits << 6 | value) & 0xFFFFFF;
    count += 6;
    if (count >= 8) {
      count -= 8;
      out.push_back(static_cast<char>(bits >> count & 0xFF));
    }
  }
  return out;
}

Result<NormalizerPtr> read_normalizer(const JsonNode& node, int depth) {
  if (depth > kMaxDepth) return too_deep(node);
  HEADRACE_ASSIGN_OR_RETURN(const std::string_view type, node.string_at("type"));
  if (type == "Sequence") {
    HEADRACE_ASSIGN_OR_RETURN(const JsonNode list, node.at("normalizers"));
    HEADRACE_ASSIGN_OR_RETURN(const auto items, list.as_list());
    std::vector<NormalizerPtr> steps;
    for (const JsonNode& item : items) {
      HEADRACE_ASSIGN_OR_RETURN(NormalizerPtr step, read_normalizer(item, depth + 1));
      steps.push_back(std::move(step));
    }
    return make_sequence_normalizer(std::move(steps));
  }
  if (type == "NFC") return make_unicode_normalizer(NormalForm::kNfc);
  if (type == "NFD") return make_unicode_normalizer(NormalForm::kNfd);
  if (type == "NFKC") return make_unicode_normalizer(NormalForm::kNfkc);
  if (type == "NFKD") return make_unicode_normalizer(NormalForm::kNfkd);
  if (type == "Lowercase") return make_lowercase_normalizer();
  if (type == "StripAccents") return make_strip_accents_normalizer();
  if (type == "Nmt") return make_nmt_normalizer();
  if (type == "ByteLevel") return make_byte_level_normalizer();
  if (type == "Replace") return read_replace(node);
  if (type == "Strip") {
    HEADRACE_ASSIGN_OR_RETURN(const bool left, node.bool_at("strip_left"));
    HEADRACE_ASSIGN_OR_RETURN(const bool right, node.bool_at("strip_right"));
    return make_strip_normalizer(left, right);
  }
  if (type == "Prepend") {
    HEADRACE_ASSIGN_OR_RETURN(const std::string_view prefix, node.string_at("prepend"));
    return make_prepend_normalizer(std::string(prefix));
  }
  if (type == "Precompiled") {
    HEADRACE_ASSIGN_OR_RETURN(const JsonNode map, node.at("precompiled_charsmap"));
    HEADRACE_ASSIGN_OR_RETURN(const std::string_view text, map.as_string());
    HEADRACE_ASSIGN_OR_RETURN(const std::string bytes, decode_base64(text, map.pointer()));
    return make_precompiled_normalizer(bytes, map.pointer());
  }
  if (type == "BertNormalizer") {
    BertNormalizerOptions options;
    HEADRACE_ASSIGN_OR_RETURN(options.clean_text, node.bool_at("clean_text"));
    HEADRACE_ASSIGN_OR_RETURN(options.handle_chinese_chars, node.bool_at("handle_chinese_chars"));
    HEADRACE_ASSIGN_OR_RETURN(options.lowercase, node.bool_at("lowercase"));
    HEADRACE_ASSIGN_OR_RETURN(options.strip_accents, node.bool_or("strip_accents", options.lowercase));
    return make_bert_normalizer(options);
  }
  return unknown_component(node, "normalizer", type);
}

Result<PreTokenizerPtr> read_pre_tokenizer(const JsonNode& node, int depth) {
  if (depth > kMaxDepth) return too_deep(node);
  HEADRACE_ASSIGN_OR_RETURN(const std::string_view type, node.string_at("type"));
  if (type == "Sequence") {
    HEADRACE_ASSIGN_OR_RETURN(const JsonNode list, node.at("pretokenizers"));
    HEADRACE_ASSIGN_OR_RETURN(const auto items, list.as_list());
    std::vector<PreTokenizerPtr> steps;
    for (const JsonNode& item : items) {
      HEADRACE_ASSIGN_OR_RETURN(PreTokenizerPtr step, read_pre_tokenizer(item, depth + 1));
      steps.push_back(std::move(step));
    }
    return make_sequence_pre_tokenizer(std::move(steps));
  }
  if (type == "ByteLevel") {
    HEADRACE_ASSIGN_OR_RETURN(const bool prefix, node.bool_at("add_prefix_space"));
    HEADRACE_ASSIGN_OR_RETURN(const bool use_regex, node.bool_or("use_regex", true));
    std::optional<Regex> pattern;
    if (use_regex) {
      HEADRACE_ASSIGN_OR_RETURN(pattern, Regex::compile(kGpt2Pattern, node.pointer()));
    }
    return make_byte_level_pre_tokenizer(prefix, std::move(pattern));
  }
  if (type == "Split") {
    HEADRACE_ASSIGN_OR_RETURN(Pattern pattern, read_pattern(node));
    HEADRACE_ASSIGN_OR_RETURN(const JsonNode behavior_node, node.at("behavior"));
    HEADRACE_ASSIGN_OR_RETURN(const SplitBehavior behavior, read_behavior(behavior_node));
    HEADRACE_ASSIGN_OR_RETURN(const bool invert, node.bool_at("invert"));
    if (pattern.literal) return make_literal_split(*std::move(pattern.literal), behavior, invert);
    return make_regex_split(*std::move(pattern.regex), behavior, invert);
  }
  if (type == "Metaspace") {
    HEADRACE_ASSIGN_OR_RETURN(MetaspaceFields fields, read_metaspace(node));
    return make_metaspace_pre_tokenizer(std::move(fields.replacement), fields.scheme, fields.split);
  }
  if (type == "BertPreTokenizer") {
    std::vector<PreTokenizerPtr> steps;
    steps.push_back(make_char_split(is_whitespace, SplitBehavior::kRemoved));
    steps.push_back(make_char_split(is_punctuation, SplitBehavior::kIsolated));
    return make_sequence_pre_tokenizer(std::move(steps));
  }
  if (type == "Whitespace") return make_whitespace_pre_tokenizer();
  if (type == "WhitespaceSplit") return make_char_split(is_whitespace, SplitBehavior::kRemoved);
  if (type == "Punctuation") {
    SplitBehavior behavior = SplitBehavior::kIsolated;
    if (const auto given = node.find("behavior")) {
      HEADRACE_ASSIGN_OR_RETURN(behavior, read_behavior(*given));
    }
    return make_char_split(is_punctuation, behavior);
  }
  if (type == "Digits") {
    HEADRACE_ASSIGN_OR_RETURN(const bool single, node.bool_at("individual_digits"));
    return make_char_split(is_numeric, single ? SplitBehavior::kIsolated : SplitBehavior::kContiguous);
  }
  if (type == "CharDelimiterSplit" || type == "Delimiter") {
    HEADRACE_ASSIGN_OR_RETURN(std::string delimiter, read_char(node, "delimiter"));
    return make_literal_split(std::move(delimiter), SplitBehavior::kRemoved, false);
  }
  if (type == "FixedLength") {
    size_t length = 5;
    if (node.find("length")) {
      HEADRACE_ASSIGN_OR_RETURN(length, node.size_at("length"));
    }
    if (length == 0) return malformed(node.pointer() + "/length", "zero");
    return make_fixed_length_pre_tokenizer(length);
  }
  return unknown_component(node, "pre-tokenizer", type);
}

namespace {

Status push_id(const JsonNode& node, std::vector<int32_t>& out) {
  HEADRACE_ASSIGN_OR_RETURN(const int64_t id, node.as_int());
  if (id < 0 || id > kMaxTokenId) return malformed(node.pointer(), "id {} is out of range", id);
  out.push_back(static_cast<int32_t>(id));
  return {};
}

Status read_template(const JsonNode& node, std::vector<int32_t>& prefix, std::vector<int32_t>& suffix) {
  HEADRACE_ASSIGN_OR_RETURN(const JsonNode single, node.at("single"));
  HEADRACE_ASSIGN_OR_RETURN(const auto pieces, single.as_list());
  bool seen = false;
  for (const JsonNode& piece : pieces) {
    if (const auto sequence = piece.find("Sequence")) {
      HEADRACE_ASSIGN_OR_RETURN(const std::string_view id, sequence->string_at("id"));
      if (id != "A" || seen) return unsupported(piece.pointer(), "a template of one text shows it once, as A");
      seen = true;
      continue;
    }
    HEADRACE_ASSIGN_OR_RETURN(const JsonNode special, piece.at("SpecialToken"));
    HEADRACE_ASSIGN_OR_RETURN(const std::string_view name, special.string_at("id"));
    HEADRACE_ASSIGN_OR_RETURN(const JsonNode tokens, node.at("special_tokens"));
    HEADRACE_ASSIGN_OR_RETURN(const JsonNode token, tokens.at(name));
    HEADRACE_ASSIGN_OR_RETURN(const JsonNode ids, token.at("ids"));
    HEADRACE_ASSIGN_OR_RETURN(const auto list, ids.as_list());
    for (const JsonNode& id : list) HEADRACE_RETURN_IF_ERROR(push_id(id, seen ? suffix : prefix));
  }
  if (!seen) return unsupported(single.pointer(), "a template without its text");
  return {};
}

// ["[SEP]", 3]
Status read_named_id(const JsonNode& owner, std::string_view key, std::vector<int32_t>& out) {
  HEADRACE_ASSIGN_OR_RETURN(const JsonNode node, owner.at(key));
  HEADRACE_ASSIGN_OR_RETURN(const auto pair, node.as_list());
  if (pair.size() != 2) return malformed(node.pointer(), "not a token and its id");
  return push_id(pair[1], out);
}

}  // namespace

Status read_post_processor(const JsonNode& node, std::vector<int32_t>& prefix, std::vector<int32_t>& suffix,
                           int depth) {
  if (depth > kMaxDepth) return too_deep(node);
  HEADRACE_ASSIGN_OR_RETURN(const std::string_view type, node.string_at("type"));
  if (type == "ByteLevel") return {};  // it trims offsets, which nobody asks for here
  if (type == "Sequence") {
    HEADRACE_ASSIGN_OR_RETURN(const JsonNode list, node.at("processors"));
    HEADRACE_ASSIGN_OR_RETURN(const auto items, list.as_list());
    for (const JsonNode& item : items) HEADRACE_RETURN_IF_ERROR(read_post_processor(item, prefix, suffix, depth + 1));
    return {};
  }
  // A later processor stands around the earlier ones.
  std::vector<int32_t> before, behind;
  if (type == "TemplateProcessing") {
    HEADRACE_RETURN_IF_ERROR(read_template(node, before, behind));
  } else if (type == "BertProcessing" || type == "RobertaProcessing") {
    HEADRACE_RETURN_IF_ERROR(read_named_id(node, "cls", before));
    HEADRACE_RETURN_IF_ERROR(read_named_id(node, "sep", behind));
  } else {
    return unknown_component(node, "post-processor", type);
  }
  prefix.insert(prefix.begin(), before.begin(), before.end());
  suffix.insert(suffix.end(), behind.begin(), behind.end());
  return {};
}

namespace {

// Steps in order; from `joined` on the tokens are one text.
Status add_decoder(const JsonNode& node, Decoder& decoder, bool& joined, int depth) {
  if (depth > kMaxDepth) return too_deep(node);
  HEADRACE_ASSIGN_OR_RETURN(const std::string_view type, node.string_at("type"));
  if (type == "Sequence") {
    HEADRACE_ASSIGN_OR_RETURN(const JsonNode list, node.at("decoders"));
    HEADRACE_ASSIGN_OR_RETURN(const auto items, list.as_list());
    for (const JsonNode& item : items) HEADRACE_RETURN_IF_ERROR(add_decoder(item, decoder, joined, depth + 1));
    return {};
  }
  if (type == "Fuse") {
    joined = true;
    return {};
  }
  if (decoder.end_of_word_suffix && !joined) {
    return unsupported(node.pointer(), "the decoder {} behind a BPEDecoder", type);
  }
  TokenStep step;
  if (type == "Strip") {
    HEADRACE_ASSIGN_OR_RETURN(step.strip_char, read_char(node, "content"));
    HEADRACE_ASSIGN_OR_RETURN(step.strip_left, node.size_at("start"));
    HEADRACE_ASSIGN_OR_RETURN(step.strip_right, node.size_at("stop"));
    if (joined) {
      decoder.text_steps.push_back(
          {TextStep::Kind::kStrip, {}, {}, step.strip_char, step.strip_left, step.strip_right});
      return {};
    }
    step.kind = TokenStep::Kind::kStrip;
  } else if (type == "Replace") {
    HEADRACE_ASSIGN_OR_RETURN(Pattern pattern, read_pattern(node));
    HEADRACE_ASSIGN_OR_RETURN(const std::string_view content, node.string_at("content"));
    if (pattern.literal && joined) {
      decoder.text_steps.push_back(
          {TextStep::Kind::kReplace, *std::move(pattern.literal), std::string(content), {}, 0, 0});
      return {};
    }
    step.kind = pattern.literal ? TokenStep::Kind::kReplace : TokenStep::Kind::kRegexReplace;
    if (pattern.literal) step.from = *std::move(pattern.literal);
    step.pattern = std::move(pattern.regex);
    step.to = std::string(content);
  } else if (type == "ByteLevel") {
    step.kind = TokenStep::Kind::kByteLevel;
  } else if (type == "ByteFallback") {
    step.kind = TokenStep::Kind::kByteFallback;
  } else if (type == "Metaspace") {
    HEADRACE_ASSIGN_OR_RETURN(MetaspaceFields fields, read_metaspace(node));
    step.kind = TokenStep::Kind::kMetaspace;
    step.from = std::move(fields.replacement);
    step.flag = fields.scheme != PrependScheme::kNever;
  } else if (type == "WordPiece") {
    HEADRACE_ASSIGN_OR_RETURN(const std::string_view prefix, node.string_at("prefix"));
    HEADRACE_ASSIGN_OR_RETURN(step.flag, node.bool_at("cleanup"));
    step.kind = TokenStep::Kind::kWordPiece;
    step.from = std::string(prefix);
  } else if (type == "BPEDecoder") {
    HEADRACE_ASSIGN_OR_RETURN(const std::string_view suffix, node.string_at("suffix"));
    if (joined || !decoder.token_steps.empty() || suffix.empty()) {
      return unsupported(node.pointer(), "a BPEDecoder behind other decoders, or without a suffix");
    }
    decoder.end_of_word_suffix = std::string(suffix);
    return {};
  } else {
    return unknown_component(node, "decoder", type);
  }
  if (joined) return unsupported(node.pointer(), "the decoder {} on joined tokens", type);
  if (step.kind == TokenStep::Kind::kByteLevel) joined = true;
  decoder.token_steps.push_back(std::move(step));
  return {};
}

}  // namespace

Result<Decoder> read_decoder(const JsonNode& node) {
  Decoder decoder;
  bool joined = false;
  HEADRACE_RETURN_IF_ERROR(add_decoder(node, decoder, joined, 0));
  return decoder;
}

}  // namespace headrace::text
