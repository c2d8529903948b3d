// Arguments the subcommands share, and what they make of them.
#pragma once

#include <headrace/headrace.hpp>

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>

namespace cli {

// The settings that models are loaded with.
struct SettingArguments {
  int threads = 0;
  std::string isa, device, kv_dtype, kv_host_bytes, kv_disk_path, kv_disk_bytes, kv_disk_codec, drafter;
  std::vector<std::string> settings;  // "key=value"

  void add_to(CLI::App& command);
  // Of commands that generate.
  void add_drafter_to(CLI::App& command);
  // Throws headrace::Error for a bad setting, and for one of the keys in `own`, which the command sets itself.
  headrace::Options options(std::initializer_list<std::string_view> own = {}) const;
};

// -m and the settings of a loaded model.
struct ModelArguments : SettingArguments {
  std::string path;

  void add_to(CLI::App& command);
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

// The same; an empty file is refused as well, by name.
std::string read_filled_file(const std::string& path);

// Writes to standard output at once. Throws std::runtime_error where nobody takes it.
void print_text(const std::string& text);

// An option of whole numbers with commas between them, none of which is empty. `numbers` must live as long as the command.
CLI::Option* add_number_list(CLI::App& command, const std::string& name, std::vector<int32_t>& numbers, int64_t least,
                             int64_t most, const std::string& description);

// For CLI::Option::transform: whole numbers given on the command line, which are decimal.
CLI::Validator at_least(int64_t least);
CLI::Validator within(int64_t least, int64_t most);

}  // namespace cli
