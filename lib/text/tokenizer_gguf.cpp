// Tokenizer::from_gguf: the tokenizers of GGUF metadata.
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "text/gguf_pre_tokenizer.h"
#include "text/tokenizer.h"
#include "text/tokenizer_parts.h"
#include "text/unicode.h"
#include "text/utf8.h"

namespace headrace::text {
namespace {

constexpr std::string_view kSpaceMark = "\xE2\x96\x81";  // U+2581

GgufTokenType type_of(const GgufTokenizerSpec& spec, size_t id) {
  return spec.token_types.empty() ? GgufTokenType::kNormal : static_cast<GgufTokenType>(spec.token_types[id]);
}

// Tokens that are looked for in the text rather than made from pieces.
bool is_added_type(GgufTokenType type) {
  return type == GgufTokenType::kControl || type == GgufTokenType::kUserDefined || type == GgufTokenType::kUnknown;
}

Status check_spec(const GgufTokenizerSpec& spec) {
  const size_t count = spec.tokens.size();
  if (count == 0) return malformed("tokenizer.ggml.tokens", "no tokens");
  if (count > static_cast<size_t>(kMaxTokenId)) {
    return malformed("tokenizer.ggml.tokens", "{} tokens; the most is {}", count, kMaxTokenId);
  }
  if (!spec.scores.empty() && spec.scores.size() != count) {
    return malformed("tokenizer.ggml.scores", "{} scores for {} tokens", spec.scores.size(), count);
  }
  if (!spec.token_types.empty() && spec.token_types.size() != count) {
    return malformed("tokenizer.ggml.token_type", "{} types for {} tokens", spec.token_types.size(), count);
  }
  for (size_t id = 0; id < count; ++id) {
    if (utf8_invalid_offset(spec.tokens[id]) != std::string_view::npos) {
      return malformed(fmt::format("tokenizer.ggml.tokens[{}]", id), "not UTF-8");
    }
    if (!spec.token_types.empty() && (spec.token_types[id] < static_cast<int32_t>(GgufTokenType::kNormal) ||
                                      spec.token_types[id] > static_cast<int32_t>(GgufTokenType::kByte))) {
      return malformed(fmt::format("tokenizer.ggml.token_type[{}]", id), "{} is no type of tokens",
                       spec.token_types[id]);
    }
    if (!spec.scores.empty() && !std::isfinite(spec.scores[id])) {
      return malformed(fmt::format("tokenizer.ggml.scores[{}]", id), "{} is not finite", spec.scores[id]);
    }
    if (type_of(spec, id) == GgufTokenType::kByte && !parse_byte_token(spec.tokens[id])) {
      return malformed(fmt::format("tokenizer.ggml.tokens[{}]", id), "a byte token spelled {}, not <0xXX>",
                       spec.tokens[id]);
    }
  }
  const auto check_id = [&](const std::optional<int32_t>& id, const char* key) -> Status {
    if (!id || (*id >= 0 && static_cast<size_t>(*id) < count)) return {};
    return malformed(key, "id {} is not one of {} tokens", *id, count);
  };
  HEADRACE_RETURN_IF_ERROR(check_id(spec.bos_id, "tokenizer.ggml.bos_token_id"));
  HEADRACE_RETURN_IF_ERROR(check_id(spec.eos_id, "tokenizer.ggml.eos_token_id"));
  HEADRACE_RETURN_IF_ERROR(check_id(spec.unk_id, "tokenizer.ggml.unknown_token_id"));
  HEADRACE_RETURN_IF_ERROR(check_id(spec.pad_id, "tokenizer.ggml.padding_token_id"));
  HEADRACE_RETURN_IF_ERROR(check_id(spec.sep_id, "tokenizer.ggml.seperator_token_id"));
  HEADRACE_RETURN_IF_ERROR(check_id(spec.cls_id, "tokenizer.ggml.cls_token_id"));
  for (const int32_t id : spec.eog_ids) HEADRACE_RETURN_IF_ERROR(check_id(id, "tokenizer.ggml.eot_token_id"));
  return {};
}

// All tokens, and the added ones among them. An empty spelling (a hole in some files) has no token.
Status add_tokens(const GgufTokenizerSpec& spec, TokenizerParts& parts) {
  size_t bytes = 0;
  for (const std::string& token : spec.tokens) bytes += token.size();
  parts.vocabulary.reserve(spec.tokens.size(), bytes);
  for (size_t id = 0; id < spec.tokens.size(); ++id) {
    if (spec.tokens[id].empty()) continue;
    if (const auto other = parts.vocabulary.find(spec.tokens[id])) {
      return malformed(fmt::format("tokenizer.ggml.tokens[{}]", id), "{} is token {} already", spec.tokens[id], *other);
    }
    parts.vocabulary.add(spec.tokens[id], static_cast<int32_t>(id));
  }
  std::vector<AddedToken> added;
  for (size_t id = 0; id < spec.tokens.size(); ++id) {
    if (!is_added_type(type_of(spec, id))) continue;
    AddedToken token;
    token.content = spec.tokens[id];
    token.special = type_of(spec, id) != GgufTokenType::kUserDefined;
    added.push_back(std::move(token));
  }
  HEADRACE_ASSIGN_OR_RETURN(parts.added, AddedVocabulary::create(std::move(added), parts.vocabulary, nullptr));
  return {};
}

void add_bos_and_eos(const GgufTokenizerSpec& spec, bool bos, bool eos, TokenizerParts& parts) {
  if (spec.add_bos.value_or(bos) && parts.bos_id) parts.prefix_ids.push_back(*parts.bos_id);
  if (spec.add_eos.value_or(eos) && parts.eos_id) parts.suffix_ids.push_back(*parts.eos_id);
}

TokenStep replace_step(std::string_view from, std::string_view to) {
  TokenStep step;
  step.kind = TokenStep::Kind::kReplace;
  step.from = std::string(from);
  step.to = std::string(to);
  return step;
}

TokenStep simple_step(TokenStep::Kind kind) {
  TokenStep step;
  step.kind = kind;
  return step;
}

// "left right"; the space is the first one behind the first byte, which may itself be a space.
Status read_merges(const GgufTokenizerSpec& spec, const Vocabulary& vocabulary, std::vector<BpeMerge>& merges) {
  merges.reserve(spec.merges.size());
  std::string joined;
  for (size_t i = 0; i < spec.merges.size(); ++i) {
    const std::string_view line = spec.merges[i];
    const size_t space = line.find(' ', 1);
    const auto place = [&] { return fmt::format("tokenizer.ggml.merges[{}]", i); };
    if (space == std::string_view::npos) return malformed(place(), "not two tokens with a space between");
    const std::string_view left = line.substr(0, space), right = line.substr(space + 1);
    joined.assign(left).append(right);
    const auto left_id = vocabulary.find(left), right_id = vocabulary.find(right), merged = vocabulary.find(joined);
    if (!left_id || !right_id || !merged) return malformed(place(), "a token of the merge is not in the vocabulary");
    merges.push_back({*left_id, *right_id, *merged});
  }
  return {};
}

Status build_byte_level(const GgufTokenizerSpec& spec, TokenizerParts& parts) {
  HEADRACE_ASSIGN_OR_RETURN(GgufPreTokenizer pre, make_gguf_pre_tokenizer(spec.pre));
  if (spec.merges.empty()) return malformed("tokenizer.ggml.merges", "no merges");
  std::vector<BpeMerge> merges;
  HEADRACE_RETURN_IF_ERROR(read_merges(spec, parts.vocabulary, merges));
  BpeOptions options;
  options.ignore_merges = pre.ignore_merges;
  parts.normalizer = std::move(pre.normalizer);
  if (spec.add_space_prefix.value_or(false)) {
    return unsupported("tokenizer.ggml.add_space_prefix", "a space put before byte-level pieces");
  }
  parts.pre_tokenizer = std::move(pre.pre_tokenizer);
  parts.model = make_bpe_model(parts.vocabulary, merges, std::move(options));
  parts.decoder.token_steps.push_back(simple_step(TokenStep::Kind::kByteLevel));
  add_bos_and_eos(spec, pre.add_bos, false, parts);
  return {};
}

void add_space_mark_decoder(bool strip_first, TokenizerParts& parts) {
  parts.decoder.token_steps.push_back(replace_step(kSpaceMark, " "));
  parts.decoder.token_steps.push_back(simple_step(TokenStep::Kind::kByteFallback));
  if (strip_first) parts.decoder.text_steps.push_back({TextStep::Kind::kStrip, {}, {}, " ", 1, 0});
}

Status build_sentencepiece(const GgufTokenizerSpec& spec, TokenizerParts& parts) {
  if (spec.scores.empty()) return malformed("tokenizer.ggml.scores", "missing");
  const bool prefix = spec.add_space_prefix.value_or(true);
  std::vector<NormalizerPtr> steps;
  if (prefix) steps.push_back(make_prepend_normalizer(std::string(kSpaceMark)));
  steps.push_back(make_replace_normalizer(" ", std::string(kSpaceMark)));
  parts.normalizer = make_sequence_normalizer(std::move(steps));
  std::vector<float> scores = spec.scores;
  for (size_t id = 0; id < scores.size(); ++id) {
    const GgufTokenType type = type_of(spec, id);
    if (type == GgufTokenType::kControl || type == GgufTokenType::kUnknown || type == GgufTokenType::kByte) {
      scores[id] = std::numeric_limits<float>::quiet_NaN();
    }
  }
  if (!parts.unk_id) parts.unk_id = parts.vocabulary.find("<unk>");
  parts.model = make_score_bpe_model(parts.vocabulary, std::move(scores), parts.unk_id);
  add_space_mark_decoder(prefix, parts);
  add_bos_and_eos(spec, true, false, parts);
  return {};
}

// Merges over characters, spaces as U+2581 and bytes as <0xXX>.
Status build_gemma4(const GgufTokenizerSpec& spec, TokenizerParts& parts) {
  std::vector<BpeMerge> merges;
  HEADRACE_RETURN_IF_ERROR(read_merges(spec, parts.vocabulary, merges));
  parts.normalizer = make_replace_normalizer(" ", std::string(kSpaceMark));
  BpeOptions options;
  if (!parts.unk_id) parts.unk_id = parts.vocabulary.find("<unk>");
  options.unk_id = parts.unk_id;
  options.fuse_unk = true;
  options.byte_fallback = true;
  parts.model = make_bpe_model(parts.vocabulary, merges, std::move(options));
  add_space_mark_decoder(false, parts);
  add_bos_and_eos(spec, true, false, parts);
  return {};
}

Status build_unigram(const GgufTokenizerSpec& spec, TokenizerParts& parts) {
  if (spec.scores.empty()) return malformed("tokenizer.ggml.scores", "missing");
  std::vector<NormalizerPtr> steps;
  if (!spec.precompiled_charsmap.empty()) {
    HEADRACE_ASSIGN_OR_RETURN(NormalizerPtr map, make_precompiled_normalizer(spec.precompiled_charsmap,
                                                                             "tokenizer.ggml.precompiled_charsmap"));
    steps.push_back(std::move(map));
  }
  if (spec.remove_extra_whitespaces.value_or(false)) {
    HEADRACE_ASSIGN_OR_RETURN(Regex runs, Regex::compile(" {2,}", "tokenizer.ggml.remove_extra_whitespaces"));
    steps.push_back(make_strip_normalizer(true, true));
    steps.push_back(make_regex_replace_normalizer(std::move(runs), " "));
  }
  parts.normalizer = make_sequence_normalizer(std::move(steps));
  const bool prefix = spec.add_space_prefix.value_or(true);
  parts.pre_tokenizer = make_metaspace_pre_tokenizer(std::string(kSpaceMark),
                                                     prefix ? PrependScheme::kAlways : PrependScheme::kNever, true);
  std::vector<double> scores(spec.scores.begin(), spec.scores.end());
  for (size_t id = 0; id < scores.size(); ++id) {
    const GgufTokenType type = type_of(spec, id);
    if (type != GgufTokenType::kNormal && type != GgufTokenType::kUserDefined) {
      scores[id] = std::numeric_limits<double>::quiet_NaN();
    }
  }
  if (!parts.unk_id) parts.unk_id = parts.vocabulary.find("<unk>");
  UnigramOptions options;
  options.unk_id = parts.unk_id;
  options.byte_fallback = true;  // without effect where there are no byte tokens
  parts.model = make_unigram_model(parts.vocabulary, std::move(scores), options);
  TokenStep decode = simple_step(TokenStep::Kind::kMetaspace);
  decode.from = std::string(kSpaceMark);
  decode.flag = prefix;
  parts.decoder.token_steps.push_back(std::move(decode));
  add_bos_and_eos(spec, false, true, parts);
  return {};
}

// GGUF marks the start of a word with U+2581 where WordPiece marks the rest of it with ##.
void respell_wordpiece(GgufTokenizerSpec& spec) {
  for (size_t id = 0; id < spec.tokens.size(); ++id) {
    std::string& token = spec.tokens[id];
    if (type_of(spec, id) != GgufTokenType::kNormal || token.empty()) continue;
    if (token.starts_with(kSpaceMark)) {
      token.erase(0, kSpaceMark.size());
    } else if (!(token.starts_with('[') && token.ends_with(']'))) {
      token.insert(0, "##");
    }
  }
}

// The metadata does not tell cased vocabularies from uncased ones, but an uncased one has no word in
// capitals.
bool has_capitals(const GgufTokenizerSpec& spec) {
  for (size_t id = 0; id < spec.tokens.size(); ++id) {
    const std::string& token = spec.tokens[id];
    if (type_of(spec, id) != GgufTokenType::kNormal || token.starts_with('[')) continue;
    if (std::any_of(token.begin(), token.end(), [](char c) { return c >= 'A' && c <= 'Z'; })) return true;
  }
  return false;
}

Status build_wordpiece(const GgufTokenizerSpec& spec, TokenizerParts& parts) {
  BertNormalizerOptions bert;
  bert.lowercase = bert.strip_accents = !has_capitals(spec);
  parts.normalizer = make_bert_normalizer(bert);
  std::vector<PreTokenizerPtr> steps;
  steps.push_back(make_char_split(is_whitespace, SplitBehavior::kRemoved));
  steps.push_back(make_char_split(is_punctuation, SplitBehavior::kIsolated));
  parts.pre_tokenizer = make_sequence_pre_tokenizer(std::move(steps));
  if (!parts.unk_id) parts.unk_id = parts.vocabulary.find("[UNK]");
  WordPieceOptions options;
  options.unk_id = parts.unk_id;
  options.continuing_subword_prefix = "##";
  parts.model = make_wordpiece_model(parts.vocabulary, std::move(options));
  TokenStep decode = simple_step(TokenStep::Kind::kWordPiece);
  decode.from = "##";
  decode.flag = true;
  parts.decoder.token_steps.push_back(std::move(decode));
  const auto first = spec.cls_id ? spec.cls_id : spec.bos_id ? spec.bos_id : parts.vocabulary.find("[CLS]");
  const auto last = spec.sep_id ? spec.sep_id : spec.eos_id ? spec.eos_id : parts.vocabulary.find("[SEP]");
  if (first && spec.add_bos.value_or(true)) parts.prefix_ids.push_back(*first);
  if (last && spec.add_eos.value_or(true)) parts.suffix_ids.push_back(*last);
  return {};
}

}  // namespace

Result<std::shared_ptr<const Tokenizer>> Tokenizer::from_gguf(GgufTokenizerSpec spec) {
  HEADRACE_RETURN_IF_ERROR(check_spec(spec));
  auto parts = std::make_unique<TokenizerParts>();
  if (spec.model == "bert") respell_wordpiece(spec);
  HEADRACE_RETURN_IF_ERROR(add_tokens(spec, *parts));
  parts->bos_id = spec.bos_id;
  parts->eos_id = spec.eos_id;
  parts->pad_id = spec.pad_id;
  parts->unk_id = spec.unk_id;
  if (spec.model == "gpt2") {
    HEADRACE_RETURN_IF_ERROR(build_byte_level(spec, *parts));
  } else if (spec.model == "llama") {
    HEADRACE_RETURN_IF_ERROR(build_sentencepiece(spec, *parts));
  } else if (spec.model == "gemma4") {
    HEADRACE_RETURN_IF_ERROR(build_gemma4(spec, *parts));
  } else if (spec.model == "t5") {
    HEADRACE_RETURN_IF_ERROR(build_unigram(spec, *parts));
  } else if (spec.model == "bert") {
    HEADRACE_RETURN_IF_ERROR(build_wordpiece(spec, *parts));
  } else {
    return unsupported("tokenizer.ggml.model", "the tokenizer model \"{}\" is not known", spec.model);
  }
  auto& ends = parts->end_of_generation_ids;
  ends = spec.eog_ids;
  if (spec.eos_id) ends.push_back(*spec.eos_id);
  std::sort(ends.begin(), ends.end());
  ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
  return std::shared_ptr<const Tokenizer>(new Tokenizer(std::move(parts)));
}

}  // namespace headrace::text
