// The `headrace` command. Exit status: 0 success, 1 failure (with a message on standard error), 2 wrong usage.
#include <headrace/headrace.hpp>

#include <cstdio>
#include <exception>
#include <iostream>
#include <stdexcept>

#include "commands.h"

int main(int argc, char** argv) {
  CLI::App app("Headrace: run, measure and inspect language models");
  app.set_version_flag("--version", headrace::version());
  app.require_subcommand(1);
  cli::add_run(app);
  cli::add_chat(app);
  cli::add_tokenize(app);
  cli::add_template(app);
  cli::add_inspect(app);
  cli::add_logits(app);
  cli::add_eval(app);
  cli::add_bench(app);
  try {
    app.parse(argc, argv);
    // A full disk shows when the last of the output is written.
    if (!std::cout.flush()) throw std::runtime_error("standard output: writing failed");
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "headrace: error: %s\n", error.what());
    return 1;
  }
  return 0;
}
