#include "arguments.h"

#include <fstream>
#include <iostream>
#include <iterator>
#include <sstream>
#include <stdexcept>

#include "progress.h"

namespace cli {

void ModelArguments::add_to(CLI::App& command) {
  command.add_option("-m,--model", path, "GGUF file, safetensors file or Hugging Face folder")->required();
  command.add_option("-t,--threads", threads, "threads (0, the default: all processors this process may use)")
      ->check(at_least(0));
  command.add_option("--isa", isa, "instruction set: auto, baseline, avx2, avx_vnni, avx512_vnni");
  command.add_option("--kv-dtype", kv_dtype, "type of cached keys and values: f32, f16, bf16, q8");
  command.add_option("--set", settings, "further setting as key=value (docs/c-abi.md lists them)")->take_all();
}

headrace::Options ModelArguments::options() const {
  headrace::Options options;
  if (threads > 0) options.set("engine.threads", std::to_string(threads));
  if (!isa.empty()) options.set("engine.isa", isa);
  if (!kv_dtype.empty()) options.set("kv.dtype", kv_dtype);
  for (const std::string& setting : settings) {
    const size_t equals = setting.find('=');
    if (equals == std::string::npos) throw headrace::Error(HEADRACE_INVALID_ARGUMENT, "is not key=value", setting);
    options.set(setting.substr(0, equals), setting.substr(equals + 1));
  }
  return options;
}

headrace::Model ModelArguments::load(const headrace::Options& options) const {
  ProgressBar bar("loading " + path);
  return headrace::Model::load(path, options, [&](double fraction) {
    bar.show(fraction);
    return true;
  });
}

void SamplingArguments::add_to(CLI::App& command) {
  command.add_option("-n,--max-tokens", max_tokens, "tokens to generate at most (0: until the model ends)")
      ->check(at_least(0));
  command.add_option("--temp", temperature, "temperature; 0 is greedy (default)");
  command.add_option("--top-k", top_k, "keep the k most likely tokens");
  command.add_option("--top-p", top_p, "keep the most likely tokens of this total probability");
  command.add_option("--min-p", min_p, "drop tokens less likely than this share of the most likely");
  command.add_option("--repetition-penalty", repetition_penalty, "penalty on tokens seen before");
  seed_option_ = command.add_option("--seed", seed, "seed of the draws (default: a new one each time)");
  command.add_option("--stop", stop, "text that ends the output (repeatable)")->take_all();
}

void SamplingArguments::apply(headrace::Request& request) const {
  headrace::Sampling sampling;
  sampling.temperature = temperature;
  sampling.top_k = top_k;
  sampling.top_p = top_p;
  sampling.min_p = min_p;
  sampling.repetition_penalty = repetition_penalty;
  sampling.seed = seed;
  sampling.has_seed = seed_option_ != nullptr && seed_option_->count() > 0 ? 1 : 0;
  request.set_sampling(sampling).set_length(0, max_tokens);
  for (const std::string& text : stop) request.add_stop(text);
}

std::string read_file(const std::string& path) {
  if (path == "-") return std::string(std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>());
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (!file || !(text << file.rdbuf())) throw std::runtime_error(path + ": cannot be read");
  return text.str();
}

void write_file(const std::string& path, const std::string& content) {
  std::ofstream file(path, std::ios::binary);
  file << content;
  file.close();
  if (!file) throw std::runtime_error(path + ": cannot be written");
}

CLI::Validator at_least(int64_t least) {
  const auto check = [least](std::string& text) -> std::string {
    int64_t value = 0;
    if (!CLI::detail::lexical_cast(text, value)) return text + " is not a whole number";
    return value < least ? text + " is less than " + std::to_string(least) : std::string();
  };
  return CLI::Validator(check, "");
}

}  // namespace cli
