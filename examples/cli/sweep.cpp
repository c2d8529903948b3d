#include "sweep.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <optional>
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

// Decode rates of this context, for each batch of at most `most` sequences.
void sweep_batches(const SweepArguments& arguments, const headrace::Model& model, const ModelArguments& model_arguments,
                   const std::string& saved, int context, int most, ProgressBar& bar,
                   const std::function<void(int batch, double rate)>& found) {
  const int largest = std::min(most, arguments.batches.back());
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

void sort_unique(std::vector<int>& numbers) {
  std::sort(numbers.begin(), numbers.end());
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
}

// Those measured, ascending.
std::vector<int> batches_of(const nlohmann::ordered_json& sweep) {
  std::vector<int> batches;
  for (const auto& cell : sweep.at("decode")) batches.push_back(cell.at("batch"));
  sort_unique(batches);
  return batches;
}

std::optional<double> decode_rate_of(const nlohmann::ordered_json& sweep, int context, int batch) {
  for (const auto& cell : sweep.at("decode")) {
    if (cell.at("context") == context && cell.at("batch") == batch) return cell.at("tokens_per_second").get<double>();
  }
  return std::nullopt;
}

// Ascending; those beyond `most` become `most`, which is said in `left_out`.
std::vector<int> contexts_within(std::vector<int> contexts, int most, int room, nlohmann::ordered_json& left_out) {
  for (int& context : contexts) {
    if (context <= most) continue;
    left_out.push_back("context " + std::to_string(context) + " is measured at " + std::to_string(most) +
                       ": the model has " + std::to_string(most + room) + " positions, " + std::to_string(room) +
                       " of them for the tokens generated");
    context = most;
  }
  sort_unique(contexts);
  return contexts;
}

std::string gigabytes(double bytes) {
  char text[40];
  std::snprintf(text, sizeof text, "%.3g GB", bytes / 1e9);
  return text;
}

}  // namespace

nlohmann::ordered_json run_sweep(const SweepArguments& given, const headrace::Model& model,
                                 const ModelArguments& model_arguments) {
  const auto description = nlohmann::ordered_json::parse(model.describe());
  const std::string kv_dtype = model_arguments.kv_dtype.empty() ? "f16" : model_arguments.kv_dtype;
  const double token_bytes = description.at("kv_bytes_per_token").at(kv_dtype);
  const double memory = given.memory_gb > 0 ? given.memory_gb * 1e9 : available_bytes() / 2;
  SweepArguments arguments = given;
  sort_unique(arguments.batches);
  nlohmann::ordered_json left_out = nlohmann::ordered_json::array();
  const int room = arguments.gen_tokens + 1;
  const auto most_positions = static_cast<int>(std::min<int64_t>(model.info().max_position_embeddings, INT32_MAX));
  if (most_positions <= room) {
    throw headrace::Error(HEADRACE_INVALID_ARGUMENT,
                          "the model has " + std::to_string(most_positions) + " positions, too few for a sweep",
                          "--sweep");
  }
  const int max_context = most_positions - room;
  std::vector<int> contexts = contexts_within(arguments.contexts, max_context, room, left_out);
  // The prompt's own keys and values stay beside those of the sequences.
  std::erase_if(contexts, [&](int context) {
    const double needed = token_bytes * (2.0 * context + arguments.gen_tokens + 2 * kSlack);
    if (needed > memory) {
      left_out.push_back("context " + std::to_string(context) + " is left out: keys and values of the prompt and one " +
                         "sequence take " + gigabytes(needed) + " of " + gigabytes(memory));
    }
    return needed > memory;
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
      const double sequence_bytes =
          token_bytes * (context + arguments.gen_tokens + kSlack);  // 0: a state is all it has
      const int largest = arguments.batches.back();
      const bool all_fit = sequence_bytes * largest <= left;
      const int most = all_fit ? largest : static_cast<int>(left / sequence_bytes);
      sweep_batches(arguments, model, model_arguments, file.path(), context, most, bar, [&](int batch, double rate) {
        decode.push_back({{"context", context}, {"batch", batch}, {"tokens_per_second", rate}});
      });
      if (!all_fit) {
        left_out.push_back("context " + std::to_string(context) + " is measured with up to " + std::to_string(most) +
                           " sequences: the keys and values of more exceed " + gigabytes(memory));
      }
    }
  }
  return {{"gen_tokens", arguments.gen_tokens}, {"max_context", max_context},  {"cache_memory_bytes", memory},
          {"prefill", std::move(prefill)},      {"decode", std::move(decode)}, {"left_out", std::move(left_out)}};
}

std::string sweep_table(const nlohmann::ordered_json& sweep) {
  const std::vector<int> batches = batches_of(sweep);
  std::string out = "tokens per second, all sequences together\n context   prefill | decode:";
  char text[64];
  for (const int batch : batches) {
    std::snprintf(text, sizeof text, " %9s", ("batch " + std::to_string(batch)).c_str());
    out += text;
  }
  out += "\n";
  for (const auto& row : sweep.at("prefill")) {
    const int context = row.at("context");
    std::snprintf(text, sizeof text, "%8d %9.1f |        ", context, row.at("tokens_per_second").get<double>());
    out += text;
    for (const int batch : batches) {
      const std::optional<double> rate = decode_rate_of(sweep, context, batch);
      std::snprintf(text, sizeof text, " %9.1f", rate.value_or(0));
      out += rate ? text : "         -";
    }
    out += "\n";
  }
  for (const auto& line : sweep.at("left_out")) out += line.get<std::string>() + "\n";
  return out;
}

std::string sweep_svg(const nlohmann::ordered_json& sweep, const std::string& title) {
  const std::string rate = "tokens per second, all sequences";
  LineChart by_batch{title + ": decode rate over batch", "batch, sequences at once", rate, {}};
  LineChart by_context{title + ": decode rate over context", "context, tokens of each sequence", rate, {}};
  LineChart prefill{
      title + ": prefill rate over context", "context, tokens of the one prompt", "tokens per second", {}};
  ChartLine& prompt = prefill.lines.emplace_back();
  const std::vector<int> batches = batches_of(sweep);
  for (const int batch : batches) by_context.lines.push_back({"batch " + std::to_string(batch), {}});
  for (const auto& row : sweep.at("prefill")) {
    const int context = row.at("context");
    prompt.points.emplace_back(context, row.at("tokens_per_second").get<double>());
    by_batch.lines.push_back({"context " + std::to_string(context), {}});
    for (size_t i = 0; i < batches.size(); ++i) {
      const std::optional<double> value = decode_rate_of(sweep, context, batches[i]);
      if (!value) continue;
      by_batch.lines.back().points.emplace_back(batches[i], *value);
      by_context.lines[i].points.emplace_back(context, *value);
    }
  }
  return svg_of({by_batch, by_context, prefill});
}

}  // namespace cli
