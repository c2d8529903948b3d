// Speculation through the C ABI: the same tokens and log probabilities with any drafter, adapters and text included, and what is told
// of guesses.
#include <nlohmann/json.hpp>

#include "capi/adapter_files.h"
#include "capi/tiny_model.h"

namespace {

using namespace capi_test;
using headrace::Adapter;
using headrace::Model;
using headrace::Options;
using headrace::Request;
using headrace::Scheduler;

Options options_with(const std::string& drafter) {
  Options options;
  options.set("engine.threads", "2").set("scheduler.draft_always", "true").set("scheduler.drafter", drafter);
  return options;
}

struct Said {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  std::string text;
  nlohmann::json speculation;
};

std::vector<Request> one(Request request) {
  std::vector<Request> out;
  out.push_back(std::move(request));
  return out;
}

// Several at once, each to its end.
std::map<uint64_t, Said> run(Scheduler& scheduler, const std::vector<Request>& requests) {
  for (const Request& request : requests) scheduler.submit(request);
  std::map<uint64_t, Said> out;
  for (bool more = true; more;) {
    more = scheduler.step();
    while (const auto event = scheduler.next_event()) {
      REQUIRE(event->type() != headrace::EventType::kFailed);
      Said& said = out[event->request_id()];
      for (const int32_t token : event->tokens()) said.tokens.push_back(token);
      for (const float logprob : event->logprobs()) said.logprobs.push_back(logprob);
      said.text += event->text();
      if (event->type() == headrace::EventType::kFinished) {
        said.speculation = nlohmann::json::parse(event->describe_speculation());
      }
    }
  }
  return out;
}

Request repeating(const Model& model, int32_t shift, const Adapter* adapter) {
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < 40; ++i) tokens.push_back(5 + (shift + i % 9 * 7) % 80);
  headrace::Sampling sampling;
  sampling.num_logprobs = 1;
  Request request(model);
  request.add_tokens(tokens).set_sampling(sampling).set_length(0, 30).set_ignore_eos(true);
  if (adapter != nullptr) request.set_adapter(*adapter);
  return request;
}

}  // namespace

TEST_CASE("requests with adapters of their own say the same with any drafter") {
  const Model model = Model::load(golden_folder("qwen3"), options_with("off"));
  std::vector<Adapter> adapters;
  for (const uint32_t seed : {1u, 2u}) {
    const TemporaryFolder folder;
    AdapterFiles("qwen3", seed).write(folder / "adapter");
    adapters.push_back(Adapter::load(model, folder / "adapter"));
  }
  const auto requests = [&] {
    std::vector<Request> out;
    for (int32_t i = 0; i < 6; ++i)
      out.push_back(repeating(model, 11 * (i / 3), i % 3 == 0 ? nullptr : &adapters[i % 3 - 1]));
    return out;
  };
  Scheduler plain(model, options_with("off"));
  const auto expected = run(plain, requests());
  for (const char* drafter : {"ngram", "suffix", "ngram,suffix", "auto"}) {
    INFO(drafter);
    Scheduler scheduler(model, options_with(drafter));
    for (int round = 0; round < 2; ++round) {  // the second time suffixes know the answers, each of its own adapter
      const auto got = run(scheduler, requests());
      for (uint64_t i = 1; i <= 6; ++i) {
        const Said& said = got.at(i + static_cast<uint64_t>(round) * 6);
        CHECK(said.tokens == expected.at(i).tokens);
        CHECK(said.logprobs == expected.at(i).logprobs);
      }
    }
    const auto told = nlohmann::json::parse(scheduler.describe_speculation());
    CHECK(told.at("drafted") > 0);
    if (std::string(drafter) != "ngram") CHECK(told.at("accepted") > 150);
  }
}

TEST_CASE("a request names its drafter, and is told what became of its guesses") {
  const Model& model = text_model();
  Scheduler scheduler(model, options_with("off"));
  Request request(model);
  request.add_text("abcabcabcabcabc").set_length(0, 40).set_ignore_eos(true);
  const Said plain = run(scheduler, one(std::move(request))).begin()->second;
  CHECK(plain.speculation.at("state") == "off");
  CHECK(plain.speculation.at("drafters").empty());
  CHECK(plain.speculation.at("chains_because") == "");
  Request again(model);
  again.add_text("abcabcabcabcabc").set_length(0, 40).set_ignore_eos(true).set_drafter("suffix");
  const Said guessed = run(scheduler, one(std::move(again))).begin()->second;
  CHECK(guessed.text == plain.text);
  CHECK(guessed.tokens == plain.tokens);
  const nlohmann::json& told = guessed.speculation;
  REQUIRE(told.at("drafters").size() == 1);
  CHECK(told.at("drafters")[0].at("name") == "suffix");
  CHECK(told.at("drafters")[0].at("drafted") == told.at("drafted"));
  CHECK(told.at("drafters")[0].at("drafted_at").size() == told.at("drafters")[0].at("accepted_at").size());
}

TEST_CASE("unknown drafters are refused: at submit, and where a scheduler is made") {
  const Model& model = text_model();
  Scheduler scheduler(model, options_with("off"));
  Request request(model);
  request.add_text("abc").set_drafter("oracle");
  CHECK_THROWS_WITH(scheduler.submit(request), Catch::Contains("oracle"));
  CHECK_THROWS_WITH(Scheduler(model, options_with("ngram,oracle")), Catch::Contains("oracle"));
  size_t needed = 0;
  CHECK(headrace_event_describe_speculation(nullptr, nullptr, 0, &needed, nullptr) == HEADRACE_INVALID_ARGUMENT);
  CHECK(headrace_scheduler_describe_speculation(nullptr, nullptr, 0, &needed, nullptr) == HEADRACE_INVALID_ARGUMENT);
  CHECK(headrace_request_set_drafter(nullptr, "off", 3, nullptr) == HEADRACE_INVALID_ARGUMENT);
}
