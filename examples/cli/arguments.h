// Arguments the subcommands share, and what they make of them.
#pragma once

#include <headrace/headrace.hpp>

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace cli {

// -m and the settings of a loaded model.
struct ModelArguments {
  std::string path;
  int threads = 0;
  std::string isa, kv_dtype;
  std::vector<std::string> settings;  // "key=value"

  void add_to(CLI::App& command);
  // Throws headrace::Error for a bad setting.
  headrace::Options options() const;
  // Loads with a progress bar on a terminal's standard error.
  headrace::Model load(const headrace::Options& options) const;
  headrace::Model load() const { return load(options()); }
};

// How to draw tokens.
struct SamplingArguments {
  float temperature = 0, top_p = 1, min_p = 0, repetition_penalty = 1;
  int top_k = 0;
  uint64_t seed = 0;
  int64_t max_tokens = 256;
  std::vector<std::string> stop;

  void add_to(CLI::App& command);
  // Fills the request's sampling, stop strings and length; what was not given on the command line keeps its default.
  void apply(headrace::Request& request) const;

 private:
  CLI::Option* seed_option_ = nullptr;
};

// The whole of a file, or of standard input for "-". Throws std::runtime_error naming the file.
std::string read_file(const std::string& path);

// Replaces a file's content. Throws std::runtime_error naming the file.
void write_file(const std::string& path, const std::string& content);

// Throws std::runtime_error naming the file where write_file could not make or replace it. Nothing is made or changed: to be
// asked before long work whose result goes there.
void require_writable(const std::string& path);

// For CLI::Option::transform: whole numbers given on the command line, which are decimal.
CLI::Validator at_least(int64_t least);
CLI::Validator within(int64_t least, int64_t most);

}  // namespace cli
