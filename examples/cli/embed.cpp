// headrace embed: texts to vectors or scores, a line of JSON for each.
#include <charconv>
#include <cmath>
#include <iostream>
#include <memory>

#include <nlohmann/json.hpp>

#include "arguments.h"
#include "commands.h"

namespace cli {
namespace {

struct EmbedArguments {
  ModelArguments model;
  std::vector<std::string> texts;
  std::string pooling = "auto", normalize = "auto";
};

// The shortest digits that read back as the same float.
std::string number(float value) {
  if (!std::isfinite(value)) return "null";
  char digits[32];
  return std::string(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
}

std::string list(const float* values, size_t count) {
  std::string out = "[";
  for (size_t i = 0; i < count; ++i) out += (i ? "," : "") + number(values[i]);
  return out + "]";
}

// Each line of standard input, without its end.
std::vector<std::string> read_lines() {
  std::vector<std::string> lines;
  const std::string text = read_file("-");
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
    if (!lines.back().empty() && lines.back().back() == '\r') lines.back().pop_back();
    begin = end + 1;
  }
  return lines;
}

void embed(const EmbedArguments& arguments) {
  headrace::Options options = arguments.model.options({"embedder.pooling", "embedder.normalize"});
  options.set("embedder.pooling", arguments.pooling).set("embedder.normalize", arguments.normalize);
  const headrace::Model model = arguments.model.load(options);
  headrace::Embedder embedder(model, options);
  const std::vector<std::string> texts = arguments.texts.empty() ? read_lines() : arguments.texts;
  if (texts.empty()) throw headrace::Error(HEADRACE_INVALID_ARGUMENT, "holds no lines", "standard input");
  const size_t size = embedder.row_size();
  if (embedder.pools()) {
    const std::vector<float> rows = embedder.embed(texts);
    for (size_t i = 0; i < texts.size(); ++i) {
      print_text("{\"text\":" + nlohmann::json(texts[i]).dump() +
                 ",\"embedding\":" + list(rows.data() + i * size, size) + "}\n");
    }
    return;
  }
  for (const std::string& text : texts) {
    const std::vector<float> rows = embedder.embed({text});
    std::string all;
    for (size_t at = 0; at < rows.size(); at += size) all += (at ? "," : "") + list(rows.data() + at, size);
    print_text("{\"text\":" + nlohmann::json(text).dump() + ",\"embeddings\":[" + all + "]}\n");
  }
}

}  // namespace

void add_embed(CLI::App& app) {
  auto arguments = std::make_shared<EmbedArguments>();
  CLI::App* command = app.add_subcommand("embed", "vectors or scores of texts, a line of JSON for each");
  arguments->model.add_to(*command);
  command
      ->add_option("--pooling", arguments->pooling,
                   "auto, mean, cls, last, none (a row for each token), pooler, score or logits; auto is what the "
                   "model's files name")
      ->capture_default_str();
  command->add_option("--normalize", arguments->normalize, "auto, true or false: scale vectors to length 1")
      ->capture_default_str();
  command->add_option("texts", arguments->texts, "texts; without any, the lines of standard input");
  command->callback([arguments] { embed(*arguments); });
}

}  // namespace cli
