// headrace tune: how this machine computes a model's products best, as a file for the option engine.tuning.
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <memory>
#include <stdexcept>

#include <nlohmann/json.hpp>

#include "arguments.h"
#include "commands.h"
#include "output_file.h"
#include "progress.h"

namespace cli {
namespace {

using nlohmann::ordered_json;

struct TuneArguments {
  ModelArguments model;
  std::string output;
  double seconds = 60;
  bool json = false;
};

std::string choice_text(const ordered_json& choice) {
  if (choice.is_null()) return "as the rule";
  return choice.at("unpack").get<std::string>() + ", " + std::to_string(choice.at("run_pairs").get<int>()) +
         " pairs, " + std::to_string(choice.at("task_rows").get<int>()) + " rows";
}

// A line for each product; times in microseconds.
void print(const ordered_json& table) {
  const auto& cpu = table.at("cpu");
  std::printf("%s family %d model %d, %s\n", cpu.at("vendor").get<std::string>().c_str(), cpu.at("family").get<int>(),
              cpu.at("model").get<int>(), table.at("isa").get<std::string>().c_str());
  std::printf("%-8s %-6s %15s %5s %7s %10s %10s %7s  %s\n", "weights", "inputs", "shape", "rows", "threads", "rule us",
              "chosen us", "gain", "chosen");
  size_t chosen = 0;
  for (const auto& entry : table.at("entries")) {
    const bool is_chosen = !entry.at("choice").is_null();
    const double rule = entry.at("rule_us").get<double>();
    const double used = is_chosen ? entry.at("best_us").get<double>() : rule;
    const std::string shape = std::to_string(entry.at("out_features").get<int64_t>()) + " x " +
                              std::to_string(entry.at("in_features").get<int64_t>());
    std::printf("%-8s %-6s %15s %5d %7d %10.1f %10.1f %6.1f%%  %s\n", entry.at("weights").get<std::string>().c_str(),
                entry.at("activations").get<std::string>().c_str(), shape.c_str(), entry.at("rows").get<int>(),
                entry.at("threads").get<int>(), rule, used, used > 0 ? (rule / used - 1) * 100 : 0.0,
                choice_text(entry.at("choice")).c_str());
    chosen += is_chosen ? 1 : 0;
  }
  std::printf("%zu of %zu products are computed otherwise than by the rule\n", chosen, table.at("entries").size());
}

// Choices whose bits were wrong, in words; empty: none.
std::string refused(const ordered_json& table) {
  std::string text;
  for (const auto& entry : table.at("entries")) {
    if (!entry.contains("refused")) continue;
    for (const auto& choice : entry.at("refused")) {
      text += (text.empty() ? "" : "; ") + entry.at("weights").get<std::string>() + " with " +
              std::to_string(entry.at("rows").get<int>()) + " rows: " + choice_text(choice);
    }
  }
  return text;
}

void tune(const TuneArguments& arguments) {
  std::string known;
  if (!arguments.output.empty()) {
    require_output(arguments.output, arguments.model.path);
    // A device or a pipe has no table to extend.
    if (std::filesystem::is_regular_file(arguments.output)) known = read_file(arguments.output);
  }
  const headrace::Model model = arguments.model.load();
  std::string text;
  {
    ProgressBar bar("tuning");
    try {
      text = model.tune(arguments.seconds, known, [&](double fraction) {
        bar.show(fraction);
        return true;
      });
    } catch (const headrace::Error& error) {
      // The table that was to be extended is the file's.
      if (known.empty() || !error.place().starts_with("table")) throw;
      throw headrace::Error(error.code(), error.message(), arguments.output + error.place().substr(5));
    }
  }
  if (!arguments.output.empty()) write_file(arguments.output, text);
  const ordered_json table = ordered_json::parse(text);
  if (arguments.json) {
    std::cout << text;
  } else {
    print(table);
  }
  const std::string wrong = refused(table);
  if (!wrong.empty()) throw std::runtime_error("kernels with wrong results were found and not chosen: " + wrong);
}

}  // namespace

void add_tune(CLI::App& app) {
  auto arguments = std::make_shared<TuneArguments>();
  CLI::App* command = app.add_subcommand("tune", "measure how this machine computes a model's products best");
  arguments->model.add_to(*command);
  command->add_option("-o,--output", arguments->output,
                      "file to write, for --set engine.tuning=FILE; one that is there is extended");
  command->add_option("--seconds", arguments->seconds, "time for measurements (60)")->check(CLI::Range(0.001, 86400.0));
  command->add_flag("--json", arguments->json, "print the table as JSON");
  command->callback([arguments] { tune(*arguments); });
}

}  // namespace cli
