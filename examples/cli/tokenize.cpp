// headrace tokenize: standard input to token ids.
#include <iostream>
#include <memory>

#include <nlohmann/json.hpp>

#include "arguments.h"
#include "commands.h"

namespace cli {
namespace {

struct TokenizeArguments {
  std::string model;
  bool no_special = false, json = false;
};

void tokenize(const TokenizeArguments& arguments) {
  const headrace::Tokenizer tokenizer = headrace::Tokenizer::load(arguments.model);
  const std::string text = read_file("-");
  const std::vector<int32_t> tokens = tokenizer.encode(text, !arguments.no_special, !arguments.no_special);
  if (!arguments.json) {
    for (size_t i = 0; i < tokens.size(); ++i) std::cout << (i ? " " : "") << tokens[i];
    std::cout << "\n";
    return;
  }
  nlohmann::ordered_json pieces = nlohmann::ordered_json::array();
  for (int32_t token : tokens) pieces.push_back(tokenizer.decode({token}));
  std::cout << nlohmann::ordered_json{{"tokens", tokens}, {"pieces", pieces}, {"count", tokens.size()}}.dump() << "\n";
}

}  // namespace

void add_tokenize(CLI::App& app) {
  auto arguments = std::make_shared<TokenizeArguments>();
  CLI::App* command = app.add_subcommand("tokenize", "token ids of standard input");
  command->add_option("-m,--model", arguments->model, "GGUF file, or folder with tokenizer.json")->required();
  command->add_flag("--no-special", arguments->no_special,
                    "add no special tokens, and take those written in the text as plain text");
  command->add_flag("--json", arguments->json, "print {\"tokens\", \"pieces\", \"count\"}");
  command->callback([arguments] { tokenize(*arguments); });
}

}  // namespace cli
