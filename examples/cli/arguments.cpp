#include "arguments.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <stdexcept>

#include "progress.h"

namespace cli {
namespace {

// A validator of decimal numbers of type T in [least, most], which leaves each as its shortest spelling: CLI11 by itself
// takes a number beyond 64 bits for the nearest one within, and a leading 0 for the sign of another base.
template <class T>
CLI::Validator whole_number(T least, T most) {
  const auto check = [least, most](std::string& text) -> std::string {
    T value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (text.empty() || end != text.data() + text.size() || error == std::errc::invalid_argument) {
      return text + " is not a whole number" + (least == 0 ? " of 0 or more" : "");
    }
    if (error == std::errc::result_out_of_range) return text + " does not fit into 64 bits";
    if (value < least) return text + " is less than " + std::to_string(least);
    if (value > most) return text + " is more than " + std::to_string(most);
    text = std::to_string(value);
    return "";
  };
  return CLI::Validator(check, "");
}

void print_warning(void*, int32_t level, const char*, const char* line) {
  constexpr int32_t kWarning = 2;
  if (level >= kWarning) std::fprintf(stderr, "headrace: warning: %s\n", line);
}

}  // namespace

void SettingArguments::add_to(CLI::App& command) {
  command.add_option("-t,--threads", threads, "threads (0, the default: all processors this process may use)")
      ->transform(within(0, INT32_MAX));
  command.add_option("--isa", isa, "instruction set: auto, baseline, avx2, avx_vnni, avx512_vnni, neon, neon_dotprod");
  command.add_option("--device", device, "where to compute: cpu, cuda, cuda:N, emulated-cuda (test builds)");
  command.add_option("--kv-dtype", kv_dtype, "type of cached keys and values: f32, f16, bf16, q8");
  command.add_option("--kv-host-bytes", kv_host_bytes, "memory for cached blocks that the pool has no room for");
  command.add_option("--kv-disk-path", kv_disk_path, "folder for cached blocks that memory has no room for");
  command.add_option("--kv-disk-bytes", kv_disk_bytes, "bytes of the files there (default: 4 GiB)");
  command.add_option("--kv-disk-codec", kv_disk_codec, "how they are compressed: none, zstd");
  command.add_option("--set", settings, "further setting as key=value (docs/c-abi.md lists them)")->take_all();
}

void SettingArguments::add_drafter_to(CLI::App& command) {
  command.add_option("--drafter", drafter,
                     "who guesses at the next tokens, so that one step checks several: off, auto, or with commas "
                     "between ngram, suffix, model:PATH, mtp, eagle:PATH, eagle3:PATH, medusa:PATH, dflash:PATH; the "
                     "output is the same with any");
}

headrace::Options SettingArguments::options(std::initializer_list<std::string_view> own) const {
  headrace::Options options;
  options.set_log(print_warning, nullptr);
  if (threads > 0) options.set("engine.threads", std::to_string(threads));
  if (!isa.empty()) options.set("engine.isa", isa);
  if (!device.empty()) options.set("model.device", device);
  if (!kv_dtype.empty()) options.set("kv.dtype", kv_dtype);
  if (!drafter.empty()) options.set("scheduler.drafter", drafter);
  if (!kv_host_bytes.empty()) options.set("kv.host_bytes", kv_host_bytes);
  if (!kv_disk_path.empty()) options.set("kv.disk_path", kv_disk_path);
  if (!kv_disk_bytes.empty()) options.set("kv.disk_bytes", kv_disk_bytes);
  if (!kv_disk_codec.empty()) options.set("kv.disk_codec", kv_disk_codec);
  for (const std::string& setting : settings) {
    const size_t equals = setting.find('=');
    if (equals == std::string::npos) throw headrace::Error(HEADRACE_INVALID_ARGUMENT, "is not key=value", setting);
    const std::string key = setting.substr(0, equals);
    if (std::find(own.begin(), own.end(), key) != own.end()) {
      throw headrace::Error(HEADRACE_INVALID_ARGUMENT, "is what this command chooses itself", key);
    }
    options.set(key, setting.substr(equals + 1));
  }
  return options;
}

void ModelArguments::add_to(CLI::App& command) {
  command.add_option("-m,--model", path, "GGUF file, safetensors file, Hugging Face folder or graft")->required();
  SettingArguments::add_to(command);
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
      ->transform(at_least(0));
  command.add_option("--temp", temperature, "temperature; 0 is greedy (default)");
  command.add_option("--top-k", top_k, "keep the k most likely tokens")->transform(within(INT32_MIN, INT32_MAX));
  command.add_option("--top-p", top_p, "keep the most likely tokens of this total probability");
  command.add_option("--min-p", min_p, "drop tokens less likely than this share of the most likely");
  command.add_option("--repetition-penalty", repetition_penalty, "penalty on tokens seen before");
  seed_option_ = command.add_option("--seed", seed, "seed of the draws (default: a new one each time)")
                     ->transform(whole_number<uint64_t>(0, UINT64_MAX));
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
  std::string text;
  std::vector<char> part(1 << 16);
  while (file.read(part.data(), static_cast<std::streamsize>(part.size())) || file.gcount() > 0) {
    text.append(part.data(), static_cast<size_t>(file.gcount()));
  }
  if (!file.eof() || file.bad()) throw std::runtime_error(path + ": cannot be read");
  return text;
}

std::string read_filled_file(const std::string& path) {
  std::string text = read_file(path);
  if (text.empty()) throw std::runtime_error((path == "-" ? "standard input" : path) + ": is empty");
  return text;
}

CLI::Option* add_number_list(CLI::App& command, const std::string& name, std::vector<int32_t>& numbers, int64_t least,
                             int64_t most, const std::string& description) {
  // CLI11's own lists leave out what is empty between two commas.
  const auto parse = [least, most](const std::string& text, std::vector<int32_t>& out) -> std::string {
    const CLI::Validator number = within(least, most);
    out.clear();
    for (size_t begin = 0;;) {
      const size_t end = std::min(text.find(',', begin), text.size());
      std::string item = text.substr(begin, end - begin);
      if (const std::string message = number(item); !message.empty()) return message;
      out.push_back(static_cast<int32_t>(std::stoll(item)));
      if (end == text.size()) return "";
      begin = end + 1;
    }
  };
  const auto check = [parse](const std::string& text) {
    std::vector<int32_t> ignored;
    return parse(text, ignored);
  };
  return command
      .add_option_function<std::string>(
          name, [parse, &numbers](const std::string& text) { parse(text, numbers); }, description)
      ->check(CLI::Validator([check](std::string& text) { return check(text); }, ""));
}

void print_text(const std::string& text) {
  if (!(std::cout << text << std::flush)) throw std::runtime_error("standard output: writing failed");
}

CLI::Validator at_least(int64_t least) { return whole_number<int64_t>(least, INT64_MAX); }

CLI::Validator within(int64_t least, int64_t most) { return whole_number<int64_t>(least, most); }

}  // namespace cli
