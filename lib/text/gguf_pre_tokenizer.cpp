#include "text/gguf_pre_tokenizer.h"

#include <initializer_list>
#include <iterator>
#include <string>
#include <vector>

#include "text/unicode.h"

namespace headrace::text {
namespace {

constexpr const char* kPlace = "tokenizer.ggml.pre";

#define HEADRACE_CONTRACTIONS R"((?i:'s|'t|'re|'ve|'m|'ll|'d))"
#define HEADRACE_UPPER R"([\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])"
#define HEADRACE_LOWER R"([\p{Ll}\p{Lm}\p{Lo}\p{M}])"
#define HEADRACE_LEAD R"([^\r\n\p{L}\p{N}]?)"
#define HEADRACE_SPACES R"(|\s*[\r\n]+|\s+(?!\S)|\s+)"
// Han characters are pieces of their own in Kimi's pattern.
#define HEADRACE_KIMI_UPPER R"([\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]])"
#define HEADRACE_KIMI_LOWER R"([\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]])"

constexpr const char* kLlama3Pattern =
    HEADRACE_CONTRACTIONS "|" HEADRACE_LEAD R"(\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)" HEADRACE_SPACES;
constexpr const char* kQwen2Pattern =
    HEADRACE_CONTRACTIONS "|" HEADRACE_LEAD R"(\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)" HEADRACE_SPACES;
constexpr const char* kQwen35Pattern =
    HEADRACE_CONTRACTIONS "|" HEADRACE_LEAD R"([\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*)" HEADRACE_SPACES;
constexpr const char* kO200kPattern = HEADRACE_LEAD HEADRACE_UPPER
    "*" HEADRACE_LOWER "+" HEADRACE_CONTRACTIONS "?|" HEADRACE_LEAD HEADRACE_UPPER "+" HEADRACE_LOWER
    "*" HEADRACE_CONTRACTIONS R"(?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*)" HEADRACE_SPACES;
constexpr const char* kTekkenPattern =
    HEADRACE_LEAD HEADRACE_UPPER "*" HEADRACE_LOWER "+|" HEADRACE_LEAD HEADRACE_UPPER "+" HEADRACE_LOWER
                                 R"(*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*)" HEADRACE_SPACES;
constexpr const char* kKimiPattern =
    R"([\p{Han}]+|)" HEADRACE_LEAD HEADRACE_KIMI_UPPER "*" HEADRACE_KIMI_LOWER "+" HEADRACE_CONTRACTIONS
    "?|" HEADRACE_LEAD HEADRACE_KIMI_UPPER "+" HEADRACE_KIMI_LOWER "*" HEADRACE_CONTRACTIONS
    R"(?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)" HEADRACE_SPACES;
constexpr const char* kBailingPattern =
    R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)";
constexpr const char* kSeedCoderPattern =
    HEADRACE_CONTRACTIONS "|" HEADRACE_LEAD R"(\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+)" HEADRACE_SPACES;
constexpr const char* kDeepSeekCjk = "[\u4E00-\u9FA5\u3040-\u309F\u30A0-\u30FF]+";
constexpr const char* kDeepSeekRest =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*)" HEADRACE_SPACES;
constexpr const char* kDeepSeekCoderCjk = "[\u4E00-\u9FA5\u0800-\u4E00\uAC00-\uD7FF]+";
constexpr const char* kBloomPattern = " ?[^(\\s|.,!?\u2026\u3002\uFF0C\u3001\u0964\u06D4\u060C)]+";

enum class Kind {
  kLlama3,
  kQwen2,
  kQwen35,
  kO200k,
  kTekken,
  kKimi,
  kBailing,
  kSeedCoder,
  kDeepSeekV3,
  kDeepSeekCoder,
  kFalcon,
  kDigitsGpt2,
  kGpt2,
  kBloom,
  kViking,
};

struct Entry {
  std::string_view name;
  Kind kind;
  bool nfc = false;
  bool ignore_merges = false;
  bool add_bos = false;
};

constexpr Entry kEntries[] = {
    {"llama-bpe", Kind::kLlama3, false, true, true},
    {"llama3", Kind::kLlama3, false, true, true},
    {"llama-v3", Kind::kLlama3, false, true, true},
    {"falcon3", Kind::kLlama3, false, true, true},
    {"falcon-h1", Kind::kLlama3, false, true, true},
    {"pixtral", Kind::kLlama3, false, true, true},
    {"midm-2.0", Kind::kLlama3, false, true, true},
    {"lfm2", Kind::kLlama3, false, true, true},
    {"dbrx", Kind::kLlama3},
    {"smaug-bpe", Kind::kLlama3},
    {"glm4", Kind::kLlama3},
    {"chatglm-bpe", Kind::kLlama3},
    {"qwen2", Kind::kQwen2, true},
    {"deepseek-r1-qwen", Kind::kQwen2},
    {"megrez", Kind::kQwen2},
    {"stablelm2", Kind::kQwen2},
    {"hunyuan", Kind::kQwen2},
    {"solar-open", Kind::kQwen2},
    {"grok-2", Kind::kQwen2},
    {"qwen35", Kind::kQwen35, true},
    {"gpt-4o", Kind::kO200k},
    {"llama4", Kind::kO200k},
    {"kanana2", Kind::kO200k},
    {"minimax-m2", Kind::kO200k},
    {"tekken", Kind::kTekken, false, true, true},
    {"kimi-k2", Kind::kKimi},
    {"bailingmoe", Kind::kBailing},
    {"bailingmoe2", Kind::kBailing},
    {"llada-moe", Kind::kBailing},
    {"seed-coder", Kind::kSeedCoder},
    {"deepseek-v3", Kind::kDeepSeekV3},
    {"hunyuan-dense", Kind::kDeepSeekV3},
    {"joyai-llm", Kind::kDeepSeekV3},
    {"deepseek-coder", Kind::kDeepSeekCoder},
    {"falcon", Kind::kFalcon},
    {"starcoder", Kind::kDigitsGpt2},
    {"refact", Kind::kDigitsGpt2},
    {"command-r", Kind::kDigitsGpt2, true},
    {"smollm", Kind::kDigitsGpt2},
    {"codeshell", Kind::kDigitsGpt2},
    {"exaone", Kind::kDigitsGpt2},
    {"minerva-7b", Kind::kDigitsGpt2},
    {"gpt-2", Kind::kGpt2},
    {"gpt2", Kind::kGpt2},
    {"default", Kind::kGpt2},
    {"phi-2", Kind::kGpt2},
    {"gigachat", Kind::kGpt2},
    {"a.x-4.0", Kind::kGpt2},
    {"mellum", Kind::kGpt2},
    {"jais", Kind::kGpt2},
    {"trillion", Kind::kGpt2},
    {"granite-docling", Kind::kGpt2},
    {"exaone4", Kind::kGpt2},
    {"modern-bert", Kind::kGpt2, true},
    {"mpt", Kind::kGpt2, true},
    {"olmo", Kind::kGpt2, true},
    {"bloom", Kind::kBloom},
    {"poro-chat", Kind::kBloom},
    {"gpt3-finnish", Kind::kBloom},
    {"viking", Kind::kViking},
};

// Splits by each pattern in turn, every match a piece of its own, then spells bytes.
Result<PreTokenizerPtr> splits(std::initializer_list<const char*> patterns) {
  std::vector<PreTokenizerPtr> steps;
  for (const char* pattern : patterns) {
    HEADRACE_ASSIGN_OR_RETURN(Regex regex, Regex::compile(pattern, kPlace));
    steps.push_back(make_regex_split(std::move(regex), SplitBehavior::kIsolated, false));
  }
  steps.push_back(make_byte_level_pre_tokenizer(false, std::nullopt));
  return make_sequence_pre_tokenizer(std::move(steps));
}

Result<PreTokenizerPtr> make_falcon(Regex gpt2) {
  HEADRACE_ASSIGN_OR_RETURN(Regex triples, Regex::compile("[0-9][0-9][0-9]", kPlace));
  std::vector<PreTokenizerPtr> steps;
  steps.push_back(make_char_split(is_punctuation, SplitBehavior::kContiguous));
  steps.push_back(make_byte_level_pre_tokenizer(false, std::move(gpt2)));
  steps.push_back(make_char_split(is_numeric, SplitBehavior::kContiguous));
  steps.push_back(make_regex_split(std::move(triples), SplitBehavior::kIsolated, false));
  return make_sequence_pre_tokenizer(std::move(steps));
}

Result<PreTokenizerPtr> make_kind(Kind kind) {
  HEADRACE_ASSIGN_OR_RETURN(Regex gpt2, Regex::compile(kGpt2Pattern, kPlace));
  switch (kind) {
    case Kind::kLlama3: return splits({kLlama3Pattern});
    case Kind::kQwen2: return splits({kQwen2Pattern});
    case Kind::kQwen35: return splits({kQwen35Pattern});
    case Kind::kO200k: return splits({kO200kPattern});
    case Kind::kTekken: return splits({kTekkenPattern});
    case Kind::kKimi: return splits({kKimiPattern});
    case Kind::kBailing: return splits({kBailingPattern});
    case Kind::kSeedCoder: return splits({kSeedCoderPattern});
    case Kind::kDeepSeekV3: return splits({R"(\p{N}{1,3})", kDeepSeekCjk, kDeepSeekRest});
    case Kind::kDeepSeekCoder:
      return splits({R"([\r\n])", R"(\s?\p{L}+)", R"(\s?\p{P}+)", kDeepSeekCoderCjk, R"(\p{N})"});
    case Kind::kBloom: return splits({kBloomPattern});
    case Kind::kViking: return splits({kBloomPattern, R"(\p{N})"});
    case Kind::kFalcon: return make_falcon(std::move(gpt2));
    case Kind::kDigitsGpt2: {
      std::vector<PreTokenizerPtr> steps;
      steps.push_back(make_char_split(is_numeric, SplitBehavior::kIsolated));
      steps.push_back(make_byte_level_pre_tokenizer(false, std::move(gpt2)));
      return make_sequence_pre_tokenizer(std::move(steps));
    }
    case Kind::kGpt2: break;
  }
  return make_byte_level_pre_tokenizer(false, std::move(gpt2));
}

}  // namespace

Result<GgufPreTokenizer> make_gguf_pre_tokenizer(std::string_view name) {
  if (name.empty()) name = "default";  // files from before the key was written
  for (const Entry& entry : kEntries) {
    if (entry.name != name) continue;
    GgufPreTokenizer out;
    HEADRACE_ASSIGN_OR_RETURN(out.pre_tokenizer, make_kind(entry.kind));
    if (entry.nfc) out.normalizer = make_unicode_normalizer(NormalForm::kNfc);
    out.ignore_merges = entry.ignore_merges;
    out.add_bos = entry.add_bos;
    return out;
  }
  return unsupported(kPlace, "the pre-tokenizer \"{}\" is not known", name);
}

}  // namespace headrace::text
