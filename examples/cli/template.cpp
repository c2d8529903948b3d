// headrace template: a conversation rendered by a chat template.
#include <iostream>
#include <memory>

#include <nlohmann/json.hpp>

#include "arguments.h"
#include "commands.h"

namespace cli {
namespace {

struct TemplateArguments {
  std::string model, template_file, messages, tools, variables;
  bool no_generation_prompt = false, json = false;
};

void render(const TemplateArguments& arguments) {
  const headrace::ChatTemplate chat_template = arguments.model.empty()
                                                   ? headrace::ChatTemplate(read_filled_file(arguments.template_file))
                                                   : headrace::ChatTemplate::load(arguments.model);
  headrace::RenderArguments render;
  render.messages = read_filled_file(arguments.messages);
  if (!arguments.tools.empty()) render.tools = read_filled_file(arguments.tools);
  render.variables = arguments.variables;
  render.add_generation_prompt = !arguments.no_generation_prompt;
  const headrace::Prompt prompt = chat_template.render(render);
  if (!arguments.json) {
    std::cout << prompt.text();
    return;
  }
  nlohmann::ordered_json spans = nlohmann::ordered_json::array();
  for (const headrace::Prompt::Span& span : prompt.spans()) {
    spans.push_back({{"begin", span.begin}, {"end", span.end}, {"is_content", span.is_content}});
  }
  std::cout << nlohmann::ordered_json{{"text", prompt.text()}, {"spans", spans}}.dump() << "\n";
}

}  // namespace

void add_template(CLI::App& app) {
  auto arguments = std::make_shared<TemplateArguments>();
  CLI::App* command = app.add_subcommand("template", "render a conversation with a chat template");
  CLI::Option_group* source = command->add_option_group("source");
  source->add_option("-m,--model", arguments->model, "GGUF file or Hugging Face folder whose template to use");
  source->add_option("--template-file", arguments->template_file, "Jinja file to use");
  source->require_option(1);
  command->add_option("messages", arguments->messages, "JSON file with the array of messages; - reads standard input")
      ->required();
  command->add_option("--tools", arguments->tools, "JSON file with the array of tools");
  command->add_option("--variables", arguments->variables, "JSON object with further template variables");
  command->add_flag("--no-generation-prompt", arguments->no_generation_prompt, "do not open the assistant's turn");
  command->add_flag("--json", arguments->json, "print {\"text\", \"spans\"}");
  command->callback([arguments] { render(*arguments); });
}

}  // namespace cli
