// headrace run: one prompt, one answer.
#include <iostream>
#include <memory>

#include <nlohmann/json.hpp>

#include "arguments.h"
#include "commands.h"
#include "output_file.h"

namespace cli {
namespace {

struct RunArguments {
  ModelArguments model;
  SamplingArguments sampling;
  std::string prompt = "-", system, trace, adapter;
  bool raw = false, json = false;
};

nlohmann::ordered_json usage_json(const headrace_usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"cached_tokens", usage.cached_tokens},
          {"output_tokens", usage.output_tokens},
          {"first_token_ms", usage.first_token_ns / 1e6},
          {"total_ms", usage.total_ns / 1e6}};
}

void run(const RunArguments& arguments) {
  if (!arguments.trace.empty()) require_output(arguments.trace, arguments.model.path);
  const std::string prompt = arguments.prompt == "-" ? read_file("-") : arguments.prompt;
  headrace::Options options =
      arguments.trace.empty() ? arguments.model.options() : arguments.model.options({"engine.profile"});
  if (!arguments.trace.empty()) options.set("engine.profile", "trace");
  const headrace::Model model = arguments.model.load(options);
  if (!arguments.system.empty() && !model.has_chat_template()) {
    throw headrace::Error(HEADRACE_FAILED_PRECONDITION, "the model has no chat template to put it into", "--system");
  }
  headrace::Request request(model);
  if (nlohmann::json::parse(model.describe()).contains("encoder")) {
    request.set_encoder_text(prompt, HEADRACE_ADD_SPECIAL | HEADRACE_PARSE_SPECIAL);
  } else if (arguments.raw || !model.has_chat_template()) {
    request.add_text(prompt, HEADRACE_ADD_SPECIAL | HEADRACE_PARSE_SPECIAL);
  } else {
    nlohmann::ordered_json messages = nlohmann::ordered_json::array();
    if (!arguments.system.empty()) messages.push_back({{"role", "system"}, {"content", arguments.system}});
    messages.push_back({{"role", "user"}, {"content", prompt}});
    try {
      request.add_messages(messages.dump());
    } catch (const nlohmann::json::type_error&) {  // JSON holds no text that is not UTF-8
      throw headrace::Error(HEADRACE_INVALID_ARGUMENT, "is not UTF-8", "prompt");
    }
  }
  arguments.sampling.apply(request);
  if (!arguments.adapter.empty()) request.set_adapter(headrace::Adapter::load(model, arguments.adapter));

  headrace::KVCache cache(model, options);
  headrace::Scheduler scheduler(model, cache, options);
  std::string text;
  nlohmann::ordered_json tokens = nlohmann::ordered_json::array(), summary;
  scheduler.run(request, [&](const headrace::Event& event) {
    text += event.text();
    for (int32_t token : event.tokens()) tokens.push_back(token);
    if (!arguments.json) print_text(event.text());  // where nobody reads, no more is computed
    if (event.type() == headrace::EventType::kFinished) {
      summary = {{"finish_reason", event.finish_reason()}, {"usage", usage_json(event.usage())}};
      const auto speculation = nlohmann::ordered_json::parse(event.describe_speculation());
      if (speculation.at("state") != "off") summary["speculation"] = speculation;
    }
    return true;
  });
  cache.flush();
  if (!arguments.trace.empty()) write_file(arguments.trace, model.describe_trace());
  if (arguments.json) {
    nlohmann::ordered_json out = {{"text", text}, {"tokens", tokens}};
    out.update(summary);
    std::cout << out.dump() << "\n";
  } else {
    std::cout << "\n";
  }
}

}  // namespace

void add_run(CLI::App& app) {
  auto arguments = std::make_shared<RunArguments>();
  CLI::App* command = app.add_subcommand("run", "generate from a prompt; chat models get their template");
  arguments->model.add_to(*command);
  arguments->model.add_drafter_to(*command);
  arguments->sampling.add_to(*command);
  command->add_option("-p,--prompt", arguments->prompt,
                      "the prompt, which an encoder in front of the decoder reads where there is one; - reads standard "
                      "input (default)");
  CLI::Option* system = command->add_option("--system", arguments->system, "system message, for chat models");
  command->add_option("--adapter", arguments->adapter, "folder of a low-rank adapter (PEFT) to answer with");
  command->add_flag("--raw", arguments->raw, "no chat template: the prompt's text as it is")->excludes(system);
  command->add_option("--trace", arguments->trace, "write the steps and ops as Chrome trace events to this file");
  command->add_flag("--json", arguments->json, "print one JSON object at the end");
  command->callback([arguments] { run(*arguments); });
}

}  // namespace cli
