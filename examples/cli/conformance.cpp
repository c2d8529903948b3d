// headrace conformance: models against what the reference implementation made of them.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <memory>

#include <nlohmann/json.hpp>

#include "commands.h"
#include "conformance_run.h"
#include "output_file.h"
#include "progress.h"

namespace cli {
namespace {

struct ConformanceArguments {
  SettingArguments settings;
  std::string folder, json;
  std::vector<std::string> only;
};

struct Entry {
  std::string name, golden_folder, model_path;
};

// Names are paths below the folder that was given; "." for itself.
std::vector<Entry> find_entries(const ConformanceArguments& arguments) {
  std::vector<Entry> entries;
  std::vector<bool> used(arguments.only.size(), false);
  for (const std::string& folder : find_golden_folders(arguments.folder)) {
    for (const std::string& model : find_models(folder)) {
      const std::string name = std::filesystem::path(model).lexically_relative(arguments.folder).string();
      const std::string last = std::filesystem::path(folder).filename().string();
      bool wanted = arguments.only.empty();
      for (size_t i = 0; i < arguments.only.size(); ++i) {
        if (arguments.only[i] != name && arguments.only[i] != last) continue;
        wanted = used[i] = true;
      }
      if (wanted) entries.push_back({name, folder, model});
    }
  }
  for (size_t i = 0; i < used.size(); ++i) {
    if (!used[i]) throw headrace::Error(HEADRACE_NOT_FOUND, "is no model below " + arguments.folder, arguments.only[i]);
  }
  if (entries.empty()) {
    throw headrace::Error(HEADRACE_NOT_FOUND, "holds no model with golden.safetensors beside it", arguments.folder);
  }
  return entries;
}

ConformanceResult run_entry(const Entry& entry, const SettingArguments& settings) {
  try {
    ConformanceResult result = run_conformance(GoldenFolder(entry.golden_folder), entry.model_path, settings);
    result.name = entry.name;
    return result;
  } catch (const std::exception& error) {
    ConformanceResult result;
    result.name = entry.name;
    result.path = entry.model_path;
    result.failures.push_back(error.what());
    return result;
  }
}

std::string verdict(const ConformanceResult& result) {
  if (result.passed()) return "ok";
  std::string text;
  if (!result.not_supported.empty()) text = "not supported: " + result.not_supported;
  constexpr size_t kShown = 3;
  for (size_t i = 0; i < std::min(kShown, result.failures.size()); ++i) {
    text += (text.empty() ? "FAILS: " : "; ") + result.failures[i];
  }
  constexpr size_t kLongest = 240;
  if (text.size() > kLongest) text = text.substr(0, kLongest) + "...";
  if (result.failures.size() > kShown) text += "; and " + std::to_string(result.failures.size() - kShown) + " more";
  return text;
}

std::string number(const char* format, double value) {
  char text[48];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

std::vector<std::string> table_row(const ConformanceResult& result) {
  const CaseResult total = result.total();
  const bool computed = total.errors.count > 0;
  std::string bits;
  for (const auto& [kind, same] : result.same_bits) {
    if (!same) bits += (bits.empty() ? "not with other " : ", ") + kind;
  }
  if (bits.empty() && !result.same_bits.empty()) bits = "yes";
  return {
      result.name,
      result.architecture,
      computed ? number("%.1e", total.errors.max) : "",
      computed ? number("%.1e", total.errors.mean()) : "",
      number("%.1e", result.noise),
      total.errors.rows > 0 ? number("%.1e", total.errors.mean_kl()) : "",
      total.errors.rows > 0 ? number("%.4f", total.errors.top1()) : "",
      total.greedy_compared > 0 ? std::to_string(total.greedy_equal) + "/" + std::to_string(total.greedy_compared) : "",
      bits,
      number("%.2f", result.seconds),
      verdict(result)};
}

void print_table(const std::vector<ConformanceResult>& results) {
  std::vector<std::vector<std::string>> rows = {{"model", "architecture", "max error", "mean error", "noise", "mean KL",
                                                 "top-1", "greedy", "equal bits", "seconds", "result"}};
  for (const ConformanceResult& result : results) rows.push_back(table_row(result));
  std::vector<size_t> widths(rows.front().size(), 0);
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i + 1 < row.size(); ++i) line += row[i] + std::string(widths[i] - row[i].size() + 2, ' ');
    std::cout << line << row.back() << "\n";
  }
}

nlohmann::ordered_json to_json(const RowErrors& errors) {
  nlohmann::ordered_json json = {{"max_error", errors.max}, {"mean_error", errors.mean()}};
  if (errors.rows > 0) {
    json["mean_kl"] = errors.mean_kl();
    json["top1_agreement"] = errors.top1();
  }
  return json;
}

nlohmann::ordered_json to_json(const ConformanceResult& result) {
  nlohmann::ordered_json json = {
      {"name", result.name},       {"path", result.path},   {"architecture", result.architecture},
      {"passed", result.passed()}, {"noise", result.noise}, {"tolerance", result.tolerance},
      {"seconds", result.seconds}};
  if (!result.not_supported.empty()) json["not_supported"] = result.not_supported;
  json["failures"] = result.failures;
  const CaseResult total = result.total();
  if (total.errors.count > 0) json.update(to_json(total.errors));
  json["greedy"] = {{"compared", total.greedy_compared}, {"equal", total.greedy_equal}};
  json["equal_bits"] = nlohmann::ordered_json::object();
  for (const auto& [kind, same] : result.same_bits) json["equal_bits"][kind] = same;
  json["cases"] = nlohmann::ordered_json::array();
  for (const CaseResult& one : result.cases) {
    nlohmann::ordered_json item = {{"name", one.name}, {"tokens", one.num_tokens}};
    if (one.errors.count > 0) item.update(to_json(one.errors));
    item["greedy"] = {{"compared", one.greedy_compared}, {"equal", one.greedy_equal}};
    json["cases"].push_back(item);
  }
  return json;
}

void check_conformance(const ConformanceArguments& arguments) {
  arguments.settings.options(kConformanceSettings);  // a bad setting is one failure, not one for each model
  const std::vector<Entry> entries = find_entries(arguments);
  if (!arguments.json.empty()) require_output(arguments.json, arguments.folder);
  std::vector<ConformanceResult> results;
  {
    ProgressBar bar("checking");
    for (const Entry& entry : entries) {
      results.push_back(run_entry(entry, arguments.settings));
      bar.show(static_cast<double>(results.size()) / static_cast<double>(entries.size()));
    }
  }
  print_table(results);
  const auto failed =
      std::count_if(results.begin(), results.end(), [](const auto& result) { return !result.passed(); });
  if (!arguments.json.empty()) {
    nlohmann::ordered_json json = {{"models", nlohmann::ordered_json::array()}, {"failed", failed}};
    for (const ConformanceResult& result : results) json["models"].push_back(to_json(result));
    write_file(arguments.json, json.dump(1, ' ', true, nlohmann::json::error_handler_t::replace) + "\n");
  }
  if (failed > 0) {
    throw std::runtime_error(std::to_string(failed) + " of " + std::to_string(results.size()) +
                             " models do not conform");
  }
}

}  // namespace

void add_conformance(CLI::App& app) {
  auto arguments = std::make_shared<ConformanceArguments>();
  CLI::App* command =
      app.add_subcommand("conformance", "check models against what the reference implementation made of them");
  command
      ->add_option("folder", arguments->folder,
                   "folders of models with golden.safetensors and golden.json, at any depth")
      ->required();
  arguments->settings.add_to(*command);
  command->add_option("--only", arguments->only, "check the models of this name (repeatable)")->take_all();
  command->add_option("--json", arguments->json, "write results to this file too");
  command->callback([arguments] { check_conformance(*arguments); });
}

}  // namespace cli
