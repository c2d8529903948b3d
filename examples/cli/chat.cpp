// headrace chat: a conversation in the terminal.
#include <iostream>
#include <memory>
#include <stdexcept>

#include <sys/stat.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "arguments.h"
#include "commands.h"
#include "output_file.h"

namespace cli {
namespace {

struct ChatArguments {
  ModelArguments model;
  SamplingArguments sampling;
  std::string system, save, restore, adapter;
  bool json = false;
};

void chat(const ChatArguments& arguments) {
  if (!arguments.save.empty()) require_output(arguments.save, arguments.model.path);
  struct stat saved;
  if (!arguments.save.empty() && ::stat(arguments.save.c_str(), &saved) == 0 && !S_ISREG(saved.st_mode)) {
    throw std::runtime_error(arguments.save + ": is not a regular file");
  }
  const headrace::Options options = arguments.model.options();
  const headrace::Model model = arguments.model.load(options);
  if (!model.has_chat_template()) {
    throw headrace::Error(HEADRACE_FAILED_PRECONDITION, "the model has no chat template; use `headrace run --raw`",
                          arguments.model.path);
  }
  const headrace::KVCache cache(model, options);
  headrace::Scheduler scheduler(model, cache, options);
  headrace::Session session = arguments.restore.empty()
                                  ? headrace::Session(model, cache, options)
                                  : headrace::Session::restore(model, cache, arguments.restore, options);
  if (!arguments.adapter.empty()) {
    const headrace::Adapter adapter = headrace::Adapter::load(model, arguments.adapter);
    session.set_adapter(&adapter);
  }
  const bool is_terminal = isatty(STDIN_FILENO) == 1;
  const auto start = [&] {
    if (!arguments.system.empty()) session.append_message("system", arguments.system);
  };
  const auto save = [&] {
    if (!arguments.save.empty()) session.save(arguments.save);
  };
  const auto answer = [&](const std::string& message) {
    session.append_message("user", message);
    headrace::Request request(model);
    request.set_session(session);
    arguments.sampling.apply(request);
    nlohmann::ordered_json reply = {{"role", "assistant"}, {"content", ""}};
    std::string text;
    scheduler.run(request, [&](const headrace::Event& event) {
      text += event.text();
      if (!arguments.json) print_text(event.text());
      if (event.type() == headrace::EventType::kFinished) reply["finish_reason"] = event.finish_reason();
      return true;
    });
    reply["content"] = text;
    print_text((arguments.json ? reply.dump() : std::string()) + "\n");
  };
  if (arguments.restore.empty()) start();
  if (is_terminal) std::cerr << "/clear forgets the conversation, /exit or end of input leaves.\n";

  std::string line;
  for (;;) {
    if (is_terminal) std::cerr << "> " << std::flush;
    if (!std::getline(std::cin, line) || line == "/exit") break;
    if (line.empty()) continue;
    if (line == "/clear") {
      session.rewind(0);
      start();
      continue;
    }
    // A message that fails leaves the conversation as it was before: nothing of it is lost.
    headrace::Session before = session.fork();
    try {
      answer(line);
    } catch (const headrace::Error& error) {
      session = std::move(before);
      if (!is_terminal) {
        save();
        throw;
      }
      std::cerr << "headrace: error: " << error.what() << std::endl;
    }
  }
  save();
}

}  // namespace

void add_chat(CLI::App& app) {
  auto arguments = std::make_shared<ChatArguments>();
  CLI::App* command = app.add_subcommand("chat", "a conversation: a line of standard input is a message");
  arguments->model.add_to(*command);
  arguments->model.add_drafter_to(*command);
  arguments->sampling.add_to(*command);
  CLI::Option* system = command->add_option("--system", arguments->system, "system message");
  CLI::Option* adapter =
      command->add_option("--adapter", arguments->adapter, "folder of a low-rank adapter (PEFT) to answer with");
  command->add_option("--save", arguments->save, "write the conversation and its cache to this file at the end")
      ->excludes(adapter);
  command->add_option("--restore", arguments->restore, "go on from such a file, which has its own system message")
      ->excludes(system);
  command->add_flag("--json", arguments->json, "print each reply as a JSON object on its own line");
  command->callback([arguments] { chat(*arguments); });
}

}  // namespace cli
