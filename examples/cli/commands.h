// One function for each subcommand: it adds itself to the program and runs when chosen. Failures are thrown.
#pragma once

#include <CLI/CLI.hpp>

namespace cli {

void add_run(CLI::App& app);
void add_chat(CLI::App& app);
void add_transcribe(CLI::App& app);
void add_tokenize(CLI::App& app);
void add_template(CLI::App& app);
void add_inspect(CLI::App& app);
void add_logits(CLI::App& app);
void add_embed(CLI::App& app);
void add_eval(CLI::App& app);
void add_export_hidden(CLI::App& app);
void add_bench(CLI::App& app);
void add_tune(CLI::App& app);
void add_conformance(CLI::App& app);
void add_serve(CLI::App& app);

}  // namespace cli
