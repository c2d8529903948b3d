// Real models' templates over many conversations, against what transformers' apply_chat_template rendered.
#include <fstream>
#include <iostream>
#include <string>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "text/chat_template.h"

using headrace::text::ChatTemplate;
using headrace::text::RenderOptions;
using Json = nlohmann::ordered_json;

namespace {

// Renders every case of a file; returns how many there were.
size_t check_file(const std::string& path) {
  std::ifstream file(path);
  REQUIRE(file.good());
  const Json data = Json::parse(file);
  // The goldens' clock stands at this moment, written without zone.
  REQUIRE(data["now"] == "2025-03-07T09:05:03");
  const auto tokens = data["tokens"].get<std::map<std::string, std::string>>();
  size_t count = 0;
  for (const Json& item : data["templates"]) {
    const auto name = item["name"].get<std::string>();
    INFO(name);
    auto parsed = ChatTemplate::parse(item["template"].get<std::string>(), tokens);
    INFO(parsed.status().to_string());
    REQUIRE(parsed.ok());
    for (const Json& test : item["cases"]) {
      ++count;
      Json kwargs = test["kwargs"];
      RenderOptions options;
      options.now_unix_seconds = 1741338303;
      options.add_generation_prompt = kwargs["add_generation_prompt"].get<bool>();
      kwargs.erase("add_generation_prompt");
      const bool with_tools = kwargs.value("tools", false);
      kwargs.erase("tools");
      const auto conversation = test["conv"].get<std::string>();
      INFO(conversation);
      INFO(kwargs.dump());
      auto result =
          (*parsed)->render(data["conversations"][conversation], with_tools ? data["tools"] : Json(), kwargs, options);
      INFO(result.status().to_string());
      if (test.contains("error")) {
        CHECK_FALSE(result.ok());
        continue;
      }
      REQUIRE(result.ok());
      CHECK(result->text == test["text"].get<std::string>());
    }
    if (!item.contains("assistant_mask_case")) continue;
    // The tokens' masks can't be compared without their tokenizer, but the runs of ones are the generation
    // blocks.
    const Json& mask_case = item["assistant_mask_case"];
    RenderOptions options;
    options.add_generation_prompt = false;
    auto result =
        (*parsed)->render(data["conversations"][mask_case["conv"].get<std::string>()], nullptr, nullptr, options);
    REQUIRE(result.ok());
    size_t runs = 0;
    int before = 0;
    for (const Json& mask : mask_case["assistant_masks"]) {
      if (mask == 1 && before == 0) ++runs;
      before = mask.get<int>();
    }
    CHECK(result->generation_spans.size() == runs);
  }
  return count;
}

}  // namespace

TEST_CASE("chat templates render as transformers renders them") {
  const std::string folder = HEADRACE_TEST_DATA;
  const std::string own = folder + "/goldens/chat/own_templates.json";
  if (folder.empty() || !std::ifstream(own).good()) {
    std::cout << "SKIPPED: no chat goldens in HEADRACE_TEST_DATA\n";
    return;
  }
  CHECK(check_file(own) == 496);
  CHECK(check_file(folder + "/goldens/chat/real_templates.json") == 1189);
}
