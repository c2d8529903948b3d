// The `headrace` command. Exit status: 0 success, 1 failure (with a message on standard error), 2 wrong usage.
#include <headrace/headrace.hpp>

#include <cstdio>
#include <exception>
#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

#include "commands.h"

namespace {

// Exit status of wrong usage, after a message. A word that is not known is named before all else: where it is a misspelt
// subcommand or option, what would be required besides is of no use.
int report(const CLI::App& app, const CLI::ParseError& error) {
  const std::vector<std::string> unknown =
      error.get_exit_code() == 0 ? std::vector<std::string>() : app.remaining(true);
  if (unknown.empty()) {
    const bool asked = app.exit(error) == 0;  // --help and --version
    if (asked && !std::cout.flush()) throw std::runtime_error("standard output: writing failed");
    return asked ? 0 : 2;
  }
  const std::vector<CLI::App*> chosen = app.get_subcommands();
  const std::string command = chosen.empty() ? "headrace" : "headrace " + chosen.front()->get_name();
  const std::string& word = unknown.front();
  std::string message = word + " is no option of " + command;
  if (!word.starts_with('-'))
    message = word + (chosen.empty() ? " is no subcommand" : " is one argument too many for " + command);
  app.exit(CLI::ExtrasError(message, CLI::ExitCodes::ExtrasError));
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Headrace: run, measure and inspect language models");
  app.set_version_flag("--version", headrace::version());
  app.require_subcommand(1);
  cli::add_run(app);
  cli::add_chat(app);
  cli::add_transcribe(app);
  cli::add_tokenize(app);
  cli::add_template(app);
  cli::add_inspect(app);
  cli::add_logits(app);
  cli::add_embed(app);
  cli::add_eval(app);
  cli::add_export_hidden(app);
  cli::add_bench(app);
  cli::add_tune(app);
  cli::add_conformance(app);
  cli::add_serve(app);
  try {
    try {
      app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
      return report(app, error);
    }
    // A full disk shows when the last of the output is written.
    if (!std::cout.flush()) throw std::runtime_error("standard output: writing failed");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "headrace: error: %s\n", error.what());
    return 1;
  }
  return 0;
}
