// headrace logits: float32 [num_tokens, vocab_size] to a .npy file.
#include <algorithm>
#include <iostream>
#include <memory>

#include <nlohmann/json.hpp>

#include "arguments.h"
#include "commands.h"
#include "npy.h"
#include "output_file.h"
#include "progress.h"

namespace cli {
namespace {

struct LogitsArguments {
  ModelArguments model;
  std::vector<int32_t> tokens;
  std::string prompt, tokens_file, output, adapter;
  bool json = false;
};

// nlohmann's own conversion would cut 1.7 and wrap 2^32 + 1 to the token 1.
std::vector<int32_t> parse_tokens(const std::string& text, const std::string& file) {
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_array()) throw headrace::Error(HEADRACE_MALFORMED, "is not a JSON array of token ids", file);
  std::vector<int32_t> tokens;
  for (const auto& item : json) {
    if (!item.is_number_unsigned() || item.get<uint64_t>() > INT32_MAX) {
      std::string shown = item.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
      if (shown.size() > 40) shown = shown.substr(0, 40) + "...";
      throw headrace::Error(HEADRACE_MALFORMED, "is not a JSON array of token ids: " + shown + " is none", file);
    }
    tokens.push_back(static_cast<int32_t>(item.get<uint64_t>()));
  }
  return tokens;
}

std::vector<int32_t> wanted_tokens(const LogitsArguments& arguments, const headrace::Model& model) {
  if (!arguments.tokens.empty()) return arguments.tokens;
  const std::string& file = arguments.tokens_file;
  const std::vector<int32_t> tokens =
      file.empty() ? model.tokenizer().encode(arguments.prompt) : parse_tokens(read_filled_file(file), file);
  if (tokens.empty()) {
    throw headrace::Error(HEADRACE_INVALID_ARGUMENT, "holds no tokens", file.empty() ? "prompt" : file);
  }
  return tokens;
}

void write_logits(const LogitsArguments& arguments) {
  require_output(arguments.output, arguments.model.path, {arguments.tokens_file});
  headrace::Options options = arguments.model.options({"kv.max_tokens"});
  const headrace::Model model = arguments.model.load(options);
  const std::vector<int32_t> tokens = wanted_tokens(arguments, model);
  const size_t vocab_size = static_cast<size_t>(model.info().vocab_size);
  if (model.info().max_position_embeddings >= static_cast<int64_t>(tokens.size())) {
    options.set("kv.max_tokens", std::to_string(std::max<size_t>(tokens.size(), 64)));
  }
  headrace::Session session(model, options);
  if (!arguments.adapter.empty()) {
    const headrace::Adapter adapter = headrace::Adapter::load(model, arguments.adapter);
    session.set_adapter(&adapter);
  }
  NpyWriter writer(arguments.output, static_cast<int64_t>(tokens.size()), static_cast<int64_t>(vocab_size));
  ProgressBar bar("computing");
  constexpr size_t kChunk = 64;  // bounds the memory for logits; the result does not depend on it
  std::vector<float> logits(kChunk * vocab_size);
  for (size_t begin = 0; begin < tokens.size(); begin += kChunk) {
    const size_t count = std::min(kChunk, tokens.size() - begin);
    session.evaluate(tokens.data() + begin, count, logits.data(), logits.size());
    writer.write(logits.data(), static_cast<int64_t>(count * vocab_size));
    bar.show(static_cast<double>(begin + count) / static_cast<double>(tokens.size()));
  }
  writer.close();
  if (arguments.json) {
    std::cout << nlohmann::ordered_json{{"output", arguments.output},
                                        {"shape", {tokens.size(), vocab_size}},
                                        {"tokens", tokens}}
              << "\n";
  }
}

}  // namespace

void add_logits(CLI::App& app) {
  auto arguments = std::make_shared<LogitsArguments>();
  CLI::App* command = app.add_subcommand("logits", "write the logits of a token sequence to a .npy file");
  arguments->model.add_to(*command);
  CLI::Option_group* source = command->add_option_group("input");
  add_number_list(*source, "--tokens", arguments->tokens, INT32_MIN, INT32_MAX, "token ids, separated by commas");
  source->add_option("-p,--prompt", arguments->prompt, "text");
  source->add_option("--tokens-file", arguments->tokens_file, "JSON file with an array of token ids");
  source->require_option(1);
  command->add_option("-o,--output", arguments->output, "float32 [num_tokens, vocab_size]")->required();
  command->add_option("--adapter", arguments->adapter, "folder of a low-rank adapter (PEFT) to compute with");
  command->add_flag("--json", arguments->json, "print {\"output\", \"shape\", \"tokens\"}");
  command->callback([arguments] { write_logits(*arguments); });
}

}  // namespace cli
