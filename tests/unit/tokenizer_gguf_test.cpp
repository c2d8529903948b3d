// The tokenizer in a GGUF file and the tokenizer.json that the file was made from give the same ids.
#include <catch2/catch.hpp>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>

#include <nlohmann/json.hpp>

#include "formats/gguf.h"
#include "model/tokenizer_loader.h"
#include "text/tokenizer.h"
#include "text/tokenizer_json_parts.h"

namespace {

namespace fs = std::filesystem;

std::string read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace

TEST_CASE("a GGUF tokenizer is equal to its tokenizer.json") {
  using namespace headrace;
  using text::Tokenizer;
  const fs::path goldens = fs::path(HEADRACE_TEST_DATA) / "goldens";
  if (std::string(HEADRACE_TEST_DATA).empty() || !fs::is_directory(goldens / "gguf")) {
    std::cout << "SKIPPED: no goldens/gguf in HEADRACE_TEST_DATA\n";
    return;
  }
  const auto strings = nlohmann::json::parse(read_file(goldens / "tokenizers/strings.json"));
  size_t twins = 0;
  for (const auto& entry : fs::directory_iterator(goldens / "gguf")) {
    const fs::path twin = goldens / "models" / entry.path().stem() / "tokenizer.json";
    if (entry.path().extension() != ".gguf" || !fs::exists(twin)) continue;
    INFO(entry.path().string());
    const auto file = GgufFile::open_path(entry.path().string());
    REQUIRE(file.ok());
    auto spec = read_gguf_tokenizer_spec(**file);
    INFO(spec.status().to_string());
    REQUIRE(spec.ok());
    // The converter writes these byte-level tokens under the name of a WordPiece model there: no twin.
    if (spec->model == "bert") continue;
    const auto from_gguf = Tokenizer::from_gguf(spec.take());
    INFO(from_gguf.status().to_string());
    REQUIRE(from_gguf.ok());
    const auto from_json = Tokenizer::from_json(read_file(twin));
    REQUIRE(from_json.ok());
    for (const auto& item : strings) {
      const auto string = item.get<std::string>();
      INFO(string);
      for (const bool parse_special : {true, false}) {
        const text::EncodeOptions options{.add_special = false, .parse_special = parse_special};
        const auto a = (*from_gguf)->encode(string, options);
        const auto b = (*from_json)->encode(string, options);
        REQUIRE(a.ok());
        REQUIRE(b.ok());
        CHECK(*a == *b);
        CHECK((*from_gguf)->decode(*a) == (*from_json)->decode(*a));
        CHECK((*from_gguf)->decode(*a, true) == (*from_json)->decode(*a, true));
      }
    }
    ++twins;
  }
  CHECK(twins > 0);
  std::cout << "twins: " << twins << "\n";
}

// As llama.cpp's converter writes a unigram model of SentencePiece: its pieces and their scores, its character map, and that it
// removes extra spaces. The ids expected are those of the sentencepiece library.
TEST_CASE("a unigram tokenizer of GGUF is SentencePiece's") {
  using namespace headrace;
  const fs::path folder = fs::path(HEADRACE_TEST_DATA) / "goldens/tokenizers/spm_unigram_nfkc";
  if (std::string(HEADRACE_TEST_DATA).empty() || !fs::is_directory(folder)) {
    std::cout << "SKIPPED: no goldens/tokenizers in HEADRACE_TEST_DATA\n";
    return;
  }
  const auto json = nlohmann::json::parse(read_file(folder / "tokenizer.json"));
  text::GgufTokenizerSpec spec;
  spec.model = "t5";
  spec.add_space_prefix = spec.remove_extra_whitespaces = spec.add_eos = true;
  spec.eos_id = 2;
  for (const auto& entry : json["model"]["vocab"]) {
    spec.tokens.push_back(entry[0]);
    spec.scores.push_back(entry[1]);
    spec.token_types.push_back(static_cast<int32_t>(text::GgufTokenType::kNormal));
  }
  spec.token_types[0] = static_cast<int32_t>(text::GgufTokenType::kUnknown);
  spec.token_types[1] = spec.token_types[2] = static_cast<int32_t>(text::GgufTokenType::kControl);
  spec.precompiled_charsmap =
      text::decode_base64(json["normalizer"]["normalizers"][0]["precompiled_charsmap"].get<std::string>(), "").take();
  const auto tokenizer = text::Tokenizer::from_gguf(std::move(spec));
  INFO(tokenizer.status().to_string());
  REQUIRE(tokenizer.ok());
  const auto cases = nlohmann::json::parse(read_file(folder / "cases.json"));
  size_t compared = 0;
  for (const auto& item : cases["cases"]) {
    const auto string = item["text"].get<std::string>();
    INFO(string);
    const auto ids = (*tokenizer)->encode(string, {.add_special = false, .parse_special = false});
    REQUIRE(ids.ok());
    CHECK(*ids == item["sentencepiece_ids"].get<std::vector<int32_t>>());
    const auto with_end = (*tokenizer)->encode(string, {.add_special = true, .parse_special = false});
    REQUIRE(with_end.ok());
    CHECK(with_end->back() == 2);
    CHECK(with_end->size() == ids->size() + 1);
    ++compared;
  }
  CHECK(compared > 200);
}
