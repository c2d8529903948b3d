// Tokenizer::from_json: the tokenizer.json of Hugging Face's tokenizers.
#include <cmath>

#include <algorithm>
#include <charconv>
#include <limits>
#include <utility>

#include "text/json_node.h"
#include "text/tokenizer.h"
#include "text/tokenizer_json_parts.h"
#include "text/tokenizer_parts.h"

namespace headrace::text {
namespace {

// {"token": id, ...}. Ids may leave gaps. Two tokens of one id are refused: the reference takes such a file and decodes the id
// as either of them, by chance.
Status read_vocabulary(const JsonNode& node, Vocabulary& vocabulary) {
  HEADRACE_ASSIGN_OR_RETURN(const simdjson::dom::object object, node.as_object());
  vocabulary.reserve(object.size(), object.size() * 8);
  for (const auto field : object) {
    const auto place = [&] { return node.pointer() + "/" + std::string(field.key); };
    uint64_t id = 0;
    if (int64_t negative = 0; field.value.get(negative) == simdjson::SUCCESS && negative < 0) {
      return malformed(place(), "the id {} is not in [0, {}]", negative, kMaxTokenId);
    }
    if (field.value.get(id) != simdjson::SUCCESS) return malformed(place(), "not an id in [0, {}]", kMaxTokenId);
    if (id > static_cast<uint64_t>(kMaxTokenId)) {
      return malformed(place(), "the id {} is not in [0, {}]", id, kMaxTokenId);
    }
    const auto index = static_cast<int32_t>(id);
    if (vocabulary.has(index) && vocabulary.token(index) != field.key) {
      return malformed(place(), "the id {} is that of {} already", id, vocabulary.token(index));
    }
    vocabulary.add(field.key, index);
  }
  return {};
}

// Each merge is "left right" or ["left", "right"].
Status read_merges(const JsonNode& node, const Vocabulary& vocabulary, size_t prefix_size,
                   std::vector<BpeMerge>& merges) {
  simdjson::dom::array array;
  if (node.element().get(array) != simdjson::SUCCESS) return malformed(node.pointer(), "not an array");
  merges.reserve(array.size());
  std::string joined;
  size_t index = 0;
  for (const simdjson::dom::element item : array) {
    const auto place = [&] { return node.pointer() + "/" + std::to_string(index); };
    std::string_view left, right, line;
    simdjson::dom::array pair;
    if (item.get(line) == simdjson::SUCCESS) {
      if (line.starts_with("#version")) {
        ++index;
        continue;
      }
      const size_t space = line.find(' ');
      if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos) {
        return malformed(place(), "not two tokens with a space between");
      }
      left = line.substr(0, space);
      right = line.substr(space + 1);
    } else if (item.get(pair) != simdjson::SUCCESS || pair.size() != 2 || pair.at(0).get(left) != simdjson::SUCCESS ||
               pair.at(1).get(right) != simdjson::SUCCESS) {
      return malformed(place(), "not a pair of tokens");
    }
    if (right.size() < prefix_size) return malformed(place(), "the right token is shorter than the subword prefix");
    joined.assign(left).append(right.substr(prefix_size));
    const auto left_id = vocabulary.find(left), right_id = vocabulary.find(right), merged = vocabulary.find(joined);
    if (!left_id || !right_id || !merged) return malformed(place(), "a token of the merge is not in the vocabulary");
    merges.push_back({*left_id, *right_id, *merged});
    ++index;
  }
  return {};
}

Status read_bpe(const JsonNode& node, TokenizerParts& parts) {
  HEADRACE_ASSIGN_OR_RETURN(const JsonNode vocabulary, node.at("vocab"));
  HEADRACE_RETURN_IF_ERROR(read_vocabulary(vocabulary, parts.vocabulary));
  if (const auto dropout = node.find("dropout")) {
    HEADRACE_ASSIGN_OR_RETURN(const double value, dropout->as_double());
    if (value != 0) return unsupported(dropout->pointer(), "random merges (dropout {})", value);
  }
  BpeOptions options;
  HEADRACE_ASSIGN_OR_RETURN(const std::string_view prefix, node.string_or("continuing_subword_prefix", ""));
  HEADRACE_ASSIGN_OR_RETURN(const std::string_view suffix, node.string_or("end_of_word_suffix", ""));
  options.continuing_subword_prefix = std::string(prefix);
  options.end_of_word_suffix = std::string(suffix);
  HEADRACE_ASSIGN_OR_RETURN(options.fuse_unk, node.bool_or("fuse_unk", false));
  HEADRACE_ASSIGN_OR_RETURN(options.byte_fallback, node.bool_or("byte_fallback", false));
  HEADRACE_ASSIGN_OR_RETURN(options.ignore_merges, node.bool_or("ignore_merges", false));
  if (const auto unknown = node.find("unk_token")) {
    HEADRACE_ASSIGN_OR_RETURN(const std::string_view token, unknown->as_string());
    options.unk_id = parts.vocabulary.find(token);
    options.unk_missing = !options.unk_id;
  }
  HEADRACE_ASSIGN_OR_RETURN(const JsonNode merges_node, node.at("merges"));
  std::vector<BpeMerge> merges;
  HEADRACE_RETURN_IF_ERROR(read_merges(merges_node, parts.vocabulary, prefix.size(), merges));
  parts.unk_id = options.unk_id;
  parts.model = make_bpe_model(parts.vocabulary, merges, std::move(options));
  return {};
}

// A score as the reference reads it: its JSON reader divides the digits, as a double, by a power of ten,
// which rounds twice. Segmentations of equal score are told apart by that last bit. `exact` is the nearest
// double, and its shortest decimal form is what the file says.
double reference_score(double exact) {
  char text[40];
  const auto written = std::to_chars(text, text + sizeof text, std::fabs(exact), std::chars_format::scientific);
  if (written.ec != std::errc()) return exact;
  uint64_t digits = 0;
  int scale = 0;
  const char* at = text;
  for (bool fraction = false; at != written.ptr && *at != 'e'; ++at) {
    if (*at == '.') {
      fraction = true;
    } else if (*at >= '0' && *at <= '9') {
      digits = digits * 10 + static_cast<uint64_t>(*at - '0');
      scale -= fraction;
    } else {
      return exact;  // not a finite number
    }
  }
  int exponent = 0;
  if (at != written.ptr) {
    ++at;
    if (at != written.ptr && *at == '+') ++at;
    std::from_chars(at, written.ptr, exponent);
  }
  scale += exponent;
  if (scale < -22 || scale > 0) return exact;  // integers and tiny numbers are read alike by both
  static constexpr double kPowers[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                                       1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
  return std::copysign(static_cast<double>(digits) / kPowers[-scale], exact);
}

Status read_unigram(const JsonNode& node, TokenizerParts& parts) {
  HEADRACE_ASSIGN_OR_RETURN(const JsonNode list, node.at("vocab"));
  simdjson::dom::array array;
  if (list.element().get(array) != simdjson::SUCCESS) return malformed(list.pointer(), "not an array");
  std::vector<double> scores;
  parts.vocabulary.reserve(array.size(), array.size() * 8);
  for (const simdjson::dom::element item : array) {
    simdjson::dom::array pair;
    std::string_view token;
    double score = 0;
    if (item.get(pair) != simdjson::SUCCESS || pair.size() != 2 || pair.at(0).get(token) != simdjson::SUCCESS ||
        pair.at(1).get(score) != simdjson::SUCCESS) {
      return malformed(list.pointer() + "/" + std::to_string(scores.size()), "not a token and its score");
    }
    if (scores.size() > static_cast<size_t>(kMaxTokenId)) {
      return malformed(list.pointer(), "more than {} tokens", kMaxTokenId);
    }
    parts.vocabulary.add(token, static_cast<int32_t>(scores.size()));
    scores.push_back(reference_score(score));
  }
  UnigramOptions options;
  HEADRACE_ASSIGN_OR_RETURN(options.byte_fallback, node.bool_or("byte_fallback", false));
  if (const auto unknown = node.find("unk_id")) {
    HEADRACE_ASSIGN_OR_RETURN(const int64_t id, unknown->as_int());
    if (id < 0 || static_cast<size_t>(id) >= scores.size()) {
      return malformed(unknown->pointer(), "id {} is not in the vocabulary", id);
    }
    options.unk_id = static_cast<int32_t>(id);
  }
  parts.unk_id = options.unk_id;
  parts.model = make_unigram_model(parts.vocabulary, std::move(scores), options);
  return {};
}

Status read_word_models(const JsonNode& node, bool word_piece, TokenizerParts& parts) {
  HEADRACE_ASSIGN_OR_RETURN(const JsonNode vocabulary, node.at("vocab"));
  HEADRACE_RETURN_IF_ERROR(read_vocabulary(vocabulary, parts.vocabulary));
  HEADRACE_ASSIGN_OR_RETURN(const std::string_view unknown, node.string_at("unk_token"));
  parts.unk_id = parts.vocabulary.find(unknown);
  if (!word_piece) {
    parts.model = make_word_level_model(parts.vocabulary, parts.unk_id);
    return {};
  }
  WordPieceOptions options;
  options.unk_id = parts.unk_id;
  HEADRACE_ASSIGN_OR_RETURN(const std::string_view prefix, node.string_at("continuing_subword_prefix"));
  options.continuing_subword_prefix = std::string(prefix);
  HEADRACE_ASSIGN_OR_RETURN(options.max_input_chars_per_word, node.size_at("max_input_chars_per_word"));
  parts.model = make_wordpiece_model(parts.vocabulary, std::move(options));
  return {};
}

Status read_model(const JsonNode& node, TokenizerParts& parts) {
  std::string_view type;
  if (const auto given = node.find("type")) {
    HEADRACE_ASSIGN_OR_RETURN(type, given->as_string());
  } else {
    // Files from before the type was written are told apart by their members.
    const auto vocabulary = node.find("vocab");
    type = node.find("merges")                     ? "BPE"
           : vocabulary && vocabulary->is_array()  ? "Unigram"
           : node.find("max_input_chars_per_word") ? "WordPiece"
                                                   : "WordLevel";
  }
  if (type == "BPE") return read_bpe(node, parts);
  if (type == "Unigram") return read_unigram(node, parts);
  if (type == "WordPiece") return read_word_models(node, true, parts);
  if (type == "WordLevel") return read_word_models(node, false, parts);
  return unsupported(node.pointer() + "/type", "the model {} is not known", type);
}

Status read_added_tokens(const JsonNode& node, TokenizerParts& parts) {
  HEADRACE_ASSIGN_OR_RETURN(const auto items, node.as_list());
  std::vector<AddedToken> tokens;
  for (const JsonNode& item : items) {
    AddedToken token;
    HEADRACE_ASSIGN_OR_RETURN(const std::string_view content, item.string_at("content"));
    token.content = std::string(content);
    HEADRACE_ASSIGN_OR_RETURN(token.single_word, item.bool_at("single_word"));
    HEADRACE_ASSIGN_OR_RETURN(token.lstrip, item.bool_at("lstrip"));
    HEADRACE_ASSIGN_OR_RETURN(token.rstrip, item.bool_at("rstrip"));
    HEADRACE_ASSIGN_OR_RETURN(token.normalized, item.bool_at("normalized"));
    HEADRACE_ASSIGN_OR_RETURN(token.special, item.bool_at("special"));
    tokens.push_back(std::move(token));
  }
  HEADRACE_ASSIGN_OR_RETURN(parts.added,
                            AddedVocabulary::create(std::move(tokens), parts.vocabulary, parts.normalizer.get()));
  return {};
}

Status read_tokenizer(const JsonNode& root, TokenizerParts& parts) {
  if (!root.is_object()) return malformed("/", "not an object");
  if (const auto version = root.find("version")) {
    HEADRACE_ASSIGN_OR_RETURN(const std::string_view text, version->as_string());
    if (text != "1.0") return unsupported(version->pointer(), "version {}", text);
  }
  HEADRACE_ASSIGN_OR_RETURN(const JsonNode model, root.at("model"));
  HEADRACE_RETURN_IF_ERROR(read_model(model, parts));
  if (const auto node = root.find("normalizer")) {
    HEADRACE_ASSIGN_OR_RETURN(parts.normalizer, read_normalizer(*node));
  }
  if (const auto node = root.find("pre_tokenizer")) {
    HEADRACE_ASSIGN_OR_RETURN(parts.pre_tokenizer, read_pre_tokenizer(*node));
  }
  if (const auto node = root.find("post_processor")) {
    HEADRACE_RETURN_IF_ERROR(read_post_processor(*node, parts.prefix_ids, parts.suffix_ids));
  }
  parts.decoder.join_with_spaces = true;
  if (const auto node = root.find("decoder")) {
    HEADRACE_ASSIGN_OR_RETURN(parts.decoder, read_decoder(*node));
  }
  if (const auto node = root.find("added_tokens")) HEADRACE_RETURN_IF_ERROR(read_added_tokens(*node, parts));
  return {};
}

// "eos_token": "</s>" or {"content": "</s>", ...}; a token that the vocabulary has not is left out, as a
// config may name one that a trimmed vocabulary lost.
Status read_named_token(const JsonNode& config, std::string_view key, const TokenizerParts& parts,
                        std::optional<int32_t>& id) {
  auto node = config.find(key);
  if (node && node->is_object()) node = node->find("content");
  if (!node) return {};
  HEADRACE_ASSIGN_OR_RETURN(const std::string_view token, node->as_string());
  if (const auto found = parts.find(token)) id = found;
  return {};
}

// simdjson would choose its code at the first use by an environment variable; here the processor alone decides.
void choose_simdjson() {
  static const bool chosen = [] {
    simdjson::get_active_implementation() = simdjson::get_available_implementations().detect_best_supported();
    return true;
  }();
  static_cast<void>(chosen);
}

// simdjson makes its table of implementations in a noexcept function: where memory runs out there, the process ends. So the
// table is made while the library is loaded, and not by the first tokenizer.
[[maybe_unused]] const bool simdjson_is_chosen = [] {
  choose_simdjson();
  return true;
}();

Status parse(simdjson::dom::parser& parser, std::string_view text, std::string_view file, simdjson::dom::element& out) {
  const auto error = parser.parse(text.data(), text.size()).get(out);
  if (error == simdjson::SUCCESS) return {};
  if (error == simdjson::MEMALLOC) return out_of_memory(std::string(file), "no memory to parse {} bytes", text.size());
  return malformed(std::string(file), "not JSON: {}", simdjson::error_message(error));
}

}  // namespace

Result<std::shared_ptr<const Tokenizer>> Tokenizer::from_json(std::string_view tokenizer_json,
                                                              std::string_view tokenizer_config_json) {
  auto parts = std::make_unique<TokenizerParts>();
  choose_simdjson();
  simdjson::dom::parser parser;
  simdjson::dom::element root;
  HEADRACE_RETURN_IF_ERROR(parse(parser, tokenizer_json, "tokenizer.json", root));
  if (const Status status = read_tokenizer(JsonNode(root, ""), *parts); !status.ok()) {
    return status.within("tokenizer.json");
  }
  if (!tokenizer_config_json.empty()) {
    HEADRACE_RETURN_IF_ERROR(parse(parser, tokenizer_config_json, "tokenizer_config.json", root));
    const JsonNode config(root, "tokenizer_config.json:");
    HEADRACE_RETURN_IF_ERROR(read_named_token(config, "bos_token", *parts, parts->bos_id));
    HEADRACE_RETURN_IF_ERROR(read_named_token(config, "eos_token", *parts, parts->eos_id));
    HEADRACE_RETURN_IF_ERROR(read_named_token(config, "pad_token", *parts, parts->pad_id));
    HEADRACE_RETURN_IF_ERROR(read_named_token(config, "unk_token", *parts, parts->unk_id));
  }
  if (parts->eos_id) parts->end_of_generation_ids = {*parts->eos_id};
  return std::shared_ptr<const Tokenizer>(new Tokenizer(std::move(parts)));
}

}  // namespace headrace::text
