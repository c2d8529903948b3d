// Tuning through the C ABI: a table is measured, extended and used, changes no bit, and is refused where it does not fit.
#include <limits>

#include <nlohmann/json.hpp>

#include "capi/tiny_model.h"

namespace {

using namespace capi_test;
using nlohmann::json;

headrace::Options options_with(const std::string& tuning) {
  headrace::Options options;
  options.set("engine.threads", "2").set("engine.tuning", tuning);
  return options;
}

headrace::Model load(const std::string& tuning) { return load_quantized(options_with(tuning)); }

// Of prompts of many lengths: every number of rows that a table tells apart.
std::vector<float> logits_of(const headrace::Model& model) {
  std::vector<float> all;
  for (const int count : {1, 2, 3, 7, 16, 33, 100, 200}) {
    headrace::Session session(model, options_with("off"));
    std::vector<int32_t> tokens(static_cast<size_t>(count));
    for (int i = 0; i < count; ++i) tokens[static_cast<size_t>(i)] = (i * 7 + count) % 96;
    std::vector<float> logits(tokens.size() * 96);
    session.evaluate(tokens.data(), tokens.size(), logits.data(), logits.size());
    all.insert(all.end(), logits.begin(), logits.end());
  }
  return all;
}

}  // namespace

TEST_CASE("a model is tuned, and models loaded with the table give the same bits") {
  const headrace::Model model = load("off");
  double last = 0;
  const std::string text = model.tune(60, {}, [&](double fraction) {
    CHECK(fraction >= last);
    CHECK(fraction <= 1);
    last = fraction;
    return true;
  });
  CHECK(last == 1);
  json table = json::parse(text);
  // Four shapes: q and the output, k and v, gate and up, down; and the head.
  CHECK(table.at("entries").size() == 5 * 10);
  for (const json& entry : table.at("entries")) {
    CHECK(entry.at("weights") == "Q8_0");
    CHECK(entry.at("threads") == 2);
    CHECK_FALSE(entry.contains("refused"));
    CHECK(entry.at("rule_us") > 0);
  }
  CHECK(model.tune(60, text) == text);  // nothing is left to measure

  const TemporaryFolder folder;
  const std::vector<float> expected = logits_of(model);
  CHECK(logits_of(load("auto")) == expected);
  for (const char* choice : {R"({"unpack":"memory","run_pairs":2,"task_rows":12})",
                             R"({"unpack":"registers","run_pairs":16,"task_rows":528})"}) {
    for (json& entry : table.at("entries")) entry.at("choice") = json::parse(choice);
    write_file(folder / "table.json", table.dump());
    CHECK(logits_of(load(folder / "table.json")) == expected);
  }
}

TEST_CASE("a table that is none, or of another machine, is refused by name") {
  const TemporaryFolder folder;
  const std::string path = folder / "table.json";
  const auto refused = [&](headrace_status code, const std::string& place) {
    const Failure failure = failure_of([&] { load(path); });
    INFO(failure.place << ": " << failure.message);
    CHECK(failure.code == code);
    CHECK(failure.place.find("engine.tuning") == 0);
    CHECK(failure.place.find(place) != std::string::npos);
  };
  refused(HEADRACE_NOT_FOUND, path);
  write_file(path, "{}");
  refused(HEADRACE_MALFORMED, path + ": /format");
  const headrace::Model model = load("off");
  json table = json::parse(model.tune(1e-6));
  table.at("cpu").at("vendor") = "nobody";
  write_file(path, table.dump());
  refused(HEADRACE_UNSUPPORTED, path);

  Failure failure = failure_of([&] { model.tune(1, table.dump()); });
  CHECK(failure.code == HEADRACE_UNSUPPORTED);
  failure = failure_of([&] { model.tune(1, "[1"); });
  CHECK(failure.code == HEADRACE_MALFORMED);
  CHECK(failure.place.find("table") == 0);
}

TEST_CASE("tuning is cancelled, bounded, and has nothing to do for float weights") {
  const headrace::Model model = load("off");
  int calls = 0;
  const Failure failure = failure_of([&] { model.tune(60, {}, [&](double) { return ++calls < 2; }); });
  CHECK(failure.code == HEADRACE_CANCELLED);
  CHECK(calls == 2);
  for (const double seconds : {0.0, -1.0, 1e9, std::numeric_limits<double>::quiet_NaN()}) {
    CHECK(failure_of([&] { model.tune(seconds); }).place == "seconds");
  }
  CHECK(json::parse(load_tiny().tune(1)).at("entries").empty());
  // A callback may use the model: nothing is locked.
  bool used = false;
  model.tune(0.2, {}, [&](double) {
    if (!used) headrace::Session(model).evaluate({1, 2, 3});
    used = true;
    return true;
  });
  CHECK(used);
}
