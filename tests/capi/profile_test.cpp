// The profile of a model: exact counts of calls, rows, bytes and multiply-adds, times that nest, and the same tokens as
// without it.
#include <algorithm>
#include <chrono>
#include <map>
#include <numeric>
#include <set>
#include <thread>

#include <nlohmann/json.hpp>

#include "capi/tiny_model.h"

namespace {

using namespace capi_test;
using nlohmann::json;

headrace::Options options_of(const char* profile) {
  headrace::Options options;
  options.set("engine.threads", "1").set("engine.profile", profile);
  return options;
}

std::vector<int32_t> generate(const headrace::Model& model, int64_t count) {
  headrace::Request request(model);
  request.add_tokens({1, 2, 3, 4, 5}).set_length(0, count).set_ignore_eos(true);
  std::vector<int32_t> tokens;
  headrace::Scheduler(model).run(request, [&](const headrace::Event& event) {
    const std::vector<int32_t> drawn = event.tokens();
    tokens.insert(tokens.end(), drawn.begin(), drawn.end());
    return true;
  });
  return tokens;
}

// One number of all rows with this value of "op" or "span".
uint64_t total(const json& profile, const std::string& name, const char* number) {
  uint64_t sum = 0;
  for (const char* list : {"ops", "spans"}) {
    for (const json& row : profile.at(list)) {
      const std::string key = row.contains("op") ? row.at("op") : row.at("span");
      if (key == name) sum += row.at(number).get<uint64_t>();
    }
  }
  return sum;
}

}  // namespace

TEST_CASE("a profile counts each op of each step, with its bytes and multiply-adds") {
  for (const std::string family : {"llama", "qwen3", "gemma3"}) {
    INFO(family);
    const auto start = std::chrono::steady_clock::now();
    const headrace::Model model = headrace::Model::load(golden_path(family), options_of("ops"));
    const json about = json::parse(model.describe());
    const auto num_layers = static_cast<uint64_t>(about.at("layers").size());
    constexpr uint64_t kPrompt = 5, kOutput = 4, kSteps = kOutput, kRows = kPrompt + kOutput - 1;
    const std::vector<int32_t> tokens = generate(model, kOutput);
    REQUIRE(tokens.size() == kOutput);
    const json profile = json::parse(model.describe_profile());
    const auto wall = std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - start);

    CHECK(total(profile, "sample", "calls") == kOutput);
    CHECK(total(profile, "forward", "calls") == kSteps);
    CHECK(total(profile, "forward", "rows") == kRows);
    CHECK(total(profile, "step", "calls") >= kSteps);
    CHECK(total(profile, "embed", "calls") == kSteps);
    CHECK(total(profile, "embed", "rows") == kRows);
    CHECK(total(profile, "attention", "calls") == kSteps * num_layers);
    CHECK(total(profile, "attention", "rows") == kRows * num_layers);
    CHECK(total(profile, "rope_store", "calls") == kSteps * num_layers);
    // Inputs, output, gate and up, down; and the head.
    CHECK(total(profile, "linear", "calls") == kSteps * (4 * num_layers + 1));
    // Each step reads what decode_weight_bytes says, but for the norms, which are no linear ops.
    const uint64_t step_bytes = total(profile, "linear", "bytes") / kSteps;
    CHECK(step_bytes <= about.at("decode_weight_bytes").get<uint64_t>());
    CHECK(step_bytes > about.at("decode_weight_bytes").get<uint64_t>() / 2);

    // Keys that each row sees, by hand: row p has p + 1, within its layer's window.
    uint64_t attention = 0, linear = 0;
    const uint64_t hidden = about.at("hidden_size"), vocab = about.at("vocab_size");
    for (uint64_t layer = 0; layer < num_layers; ++layer) {
      const json& spec = about.at("layers")[layer].at("attention");
      const uint64_t heads = spec.at("num_heads"), head_dim = spec.at("head_dim"), kv_heads = spec.at("num_kv_heads");
      const uint64_t window = spec.value("window", uint64_t{0});
      for (uint64_t position = 0; position < kRows; ++position) {
        const uint64_t keys = window > 0 ? std::min(position + 1, window) : position + 1;
        attention += 2 * keys * heads * head_dim;
      }
      // The last layer goes on with the rows whose logits are wanted, one of each step.
      const uint64_t rows = layer + 1 == num_layers ? kSteps : kRows;
      const uint64_t width = about.at("layers")[layer].at("feed_forward").at("intermediate_size");
      linear += kRows * hidden * (heads + 2 * kv_heads) * head_dim + rows * hidden * (heads * head_dim + 3 * width);
    }
    CHECK(total(profile, "attention", "multiply_adds") == attention);
    CHECK(total(profile, "linear", "multiply_adds") == linear + kSteps * hidden * vocab);

    uint64_t ops = 0;
    for (const json& row : profile.at("ops")) ops += row.at("nanoseconds").get<uint64_t>();
    CHECK(ops > 0);
    // Passes hold all ops but the sums over logits, which the step asks for after its pass.
    const uint64_t logit_stats = total(profile, "logit_stats", "nanoseconds");
    CHECK(ops - logit_stats <= total(profile, "forward", "nanoseconds"));
    CHECK(total(profile, "forward", "nanoseconds") + total(profile, "sample", "nanoseconds") + logit_stats <=
          total(profile, "step", "nanoseconds"));
    CHECK(total(profile, "step", "nanoseconds") <= static_cast<uint64_t>(wall.count()));

    CHECK(generate(headrace::Model::load(golden_path(family), options_of("off")), kOutput) == tokens);
  }
}

TEST_CASE("a trace has each call as an event inside its step") {
  const headrace::Model model = headrace::Model::load(tiny_path(), options_of("trace"));
  generate(model, 3);
  const json profile = json::parse(model.describe_profile()), trace = json::parse(model.describe_trace());
  CHECK(trace.at("otherData").at("dropped_events") == 0);
  std::map<std::string, uint64_t> calls;
  std::vector<std::pair<double, double>> steps;
  std::vector<json> named, events;
  for (const json& event : trace.at("traceEvents")) {
    if (event.value("cat", "") == "request") continue;
    (event.at("ph") == "M" ? named : events).push_back(event);
  }
  REQUIRE(named.size() == 2);  // the process and the only thread that stepped
  CHECK(named[0].at("name") == "process_name");
  CHECK(named[1].at("name") == "thread_name");
  CHECK_FALSE(named[1].at("args").at("name").get<std::string>().empty());
  for (const json& event : events) {
    CHECK(event.at("ph") == "X");
    CHECK(event.at("pid") == named[1].at("pid"));
    CHECK(event.at("tid") == named[1].at("tid"));
    CHECK(event.at("dur").get<double>() >= 0);
    const std::string name = event.at("name");
    ++calls[name.substr(0, name.find(' '))];
    if (name == "step")
      steps.emplace_back(event.at("ts"), event.at("ts").get<double>() + event.at("dur").get<double>());
  }
  for (const auto& [name, count] : calls) {
    INFO(name);
    CHECK(count == total(profile, name, "calls"));
  }
  // A thousandth of a microsecond is a nanosecond; sums of two rounded numbers may differ by a part of one.
  constexpr double kRounding = 1e-3;
  for (const json& event : events) {
    const double begin = event.at("ts"), end = begin + event.at("dur").get<double>();
    CHECK(std::any_of(steps.begin(), steps.end(), [&](const auto& step) {
      return step.first <= begin + kRounding && end <= step.second + kRounding;
    }));
  }
}

TEST_CASE("a trace tells calling threads apart") {
  const headrace::Model model = headrace::Model::load(tiny_path(), options_of("trace"));
  generate(model, 2);
  std::thread([&] { generate(model, 2); }).join();
  const json trace = json::parse(model.describe_trace());
  std::set<int32_t> named, seen;
  for (const json& event : trace.at("traceEvents")) {
    if (event.at("name") == "thread_name") named.insert(event.at("tid").get<int32_t>());
    if (event.at("ph") == "X") seen.insert(event.at("tid").get<int32_t>());
  }
  CHECK(seen.size() == 2);
  CHECK(named == seen);
}

namespace {

// Names of what became of each request, in their order, with what its ends are.
std::map<std::string, std::vector<std::string>> request_tracks(const json& trace) {
  std::map<std::string, std::vector<std::string>> tracks;
  std::map<std::string, double> last;
  for (const json& event : trace.at("traceEvents")) {
    if (event.value("cat", "") != "request") continue;
    const std::string id = event.at("id"), phase = event.at("ph");
    CHECK(event.at("ts").get<double>() >= last[id]);
    last[id] = event.at("ts");
    tracks[id].push_back(phase == "n" ? event.at("name").get<std::string>() : phase);
  }
  return tracks;
}

}  // namespace

TEST_CASE("a trace has what became of each request, in order and with one end") {
  using Track = std::vector<std::string>;
  const headrace::Model model = headrace::Model::load(tiny_path(), options_of("trace"));
  headrace::Options options;
  options.set("kv.max_tokens", "64").set("scheduler.max_num_batched_tokens", "16");
  headrace::Scheduler scheduler(model, options);
  const auto ask = [&](int32_t first, int64_t count, int64_t output) {
    headrace::Request request(model);
    std::vector<int32_t> tokens;
    for (int64_t i = 0; i < count; ++i) tokens.push_back(first + static_cast<int32_t>(i % 7));
    return scheduler.submit(request.add_tokens(tokens).set_length(0, output).set_ignore_eos(true));
  };
  const auto run_all = [&] {
    while (scheduler.step()) {
    }
    while (scheduler.next_event()) {
    }
  };
  ask(3, 20, 2);
  run_all();
  const uint64_t cancelled = ask(9, 20, 2);
  scheduler.cancel(cancelled);
  run_all();
  // Four blocks: one of them gives way to the other.
  ask(15, 10, 35);
  ask(23, 10, 35);
  run_all();
  headrace::Scheduler(model).run(headrace::Request(model).add_tokens({1, 2, 3}).set_length(0, 1),
                                 [](const headrace::Event&) { return true; });
  const auto tracks = request_tracks(json::parse(model.describe_trace()));
  REQUIRE(tracks.size() == 5);
  auto track = tracks.begin();
  CHECK(track++->second == Track{"b", "prompt_rows", "scheduled", "prompt_rows", "first_token", "finished", "e"});
  CHECK(track++->second == Track{"b", "finished", "e"});
  const Track first = track++->second, second = track++->second;
  for (const Track& each : {first, second}) {
    CHECK(each.front() == "b");
    CHECK(each.back() == "e");
    CHECK(std::ranges::count(each, "e") == 1);
    CHECK(std::ranges::count(each, "first_token") == 1);
    CHECK(std::ranges::count(each, "preempted") == std::ranges::count(each, "resumed"));
  }
  CHECK(std::ranges::count(first, "preempted") + std::ranges::count(second, "preempted") > 0);
  CHECK(track->first.starts_with("1."));  // of another scheduler
}

TEST_CASE("neither a trace nor a log line has a word of what requests say") {
  for (const char* retention : {"false", "true"}) {
    std::string lines;
    const TemporaryFolder folder;
    write_text_model(folder);
    headrace::Options options = options_of("trace");
    options.set("kv.zero_retention", retention).set("kv.max_tokens", "64");
    options.set_log(
        [](void* user, int32_t, const char*, const char* message) { static_cast<std::string*>(user)->append(message); },
        &lines);
    const headrace::Model model = headrace::Model::load(folder.path(), options);
    headrace::Scheduler scheduler(model, options);
    const std::string said = "marked words of nobody";
    headrace::Request request(model);
    request.add_text(said).set_length(0, 4).set_ignore_eos(true).add_stop("marked stop").set_tenant("somebody");
    std::string written;
    scheduler.run(request, [&](const headrace::Event& event) {
      written += event.text();
      return true;
    });
    headrace::Request too_long(model);
    too_long.add_text(said + std::string(400, 'q')).set_length(0, 4);
    CHECK_THROWS_AS(scheduler.submit(too_long), headrace::Error);
    const std::string trace = model.describe_trace() + model.describe_profile() + lines;
    REQUIRE(trace.find("first_token") != std::string::npos);
    for (const std::string word : {"marked", "words", "nobody", "somebody", "qqq"}) {
      CHECK(trace.find(word) == std::string::npos);
    }
    if (written.size() > 8) CHECK(trace.find(written) == std::string::npos);
    // Nor the tokens: no list of numbers is there at all.
    CHECK(trace.find("token_ids") == std::string::npos);
  }
}

TEST_CASE("without a profile there is none to read") {
  const headrace::Model plain = headrace::Model::load(tiny_path(), options_of("off"));
  for (const auto& read : {&headrace::Model::describe_profile, &headrace::Model::describe_trace}) {
    const Failure failure = failure_of([&] { (plain.*read)(); });
    CHECK(failure.code == HEADRACE_FAILED_PRECONDITION);
    CHECK(failure.place == "engine.profile");
  }
  const headrace::Model sums = headrace::Model::load(tiny_path(), options_of("ops"));
  CHECK(json::parse(sums.describe_profile()) == json::parse(R"({"ops": [], "spans": []})"));
  CHECK(failure_of([&] { sums.describe_trace(); }).code == HEADRACE_FAILED_PRECONDITION);
}
