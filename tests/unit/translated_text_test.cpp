// Texts between two vocabularies: what a drafter reads is the text, and what it guesses goes on from there.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "base/format.h"
#include "speculation/translated_text.h"
#include "speculation/translating_drafter.h"

using namespace headrace;
using namespace headrace::speculation;
using Ids = std::vector<int32_t>;
using TokenizerHandle = std::shared_ptr<const text::Tokenizer>;

namespace {

const std::vector<std::string> kNames = {"gpt2", "llama3", "qwen2", "llama2_spm_bpe", "mistral_metaspace_bpe"};

TokenizerHandle parse(const std::string& json) {
  auto made = text::Tokenizer::from_json(json);
  INFO(made.status().to_string());
  REQUIRE(made.ok());
  return made.take();
}

TokenizerHandle load(const std::string& name) {
  std::ifstream in(std::filesystem::path(HEADRACE_SOURCE_DIR) / "tests/data/tokenizers" / name / "tokenizer.json",
                   std::ios::binary);
  return parse({std::istreambuf_iterator<char>(in), {}});
}

// A vocabulary of single letters and the markers.
TokenizerHandle letters(const std::vector<std::string>& markers) {
  std::string vocabulary, added;
  int32_t id = 0;
  for (char letter = 'a'; letter <= 'f'; ++letter)
    vocabulary += fmt::format("{}\"{}\": {}", id ? ", " : "", letter, id), ++id;
  for (const std::string& marker : markers) {
    added += fmt::format(
        R"({}{{"id": {}, "content": "{}", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}})",
        added.empty() ? "" : ", ", id++, marker);
  }
  return parse(fmt::format(R"({{"added_tokens": [{}], "model": {{"type": "BPE", "vocab": {{{}}}, "merges": []}}}})",
                           added, vocabulary));
}

Ids encode(const text::Tokenizer& tokenizer, const std::string& text) {
  auto ids = tokenizer.encode(text, {false, false});
  INFO(ids.status().to_string());
  REQUIRE(ids.ok());
  return ids.take();
}

std::string bytes_of(const text::Tokenizer& tokenizer, std::span<const int32_t> ids) {
  std::string out;
  for (const int32_t id : ids) out += tokenizer.token_bytes(id);
  return out;
}

// The text's bytes, without the space that some vocabularies put before it.
std::string text_of(const text::Tokenizer& tokenizer, std::span<const int32_t> ids) {
  std::string out = bytes_of(tokenizer, ids);
  const std::string of_letter = bytes_of(tokenizer, encode(tokenizer, "a"));
  if (of_letter == " a" && out.starts_with(' ')) out.erase(0, 1);
  return out;
}

// The front that is whole characters.
std::string whole(const std::string& bytes) { return bytes.substr(0, whole_characters(bytes)); }

std::string random_text(std::mt19937& random, size_t pieces) {
  static const std::vector<std::string> kPieces = {"a",
                                                   "the",
                                                   " the",
                                                   " ",
                                                   "  ",
                                                   "    ",
                                                   "\n",
                                                   "\n\n",
                                                   "\t",
                                                   "1",
                                                   "23",
                                                   " 456",
                                                   "\u00e9",
                                                   "\u6f22\u5b57",
                                                   "\u304b\u306a",
                                                   "\U0001F642",
                                                   "\U0001F468\u200D\U0001F469\u200D\U0001F467",
                                                   "!",
                                                   "...",
                                                   " (",
                                                   ")",
                                                   "'s",
                                                   "\u2014",
                                                   "<|im_end|>",
                                                   "return",
                                                   " self",
                                                   "_",
                                                   "://",
                                                   "\r\n",
                                                   "x",
                                                   "\u0434\u0430"};
  std::string out = "x";
  while (pieces-- > 0) out += kPieces[random() % kPieces.size()];
  return out;
}

const std::string kProse =
    "The keeper had lived by the sea for thirty years, and in all that time no letter had come. Then, on a grey "
    "morning in "
    "March, he found a bottle between the stones; it was green, and older than he was. He didn't open it at once.\n\n";
const std::string kCode =
    "def total(self, entries):\n    result = 0\n    for entry in entries:\n        if entry.size > 1024:\n            "
    "result += "
    "entry.size\n    return result\n\n\nprint(total(None, []))\n";

std::string repeated(const std::string& text, int times) {
  std::string out;
  while (times-- > 0) out += text;
  return out;
}

}  // namespace

TEST_CASE("a drafter reads the text, in whatever pieces its tokens came") {
  std::mt19937 random(7);
  std::vector<std::string> texts = {repeated(kProse + kCode, 3), std::string(1500, 'z'), repeated("\u6f22\u5b57", 200)};
  for (int i = 0; i < 6; ++i) texts.push_back(random_text(random, 300));
  for (const std::string& of_model : kNames) {
    for (const std::string& of_draft : kNames) {
      const VocabularyPair pair(load(of_model), load(of_draft));
      for (size_t t = 0; t < texts.size(); ++t) {
        INFO(of_model << " read by " << of_draft << ", text " << t);
        const Ids ids = encode(pair.model(), texts[t]);
        TranslatedText text;
        Ids before;
        for (size_t end = 1 + random() % 40; end <= ids.size(); end += 1 + random() % 12) {
          text.follow(pair, std::span(ids).first(end));
          const std::string expected = whole(text_of(pair.model(), std::span(ids).first(end)));
          REQUIRE(text_of(pair.draft(), text.tokens()) == expected);
          // What was read long before stands.
          const auto now = text.tokens();
          const auto same = static_cast<size_t>(std::ranges::mismatch(before, now).in1 - before.begin());
          REQUIRE(before.size() - same <= 400);
          before.assign(now.begin(), now.end());
        }
        text.follow(pair, ids);
        if (t == 0) CHECK(Ids(text.tokens().begin(), text.tokens().end()) == encode(pair.draft(), texts[t]));
      }
    }
  }
}

TEST_CASE("a sequence that went back is read anew") {
  const VocabularyPair pair(load("qwen2"), load("llama3"));
  const Ids ids = encode(pair.model(), kProse), other = encode(pair.model(), kCode);
  TranslatedText text, fresh;
  text.follow(pair, ids);
  Ids back(ids.begin(), ids.begin() + 20);
  back.insert(back.end(), other.begin(), other.end());
  for (const std::span<const int32_t> now : {std::span<const int32_t>(ids).first(20), std::span<const int32_t>(back)}) {
    text.follow(pair, now);
    fresh.follow(pair, now);
    CHECK(std::ranges::equal(text.tokens(), fresh.tokens()));
  }
  CHECK(text_of(pair.draft(), text.tokens()) == text_of(pair.model(), back));
}

TEST_CASE("guesses that are the text come out as the model's tokens of it") {
  std::mt19937 random(11);
  for (const std::string& of_model : kNames) {
    for (const std::string& of_draft : kNames) {
      INFO(of_model << " guessed by " << of_draft);
      const VocabularyPair pair(load(of_model), load(of_draft));
      int64_t asked = 0, right = 0;
      for (int round = 0; round < 8; ++round) {
        const std::string whole_text = round == 0 ? kProse : round == 1 ? kCode : random_text(random, 80);
        const Ids ids = encode(pair.model(), whole_text), known = encode(pair.draft(), whole_text);
        TranslatedText text;
        for (size_t end = 1; end < ids.size(); ++end) {
          const std::span<const int32_t> front = std::span(ids).first(end);
          text.follow(pair, front);
          // Where the drafter's tokens so far are those of the text as a whole, it goes on with the next of them.
          if (text.tokens().empty() || !begins_with(known, text.tokens())) continue;
          DraftTree chain, out;
          int32_t parent = -1;
          double product = 1.0;
          for (size_t i = text.tokens().size(); i < known.size() && chain.size() < 5; ++i) {
            parent = chain.add(parent, known[i], 0.9f);
            product *= 0.9;
          }
          if (chain.empty()) continue;
          text.translate(pair, chain.nodes(), 16, out);
          CHECK(out.is_chain());
          CHECK(out.size() <= 16);
          std::string guessed;
          double claimed = 1.0;
          for (const DraftNode& node : out.nodes()) {
            guessed += pair.model().token_bytes(node.token);
            claimed *= static_cast<double>(node.claimed);
            CHECK(node.claimed > 0.0f);
            CHECK(node.claimed <= 1.0f);
          }
          REQUIRE(text_of(pair.model(), ids).substr(text_of(pair.model(), front).size()).starts_with(guessed));
          CHECK(claimed >= product * 0.7);
          if (round > 1) continue;
          ++asked;
          right += !out.empty() && out.nodes()[0].token == ids[end] ? 1 : 0;
        }
      }
      INFO(right << " of " << asked);
      CHECK(asked > 50);
      CHECK(right * 10 > asked * 6);
    }
  }
}

TEST_CASE("a hint is what the drafter's tokens would be, without the last that could go on") {
  const VocabularyPair pair(load("qwen2"), load("llama3"));
  const Ids ids = encode(pair.model(), kCode), known = encode(pair.draft(), kCode);
  size_t hinted = 0;
  for (size_t end = 5; end + 6 < ids.size(); ++end) {
    TranslatedText text;
    text.follow(pair, std::span(ids).first(end));
    Ids all(text.tokens().begin(), text.tokens().end());
    const Ids hint = text.tokens_behind(pair, std::span(ids).subspan(end, 6));
    all.insert(all.end(), hint.begin(), hint.end());
    const std::string spelled = text_of(pair.draft(), all);
    CHECK(text_of(pair.model(), std::span(ids).first(end + 6)).starts_with(spelled));
    hinted += hint.size();
  }
  CHECK(hinted > 2 * ids.size());
}

TEST_CASE("markers of the same spelling are the same, others are their spelling or end a guess") {
  const VocabularyPair pair(letters({"<|a|>", "<|b|>"}), letters({"<|none|>", "<|b|>"}));
  CHECK(pair.draft_marker(7) == 7);
  CHECK_FALSE(pair.draft_marker(6).has_value());
  CHECK_FALSE(pair.model_marker(6).has_value());
  CHECK_FALSE(pair.draft_marker(0).has_value());
  TranslatedText text;
  text.follow(pair, Ids{0, 1, 7, 2, 6, 7});
  // The spelling of <|a|> has one letter that the drafter knows.
  CHECK(Ids(text.tokens().begin(), text.tokens().end()) == Ids{0, 1, 7, 2, 0, 7});
  for (const auto& [marker, expected] : {std::pair<int32_t, Ids>{7, {3, 4, 7}}, std::pair<int32_t, Ids>{6, {3, 4}}}) {
    DraftTree chain, out;
    int32_t parent = -1;
    for (const int32_t token : {3, 4, marker, 5}) parent = chain.add(parent, token, 0.5f);
    text.translate(pair, chain.nodes(), 8, out);
    Ids tokens;
    for (const DraftNode& node : out.nodes()) tokens.push_back(node.token);
    CHECK(tokens == expected);
  }
}

namespace {

// Guesses one letter, and tells what it was asked.
class Asked : public Drafter {
 public:
  explicit Asked(std::vector<Ids>& heard) : heard_(heard) {}
  std::string_view name() const override { return "asked"; }
  Status draft(std::span<const DraftRequest> requests, std::span<DraftTree> trees) override {
    for (size_t i = 0; i < requests.size(); ++i) {
      heard_.emplace_back(requests[i].context.tokens.begin(), requests[i].context.tokens.end());
      trees[i].add(-1, 5, 0.5f);
    }
    return {};
  }
  void end(const DraftContext& /*context*/) override { heard_.clear(); }

 private:
  std::vector<Ids>& heard_;
};

}  // namespace

TEST_CASE("what is no text gets no guesses, and what ended is forgotten") {
  std::vector<Ids> heard;
  TranslatingDrafter drafter(std::make_unique<Asked>(heard), {letters({"<|a|>"}), letters({"<|b|>", "<|c|>"})});
  const std::vector<Ids> prompts = {{0, 1, 2}, {0, -5, 2}, {3}};
  std::vector<DraftRequest> requests(prompts.size());
  for (size_t i = 0; i < prompts.size(); ++i) {
    requests[i].context.id = {i, 0};
    requests[i].context.tokens = prompts[i];
    requests[i].max_nodes = requests[i].max_depth = 3;
  }
  std::vector<DraftTree> trees(prompts.size());
  REQUIRE(drafter.draft(requests, trees).ok());
  CHECK(heard == std::vector<Ids>{{0, 1, 2}, {3}});
  CHECK(trees[0].size() == 1);
  CHECK(trees[1].empty());
  REQUIRE(trees[2].size() == 1);
  CHECK(trees[2].nodes()[0].token == 5);
  drafter.end(requests[1].context);
  CHECK(heard.size() == 2);
  drafter.end(requests[0].context);
  CHECK(heard.empty());
}
