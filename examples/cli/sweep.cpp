#include "sweep.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "bench_workload.h"
#include "line_chart.h"
#include "progress.h"

namespace cli {
namespace {

constexpr int kSlack = 32;  // tokens: a block more for each sequence

// Memory that programs can have without swapping, bytes.
double available_bytes() {
  std::ifstream status("/proc/meminfo");
  for (std::string line; std::getline(status, line);) {
    unsigned long long kib = 0;
    if (std::sscanf(line.c_str(), "MemAvailable: %llu kB", &kib) == 1) return static_cast<double>(kib) * 1024;
  }
  return 4e9;
}

// A file that goes when the object goes.
class TemporaryFile {
 public:
  TemporaryFile() {
    std::string pattern = (std::filesystem::temp_directory_path() / "headrace_sweep_XXXXXX").string();
    const int descriptor = mkstemp(pattern.data());
    if (descriptor < 0) throw std::runtime_error(pattern + ": cannot be made");
    close(descriptor);
    path_ = pattern;
  }
  ~TemporaryFile() { std::remove(path_.c_str()); }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

headrace::Options options_for(const ModelArguments& model_arguments, int64_t tokens, int batch) {
  headrace::Options options = model_arguments.options();
  options.set("kv.prefix_index", "false").set("kv.max_tokens", std::to_string(tokens));
  options.set("scheduler.max_num_seqs", std::to_string(batch));
  return options;
}

// Decode rates of this context, for each batch of which no more than `most` sequences fit.
void sweep_batches(const SweepArguments& arguments, const headrace::Model& model, const ModelArguments& model_arguments,
                   const std::string& saved, int context, int64_t most, ProgressBar& bar,
                   const std::function<void(int batch, double rate)>& found) {
  const int largest =
      static_cast<int>(std::min<int64_t>(most, *std::max_element(arguments.batches.begin(), arguments.batches.end())));
  const int64_t tokens = static_cast<int64_t>(largest) * (context + arguments.gen_tokens + kSlack);
  const headrace::Options options = options_for(model_arguments, tokens, largest);
  const headrace::KVCache cache(model, options);
  headrace::Scheduler scheduler(model, cache, options);
  std::vector<headrace::Session> sessions;
  for (const int batch : arguments.batches) {
    if (batch > largest) continue;
    while (static_cast<int>(sessions.size()) < batch) {
      sessions.push_back(headrace::Session::restore(model, cache, saved, options));
    }
    double best = 0;
    for (int round = 0; round < 2; ++round) {
      std::vector<headrace::Request> requests;
      for (int i = 0; i < batch; ++i) {
        headrace::Request& request = requests.emplace_back(model);
        request.set_session(sessions[static_cast<size_t>(i)]);
        request.set_ignore_eos(true).set_length(0, arguments.gen_tokens + 1);
      }
      best = std::max(best, decode_rate(requests, scheduler));
      for (int i = 0; i < batch; ++i) sessions[static_cast<size_t>(i)].rewind(static_cast<size_t>(context));
    }
    found(batch, best);
    bar.show(0);
  }
}

}  // namespace

nlohmann::ordered_json run_sweep(const SweepArguments& arguments, const headrace::Model& model,
                                 const ModelArguments& model_arguments) {
  const auto description = nlohmann::ordered_json::parse(model.describe());
  const std::string kv_dtype = model_arguments.kv_dtype.empty() ? "f16" : model_arguments.kv_dtype;
  const double token_bytes = description.at("kv_bytes_per_token").at(kv_dtype);
  const double memory = arguments.memory_gb > 0 ? arguments.memory_gb * 1e9 : available_bytes() / 2;
  std::vector<int> contexts = arguments.contexts;
  std::sort(contexts.begin(), contexts.end());
  // The prompt's own keys and values stay beside those of the sequences.
  std::erase_if(contexts, [&](int context) {
    return context + arguments.gen_tokens + kSlack > model.info().max_position_embeddings ||
           token_bytes * (2.0 * context + arguments.gen_tokens + 2 * kSlack) > memory;
  });
  nlohmann::ordered_json prefill = nlohmann::ordered_json::array(), decode = prefill;
  if (!contexts.empty()) {
    const headrace::Options options = options_for(model_arguments, contexts.back() + kSlack, 1);
    const std::vector<int32_t> tokens = arbitrary_tokens(model.tokenizer(), contexts.back(), 1);
    {
      headrace::Session warm_up(model, options);
      warm_up.evaluate({tokens.begin(), tokens.begin() + std::min(contexts.front(), 512)});
    }
    headrace::Session prompt(model, options);
    const TemporaryFile file;
    ProgressBar bar("sweeping");
    int computed = 0;
    double seconds = 0;
    for (const int context : contexts) {
      const auto start = std::chrono::steady_clock::now();
      prompt.evaluate({tokens.begin() + computed, tokens.begin() + context});
      seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      computed = context;
      prefill.push_back({{"context", context}, {"tokens_per_second", context / seconds}});
      prompt.save(file.path());
      const double left = memory - token_bytes * (context + kSlack);
      const auto most = static_cast<int64_t>(left / (token_bytes * (context + arguments.gen_tokens + kSlack)));
      sweep_batches(arguments, model, model_arguments, file.path(), context, most, bar, [&](int batch, double rate) {
        decode.push_back({{"context", context}, {"batch", batch}, {"tokens_per_second", rate}});
      });
    }
  }
  return {{"gen_tokens", arguments.gen_tokens},
          {"cache_memory_bytes", memory},
          {"prefill", std::move(prefill)},
          {"decode", std::move(decode)}};
}

std::string sweep_table(const nlohmann::ordered_json& sweep) {
  std::vector<int> batches;
  for (const auto& cell : sweep.at("decode")) {
    const int batch = cell.at("batch");
    if (std::find(batches.begin(), batches.end(), batch) == batches.end()) batches.push_back(batch);
  }
  std::sort(batches.begin(), batches.end());
  std::string out = "tokens per second, all sequences together\n context   prefill | decode:";
  char text[64];
  for (const int batch : batches) {
    std::snprintf(text, sizeof text, " %8s", ("batch " + std::to_string(batch)).c_str());
    out += text;
  }
  out += "\n";
  for (const auto& row : sweep.at("prefill")) {
    const int context = row.at("context");
    std::snprintf(text, sizeof text, "%8d %9.1f |        ", context, row.at("tokens_per_second").get<double>());
    out += text;
    for (const int batch : batches) {
      std::string value = "-";
      for (const auto& cell : sweep.at("decode")) {
        if (cell.at("context") != context || cell.at("batch") != batch) continue;
        std::snprintf(text, sizeof text, "%.1f", cell.at("tokens_per_second").get<double>());
        value = text;
      }
      std::snprintf(text, sizeof text, " %8s", value.c_str());
      out += text;
    }
    out += "\n";
  }
  return out;
}

std::string sweep_svg(const nlohmann::ordered_json& sweep, const std::string& title) {
  LineChart decode{title + ": decode", "sequences at once", "tokens per second, all together", {}};
  LineChart prefill{title + ": prefill of one prompt", "tokens of the prompt", "tokens per second", {{"", {}}}};
  for (const auto& row : sweep.at("prefill")) {
    const int context = row.at("context");
    prefill.lines[0].points.emplace_back(context, row.at("tokens_per_second").get<double>());
    ChartLine line{"context " + std::to_string(context), {}};
    for (const auto& cell : sweep.at("decode")) {
      if (cell.at("context") != context) continue;
      line.points.emplace_back(cell.at("batch").get<double>(), cell.at("tokens_per_second").get<double>());
    }
    decode.lines.push_back(std::move(line));
  }
  return svg_of({decode, prefill});
}

}  // namespace cli
