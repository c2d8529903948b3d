// headrace bench: prefill and decode rates, where their time goes, the cost of verifying several tokens, load time, memory.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <limits>
#include <map>
#include <memory>
#include <string>

#include <nlohmann/json.hpp>

#include "arguments.h"
#include "bench_workload.h"
#include "commands.h"
#include "op_report.h"
#include "output_file.h"
#include "progress.h"
#include "roofline.h"
#include "serve_bench.h"
#include "statistics.h"
#include "sweep.h"

namespace cli {
namespace {

// The most that the options kv.max_tokens and scheduler.max_num_seqs take.
constexpr int kMostTokens = 1 << 30, kMostSequences = 4096;

struct BenchArguments {
  ModelArguments model;
  Workload workload;
  int repeats = 3;
  bool json = false, rates_only = false;
  std::string trace;
  bool sweep = false;
  SweepArguments sweep_arguments;
  std::string svg;
  std::string serve;  // a trace's name, or a file
  int serve_requests = 64;
  double serve_rate = 1;
  std::string plots;  // a folder
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

headrace::Options bench_options(const BenchArguments& arguments) {
  const Workload& workload = arguments.workload;
  headrace::Options options =
      arguments.model.options({"kv.prefix_index", "kv.max_tokens", "scheduler.max_num_seqs", "engine.profile"});
  options.set("kv.prefix_index", "false");
  const int64_t cache_tokens = workload.batch * (int64_t{workload.prompt_tokens} + workload.gen_tokens + 32);
  options.set("kv.max_tokens", std::to_string(cache_tokens));
  options.set("scheduler.max_num_seqs", std::to_string(workload.batch));
  return options;
}

// The better of two passes: the first may wait for a thread to wake.
double best_pass(const ReadProbe& probe) { return std::max(probe.pass(), probe.pass()); }

// Time of a forward pass over several tokens of one sequence, all their logits wanted, as speculative decoding checks a
// draft: after a prompt, in turns; medians. Empty where the model's context has no room for it.
nlohmann::ordered_json measure_verification(const BenchArguments& arguments, const headrace::Model& model,
                                            const headrace::Options& options) {
  constexpr int kRows[] = {1, 2, 4, 8}, kMost = 8, kRounds = 9;
  nlohmann::ordered_json out = nlohmann::ordered_json::array();
  const headrace_model_info info = model.info();
  const int context = arguments.workload.prompt_tokens;
  if (context + kMost > info.max_position_embeddings) return out;
  headrace::Session session(model, options);
  const std::vector<int32_t> tokens = arbitrary_tokens(model.tokenizer(), context + kMost, 12345);
  session.evaluate({tokens.begin(), tokens.begin() + context});
  std::vector<float> logits(static_cast<size_t>(kMost) * static_cast<size_t>(info.vocab_size));
  std::map<int, std::vector<double>> seconds;
  for (int round = 0; round < kRounds; ++round) {
    for (const int rows : kRows) {
      const OpReading before(model.describe_profile());
      session.evaluate(tokens.data() + context, static_cast<size_t>(rows), logits.data(), logits.size());
      const OpReading taken = OpReading(model.describe_profile()) - before;
      if (round > 0) seconds[rows].push_back(static_cast<double>(taken.span("forward").nanoseconds) / 1e9);
      session.rewind(static_cast<size_t>(context));
    }
  }
  const double one = median(seconds[1]);
  for (const int rows : kRows) {
    const double value = median(seconds[rows]);
    out.push_back({{"rows", rows}, {"seconds", value}, {"relative", one > 0 ? value / one : 0}});
  }
  return out;
}

// Runs with the ops measured, on a model loaded anew for that. Memory is probed right before and right after each decode
// phase, since the rate of a shared machine changes within seconds; the run whose two readings agree best counts.
void measure_ops(const BenchArguments& arguments, double step_bytes, Roofline roofline, nlohmann::ordered_json& out) {
  constexpr int kMostRuns = 5;
  constexpr double kAgreement = 0.03;
  headrace::Options options = bench_options(arguments);
  options.set("engine.profile", arguments.trace.empty() ? "ops" : "trace");
  const headrace::Model model = arguments.model.load(options);
  {
    headrace::Scheduler scheduler(model, options);
    Workload warm_up = arguments.workload;
    warm_up.gen_tokens = std::min(warm_up.gen_tokens, 8);
    run_workload(warm_up, model, scheduler, 0);
    const ReadProbe probe(out.at("isa"), out.at("threads"));
    double smallest_change = std::numeric_limits<double>::infinity();
    for (int run = 1; run <= kMostRuns && smallest_change > kAgreement; ++run) {
      const OpReading before(model.describe_profile());
      OpReading between;
      double first = 0;
      const Rates rates = run_workload(arguments.workload, model, scheduler, static_cast<uint64_t>(run), [&] {
        between = OpReading(model.describe_profile());
        first = best_pass(probe);
      });
      const OpReading after(model.describe_profile());
      const double last = best_pass(probe), bandwidth = (first + last) / 2;
      const double change = std::abs(last - first) / bandwidth;
      if (change >= smallest_change) continue;
      smallest_change = change;
      roofline.read_bytes_per_second = bandwidth;
      out["read_bandwidth_bytes_per_second"] = bandwidth;
      out["decode_share_of_bandwidth"] = rates.decode / arguments.workload.batch * step_bytes / bandwidth;
      out["prefill_ops"] = report_ops(between - before, rates.prefill_seconds, roofline);
      out["decode_ops"] = report_ops(after - between, rates.decode_seconds, roofline);
    }
  }
  out["roofline"]["read_bytes_per_second"] = roofline.read_bytes_per_second;
  if (!arguments.trace.empty()) write_file(arguments.trace, model.describe_trace());
  out["verification"] = measure_verification(arguments, model, options);
}

void print(const nlohmann::ordered_json& out) {
  for (const auto& [key, value] : out.items()) {
    if (value.is_structured()) continue;
    std::cout << key << ": " << (value.is_string() ? value.get<std::string>() : value.dump()) << "\n";
  }
  const double read = out.at("roofline").at("read_bytes_per_second");
  const double int8 = out.at("roofline").at("int8_multiply_adds_per_second");
  const double floats = out.at("roofline").at("float_multiply_adds_per_second");
  char line[160];
  std::snprintf(line, sizeof line, "roofline: reads %.1f GB/s, multiply-adds %.0f G/s of int8, %.0f G/s of float\n",
                read / 1e9, int8 / 1e9, floats / 1e9);
  std::cout << line;
  if (!out.contains("decode_ops")) return;
  print_ops(std::cout, "prefill", out.at("prefill_ops"));
  print_ops(std::cout, "decode", out.at("decode_ops"));
  for (const auto& row : out.at("verification")) {
    std::snprintf(line, sizeof line, "pass of %d rows of one sequence: %.2f ms, %.2f of one row's\n",
                  row.at("rows").get<int>(), row.at("seconds").get<double>() * 1e3, row.at("relative").get<double>());
    std::cout << line;
  }
}

void sweep(const BenchArguments& arguments) {
  if (!arguments.svg.empty()) require_output(arguments.svg, arguments.model.path);
  const headrace::Model model =
      arguments.model.load(arguments.model.options({"kv.prefix_index", "kv.max_tokens", "scheduler.max_num_seqs"}));
  const nlohmann::ordered_json rates = run_sweep(arguments.sweep_arguments, model, arguments.model);
  if (rates.at("prefill").empty()) {
    throw headrace::Error(HEADRACE_INVALID_ARGUMENT,
                          "no context fits; " + rates.at("left_out").back().get<std::string>(), "--sweep-contexts");
  }
  if (!arguments.svg.empty()) {
    const std::string name = std::filesystem::path(arguments.model.path).filename().string();
    write_file(arguments.svg, sweep_svg(rates, name));
  }
  if (arguments.json) {
    const auto description = nlohmann::ordered_json::parse(model.describe());
    nlohmann::ordered_json out = {
        {"model", arguments.model.path}, {"isa", description.value("isa", "")}, {"threads", model.info().num_threads}};
    out["sweep"] = rates;
    std::cout << out.dump() << "\n";
  } else {
    std::cout << sweep_table(rates);
  }
}

void serve(const BenchArguments& arguments) {
  std::vector<TraceRequest> trace = synthetic_trace(arguments.serve, arguments.serve_requests, arguments.serve_rate);
  if (trace.empty()) trace = read_trace(arguments.serve);
  if (!arguments.plots.empty()) std::filesystem::create_directories(arguments.plots);
  if (!arguments.trace.empty()) require_output(arguments.trace, arguments.model.path);
  headrace::Options options = arguments.model.options();
  if (!arguments.trace.empty()) options.set("engine.profile", "trace");
  const headrace::Model model = arguments.model.load(options);
  headrace::Scheduler scheduler(model, options);
  nlohmann::ordered_json out = {{"model", arguments.model.path}, {"trace", arguments.serve}};
  ReplayRecord record;
  out.update(replay(trace, model, scheduler, &record));
  if (!arguments.trace.empty()) write_file(arguments.trace, model.describe_trace());
  if (!arguments.plots.empty()) {
    const std::string title = std::filesystem::path(arguments.model.path).filename().string() + ", " +
                              std::filesystem::path(arguments.serve).filename().string();
    for (const auto& [name, content] : serve_plots(record, title)) {
      write_file((std::filesystem::path(arguments.plots) / name).string(), content);
    }
  }
  std::cout << (arguments.json ? out.dump() + "\n" : replay_table(out));
}

void bench(const BenchArguments& arguments) {
  if (!arguments.trace.empty()) require_output(arguments.trace, arguments.model.path);
  const Workload& workload = arguments.workload;
  const headrace::Options options = bench_options(arguments);
  nlohmann::ordered_json out;
  std::string isa;
  int num_threads = 0;
  double step_bytes = 0;
  {
    const auto start = std::chrono::steady_clock::now();
    const headrace::Model model = arguments.model.load(options);
    const double load_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    headrace::Scheduler scheduler(model, options);
    std::vector<double> prefill, decode;
    {
      ProgressBar bar("measuring");
      for (int repeat = 0; repeat <= arguments.repeats; ++repeat) {  // the first warms up and is not counted
        const Rates rates = run_workload(workload, model, scheduler, static_cast<uint64_t>(repeat));
        bar.show(static_cast<double>(repeat + 1) / (arguments.repeats + 1));
        if (repeat == 0) continue;
        prefill.push_back(rates.prefill);
        decode.push_back(rates.decode);
      }
    }
    const auto description = nlohmann::ordered_json::parse(model.describe());
    isa = description.value("isa", "");
    num_threads = model.info().num_threads;
    // A decode step reads each weight but the embedding table once (with tied embeddings that is the head), for all
    // sequences together.
    step_bytes = description.value("decode_weight_bytes", static_cast<double>(model.info().weight_bytes));
    out = {{"model", arguments.model.path},
           {"isa", isa},
           {"threads", num_threads},
           {"prompt_tokens", workload.prompt_tokens},
           {"gen_tokens", workload.gen_tokens},
           {"batch", workload.batch},
           {"prefill_tokens_per_second", median(prefill)},
           {"decode_tokens_per_second", median(decode)},
           {"speculation", nlohmann::ordered_json::parse(scheduler.describe_speculation())},
           {"load_seconds", load_seconds},
           {"peak_bytes", peak_bytes()}};
  }
  // Without the model: the probe's buffers come on top of nothing.
  const Roofline roofline = measure_roofline(isa, num_threads);
  const double bandwidth = roofline.read_bytes_per_second, decode = out.at("decode_tokens_per_second");
  out["read_bandwidth_bytes_per_second"] = bandwidth;
  out["decode_share_of_bandwidth"] = bandwidth > 0 ? decode / workload.batch * step_bytes / bandwidth : 0;
  out["roofline"] = {{"read_bytes_per_second", bandwidth},
                     {"int8_multiply_adds_per_second", roofline.int8_multiply_adds_per_second},
                     {"float_multiply_adds_per_second", roofline.float_multiply_adds_per_second}};
  if (!arguments.rates_only) measure_ops(arguments, step_bytes, roofline, out);
  if (arguments.json) {
    std::cout << out.dump() << "\n";
  } else {
    print(out);
  }
}

}  // namespace

void add_bench(CLI::App& app) {
  auto arguments = std::make_shared<BenchArguments>();
  CLI::App* command = app.add_subcommand("bench", "prefill and decode rates, each op's share, load time and memory");
  arguments->model.add_to(*command);
  arguments->model.add_drafter_to(*command);
  std::vector<CLI::Option*> of_runs = {
      command->add_option("--prompt-tokens", arguments->workload.prompt_tokens, "tokens of each prompt")
          ->transform(within(1, kMostTokens)),
      command
          ->add_option("--gen-tokens", arguments->workload.gen_tokens,
                       "tokens generated by each sequence, the first of them with the prefill")
          ->transform(within(2, kMostTokens)),
      command->add_option("--batch", arguments->workload.batch, "sequences at once")
          ->transform(within(1, kMostSequences)),
      command->add_option("--repeats", arguments->repeats, "counted runs; the median is printed")
          ->transform(within(1, 1 << 20))};
  CLI::Option* rates_only = command->add_flag("--rates-only", arguments->rates_only, "no run with the ops measured");
  CLI::Option* trace =
      command
          ->add_option("--trace", arguments->trace,
                       "write the requests, steps and ops of that run, or of --serve, as Chrome trace events")
          ->excludes(rates_only);
  of_runs.push_back(rates_only);
  command->add_flag("--json", arguments->json, "print one JSON object");
  CLI::Option* sweeps =
      command->add_flag("--sweep", arguments->sweep, "instead: a table of rates over sequences at once and context");
  for (CLI::Option* option : of_runs) option->excludes(sweeps);
  trace->excludes(sweeps);
  SweepArguments& grid = arguments->sweep_arguments;
  add_number_list(*command, "--sweep-contexts", grid.contexts, 1, kMostTokens,
                  "tokens before decoding (default 512 to 32768)")
      ->needs(sweeps);
  command
      ->add_option("--sweep-gen-tokens", grid.gen_tokens, "tokens generated by each sequence for a rate (default 16)")
      ->transform(within(1, 1 << 20))
      ->needs(sweeps);
  add_number_list(*command, "--sweep-batches", grid.batches, 1, kMostSequences, "sequences at once (default 1 to 64)")
      ->needs(sweeps);
  command->add_option("--sweep-memory", grid.memory_gb, "GB for keys and values (default: half of what is free)")
      ->check([](const std::string& text) {
        double value = 0;
        const bool right = CLI::detail::lexical_cast(text, value) && value > 0 && value <= 1e6;
        return right ? std::string() : text + " is not between 0 and 1000000";
      })
      ->needs(sweeps);
  command->add_option("--svg", arguments->svg, "write the table as charts over batch and context to this SVG file")
      ->needs(sweeps);
  CLI::Option* serves =
      command->add_option("--serve", arguments->serve,
                          "instead: replay a trace, coding-agent, chat, documents, tenants or a JSONL "
                          "file, and print latencies of each class and tenant");
  for (CLI::Option* option : of_runs) option->excludes(serves);
  serves->excludes(sweeps);
  command->add_option("--serve-requests", arguments->serve_requests, "requests of a made trace (default 64)")
      ->transform(within(1, 1 << 20))
      ->needs(serves);
  command->add_option("--serve-rate", arguments->serve_rate, "conversations a second of a made trace (default 1)")
      ->check([](const std::string& text) {
        double value = 0;
        const bool right = CLI::detail::lexical_cast(text, value) && value > 0 && value <= 1e6;
        return right ? std::string() : text + " is not between 0 and 1000000";
      })
      ->needs(serves);
  command
      ->add_option("--plots", arguments->plots,
                   "also write charts of latencies and of the run to SVG files in this folder, which is made")
      ->needs(serves);
  command->callback([arguments] {
    if (!arguments->serve.empty()) return serve(*arguments);
    arguments->sweep ? sweep(*arguments) : bench(*arguments);
  });
}

}  // namespace cli
