// headrace bench: prefill and decode rates, load time, memory.
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <sstream>

#include <nlohmann/json.hpp>

#include "arguments.h"
#include "bandwidth.h"
#include "commands.h"
#include "progress.h"
#include "statistics.h"

namespace cli {
namespace {

struct BenchArguments {
  ModelArguments model;
  int prompt_tokens = 512, gen_tokens = 128, batch = 1, repeats = 3;
  bool json = false;
};

struct Rates {
  double prefill = 0, decode = 0;  // tokens per second, all sequences together
};

// Highest resident memory of this process so far, bytes.
uint64_t peak_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    unsigned long long kib = 0;
    if (std::sscanf(line.c_str(), "VmHWM: %llu kB", &kib) == 1) return kib * 1024;
  }
  return 0;
}

// Ids spread over the vocabulary, another sequence for each seed, no special tokens among them.
std::vector<int32_t> arbitrary_tokens(const headrace::Tokenizer& tokenizer, int count, uint64_t seed) {
  std::vector<int32_t> tokens;
  uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
  while (static_cast<int>(tokens.size()) < count) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const int32_t token = static_cast<int32_t>((state >> 33) % static_cast<uint64_t>(tokenizer.vocab_size()));
    if (!tokenizer.is_special(token)) tokens.push_back(token);
  }
  return tokens;
}

Rates measure(const BenchArguments& arguments, const headrace::Model& model, headrace::Scheduler& scheduler,
              uint64_t seed) {
  using Clock = std::chrono::steady_clock;
  const headrace::Tokenizer tokenizer = model.tokenizer();
  const auto seconds = [](Clock::duration time) { return std::chrono::duration<double>(time).count(); };
  const Clock::time_point start = Clock::now();
  for (int sequence = 0; sequence < arguments.batch; ++sequence) {
    headrace::Request request(model);
    request.add_tokens(
        arbitrary_tokens(tokenizer, arguments.prompt_tokens, seed * 1000 + static_cast<uint64_t>(sequence)));
    request.set_ignore_eos(true).set_length(0, arguments.gen_tokens);
    scheduler.submit(request);
  }
  // Prefill ends with the last sequence's first token; what the others decoded until then belongs to neither rate.
  std::map<uint64_t, bool> started;
  Clock::time_point prefilled = start, end = start;
  int64_t decoded = 0;
  int finished = 0;
  while (finished < arguments.batch) {
    scheduler.step();
    while (std::optional<headrace::Event> event = scheduler.next_event()) {
      if (event->type() == headrace::EventType::kFailed) throw event->error();
      const int64_t tokens = static_cast<int64_t>(event->tokens().size());
      const bool all_started = static_cast<int>(started.size()) == arguments.batch;
      if (tokens > 0) started[event->request_id()] = true;
      end = Clock::now();
      if (all_started) decoded += tokens;
      if (!all_started && static_cast<int>(started.size()) == arguments.batch) prefilled = end;
      finished += event->is_last() ? 1 : 0;
    }
  }
  Rates rates;
  rates.prefill = static_cast<double>(arguments.prompt_tokens) * arguments.batch / seconds(prefilled - start);
  if (decoded > 0) rates.decode = static_cast<double>(decoded) / seconds(end - prefilled);
  return rates;
}

void bench(const BenchArguments& arguments) {
  headrace::Options options = arguments.model.options();
  options.set("kv.prefix_index", "false");
  const int64_t cache_tokens =
      static_cast<int64_t>(arguments.batch) * (arguments.prompt_tokens + arguments.gen_tokens + 32);
  options.set("kv.max_tokens", std::to_string(cache_tokens));
  options.set("scheduler.max_num_seqs", std::to_string(std::max(arguments.batch, 1)));

  const auto start = std::chrono::steady_clock::now();
  const headrace::Model model = arguments.model.load(options);
  const double load_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();

  headrace::Scheduler scheduler(model, options);
  std::vector<double> prefill, decode;
  {
    ProgressBar bar("measuring");
    for (int repeat = 0; repeat <= arguments.repeats; ++repeat) {  // the first warms up and is not counted
      const Rates rates = measure(arguments, model, scheduler, static_cast<uint64_t>(repeat));
      bar.show(static_cast<double>(repeat + 1) / (arguments.repeats + 1));
      if (repeat == 0) continue;
      prefill.push_back(rates.prefill);
      decode.push_back(rates.decode);
    }
  }
  const uint64_t peak = peak_bytes();
  const double bandwidth = measure_read_bandwidth(model.info().num_threads);
  const auto description = nlohmann::ordered_json::parse(model.describe());
  // A decode step reads each weight but the embedding table once (with tied embeddings that is the head), for all
  // sequences together.
  const double step_bytes = description.value("decode_weight_bytes", static_cast<double>(model.info().weight_bytes));
  const double share = bandwidth > 0 ? median(decode) / arguments.batch * step_bytes / bandwidth : 0;

  const nlohmann::ordered_json out = {{"model", arguments.model.path},
                                      {"isa", description.value("isa", "")},
                                      {"threads", model.info().num_threads},
                                      {"prompt_tokens", arguments.prompt_tokens},
                                      {"gen_tokens", arguments.gen_tokens},
                                      {"batch", arguments.batch},
                                      {"prefill_tokens_per_second", median(prefill)},
                                      {"decode_tokens_per_second", median(decode)},
                                      {"read_bandwidth_bytes_per_second", bandwidth},
                                      {"decode_share_of_bandwidth", share},
                                      {"load_seconds", load_seconds},
                                      {"peak_bytes", peak}};
  if (arguments.json) {
    std::cout << out.dump() << "\n";
    return;
  }
  for (const auto& [key, value] : out.items()) {
    std::cout << key << ": " << (value.is_string() ? value.get<std::string>() : value.dump()) << "\n";
  }
}

}  // namespace

void add_bench(CLI::App& app) {
  auto arguments = std::make_shared<BenchArguments>();
  CLI::App* command = app.add_subcommand("bench", "prefill and decode rates, load time and memory");
  arguments->model.add_to(*command);
  command->add_option("--prompt-tokens", arguments->prompt_tokens, "tokens of each prompt")->check(at_least(1));
  command->add_option("--gen-tokens", arguments->gen_tokens, "tokens generated by each sequence")->check(at_least(1));
  command->add_option("--batch", arguments->batch, "sequences at once")->check(at_least(1));
  command->add_option("--repeats", arguments->repeats, "counted runs; the median is printed")->check(at_least(1));
  command->add_flag("--json", arguments->json, "print one JSON object");
  command->callback([arguments] { bench(*arguments); });
}

}  // namespace cli
