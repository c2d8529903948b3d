// Ids and texts against the goldens made with Hugging Face's tokenizers: every string of every tokenizer.
#include <catch2/catch.hpp>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "text/detokenizer.h"
#include "text/tokenizer.h"

namespace {

namespace fs = std::filesystem;
using headrace::text::EncodeOptions;
using headrace::text::StreamingDetokenizer;
using headrace::text::Tokenizer;

std::string read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// The folders with a tokenizer.json and its cases.json: the full set, or the few that the repository ships.
std::vector<fs::path> golden_folders() {
  fs::path root = fs::path(HEADRACE_TEST_DATA) / "goldens/tokenizers";
  if (std::string(HEADRACE_TEST_DATA).empty() || !fs::is_directory(root)) {
    root = fs::path(HEADRACE_SOURCE_DIR) / "tests/data/tokenizers";
  }
  std::vector<fs::path> out;
  for (const auto& entry : fs::directory_iterator(root)) {
    if (fs::exists(entry.path() / "cases.json")) out.push_back(entry.path());
  }
  std::sort(out.begin(), out.end());
  return out;
}

}  // namespace

TEST_CASE("every golden string has the reference's ids and texts") {
  const auto folders = golden_folders();
  REQUIRE(folders.size() >= 3);
  size_t strings = 0;
  for (const fs::path& folder : folders) {
    INFO(folder.filename().string());
    const auto made = Tokenizer::from_json(read_file(folder / "tokenizer.json"));
    INFO(made.status().to_string());
    REQUIRE(made.ok());
    const Tokenizer& tokenizer = **made;
    nlohmann::json cases = nlohmann::json::parse(read_file(folder / "cases.json"));
    if (cases.is_object()) cases = cases["cases"];
    REQUIRE(!cases.empty());
    for (const auto& item : cases) {
      const auto text = item["text"].get<std::string>();
      INFO("text: " << text);
      const auto ids = item["ids"].get<std::vector<int32_t>>();
      const auto ids_special = item["ids_special"].get<std::vector<int32_t>>();
      const auto plain = tokenizer.encode(text, {.add_special = false, .parse_special = true});
      const auto special = tokenizer.encode(text, {.add_special = true, .parse_special = true});
      REQUIRE(plain.ok());
      REQUIRE(special.ok());
      CHECK(*plain == ids);
      CHECK(*special == ids_special);
      CHECK(tokenizer.decode(ids, false) == item["decoded"].get<std::string>());
      CHECK(tokenizer.decode(ids_special, true) == item["decoded_skip"].get<std::string>());

      // Token by token the same text comes out.
      for (const bool skip : {false, true}) {
        StreamingDetokenizer stream(*made, skip);
        std::string streamed;
        for (const int32_t id : ids_special) streamed += stream.push(id);
        streamed += stream.flush();
        CHECK(streamed == tokenizer.decode(ids_special, skip));
      }
      ++strings;
    }
  }
  std::cout << "golden strings: " << strings << " of " << folders.size() << " tokenizers\n";
}
