// Requests through the C ABI: fields out of range, bias, samples and seeds, logprobs, stops, deadlines, salts, queues.
#include <cmath>
#include <limits>
#include <set>

#include "capi/tiny_model.h"

namespace {

using namespace capi_test;
using headrace::Request;
using headrace::Sampling;
using headrace::Scheduler;

const std::vector<int32_t> kPrompt = {0, 9, 17, 33, 12, 40};

Request make_request(int64_t max_tokens) {
  Request request(text_model());
  request.add_tokens(kPrompt).set_length(0, max_tokens).set_ignore_eos(true);
  return request;
}

Output run(const Request& request) {
  Scheduler scheduler(text_model());
  return generate(scheduler, request);
}

template <class Change>
Failure refused(const Change& change) {
  return failure_of([&] {
    Sampling sampling;
    change(sampling);
    Request(text_model()).set_sampling(sampling);
  });
}

}  // namespace

TEST_CASE("each sampling field out of range is refused by its name") {
  const float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
  const std::pair<const char*, std::vector<float>> numbers[] = {{"temperature", {-0.1f, nan, infinity}},
                                                                {"top_p", {0.0f, -1.0f, 1.1f, nan}},
                                                                {"min_p", {-0.1f, 1.1f, nan}},
                                                                {"typical_p", {0.0f, 1.5f, nan}},
                                                                {"repetition_penalty", {0.0f, -1.0f, nan, infinity}},
                                                                {"frequency_penalty", {-2.1f, 2.1f, nan}},
                                                                {"presence_penalty", {-2.1f, 2.1f, nan}}};
  float Sampling::*const fields[] = {&Sampling::temperature,
                                     &Sampling::top_p,
                                     &Sampling::min_p,
                                     &Sampling::typical_p,
                                     &Sampling::repetition_penalty,
                                     &Sampling::frequency_penalty,
                                     &Sampling::presence_penalty};
  for (size_t i = 0; i < std::size(fields); ++i) {
    for (const float value : numbers[i].second) {
      INFO(numbers[i].first << " = " << value);
      const Failure failure = refused([&](Sampling& sampling) { sampling.*fields[i] = value; });
      CHECK(failure.code == HEADRACE_INVALID_ARGUMENT);
      CHECK(failure.place == numbers[i].first);
    }
  }
  CHECK(refused([](Sampling& s) { s.top_k = -1; }).place == "top_k");
  CHECK(refused([](Sampling& s) { s.n = 0; }).place == "n");
  CHECK(refused([](Sampling& s) { s.n = 129; }).place == "n");
  CHECK(refused([](Sampling& s) { s.has_seed = 2; }).place == "has_seed");
  CHECK(refused([](Sampling& s) { s.num_logprobs = -2; }).place == "num_logprobs");
  CHECK(refused([](Sampling& s) { s.num_logprobs = 129; }).place == "num_logprobs");
  CHECK(refused([](Sampling& s) { s.num_prompt_logprobs = 129; }).place == "num_prompt_logprobs");
  CHECK(refused([](Sampling& s) { s.reserved = 1; }).place == "sampling.reserved");
  CHECK(refused([](Sampling& s) { s.struct_size = 0; }).place == "sampling.struct_size");
  CHECK(refused([](Sampling&) {}).code == HEADRACE_OK);
}

TEST_CASE("other fields of a request are checked where they are set, or at submit") {
  Request request(text_model());
  CHECK(failure_of([&] { request.set_length(-1, 4); }).place == "min_tokens");
  CHECK(failure_of([&] { request.set_length(0, -1); }).place == "max_tokens");
  CHECK(failure_of([&] { request.set_length(5, 4); }).place == "min_tokens");
  CHECK(failure_of([&] { request.set_deadline(-1); }).code == HEADRACE_INVALID_ARGUMENT);
  CHECK(failure_of([&] { request.add_stop(""); }).code == HEADRACE_INVALID_ARGUMENT);
  CHECK(failure_of([&] { request.add_stop_token(96); }).place == "stop_tokens");
  CHECK(failure_of([&] { request.add_logit_bias(-1, 1.0f); }).place == "logit_bias");
  CHECK(failure_of([&] { request.add_logit_bias(3, std::nanf("")); }).place == "logit_bias");
  CHECK(failure_of([&] { request.add_tokens({3, 96}); }).place == "tokens[1]");
  CHECK(failure_of([&] { request.add_text("a\xff"); }).place == "byte 1");
  Scheduler scheduler(text_model());
  CHECK(failure_of([&] { scheduler.submit(request); }).place == "prompt");  // nothing of the above was kept
  Request long_prompt(text_model());
  long_prompt.add_tokens(std::vector<int32_t>(256, 7));
  const Failure failure = failure_of([&] { scheduler.submit(long_prompt); });
  CHECK(failure.code == HEADRACE_RESOURCE_EXHAUSTED);
  CHECK(failure.place == "prompt");
  const headrace::Model other = load_tiny();
  CHECK(failure_of([&] { scheduler.submit(Request(other).add_tokens({3})); }).code == HEADRACE_FAILED_PRECONDITION);
  CHECK(failure_of([&] { scheduler.cancel(77); }).code == HEADRACE_NOT_FOUND);
}

TEST_CASE("a bias decides, and a request may be submitted many times") {
  Request request = make_request(6);
  request.add_logit_bias(letter('q'), 1000.0f);
  Scheduler scheduler(text_model());
  for (int round = 0; round < 3; ++round) {
    const Output output = generate(scheduler, request);
    CHECK(output.text == "qqqqqq");
    CHECK(output.finish_reason == "length");
    CHECK(output.usage.output_tokens == 6);
    CHECK(output.usage.prompt_tokens == 6);
    CHECK(output.last_events == 1);
  }
}

TEST_CASE("n samples of a seed are as many texts, and the same on every run") {
  Sampling sampling;
  sampling.temperature = 1.5f;
  sampling.n = 4;
  sampling.seed = 42;
  sampling.has_seed = 1;
  Request request = make_request(12);
  request.set_sampling(sampling);
  std::vector<std::vector<int32_t>> runs[2];
  for (auto& samples : runs) {
    Scheduler scheduler(text_model());
    const uint64_t id = scheduler.submit(request);
    const auto outputs = finish_all(scheduler);
    REQUIRE(outputs.size() == 4);
    int last_events = 0;
    for (uint32_t i = 0; i < 4; ++i) {
      samples.push_back(outputs.at({id, i}).tokens);
      CHECK(samples.back().size() == 12);
      last_events += outputs.at({id, i}).last_events;
    }
    CHECK(last_events == 1);
  }
  CHECK(runs[0] == runs[1]);
  CHECK(std::set<std::vector<int32_t>>(runs[0].begin(), runs[0].end()).size() == 4);
}

TEST_CASE("logprobs are logarithms of the model's distribution, with the most likely first") {
  Sampling sampling;
  sampling.num_logprobs = 96;
  sampling.num_prompt_logprobs = 2;
  Request request = make_request(3);
  request.set_sampling(sampling);
  Scheduler scheduler(text_model());
  const uint64_t id = scheduler.submit(request);
  int prompts = 0, tokens_seen = 0;
  for (bool working = true; working;) {
    working = scheduler.step();
    while (auto event = scheduler.next_event()) {
      REQUIRE(event->request_id() == id);
      if (event->type() == headrace::EventType::kPrompt) {
        ++prompts;
        CHECK(tokens_seen == 0);
        CHECK(event->tokens() == kPrompt);
        const std::vector<float> logprobs = event->logprobs();
        REQUIRE(logprobs.size() == kPrompt.size());
        CHECK(logprobs[0] == 0.0f);
        for (size_t i = 1; i < logprobs.size(); ++i) {
          CHECK(logprobs[i] < 0.0f);
          REQUIRE(event->top_logprobs(i).size() == 2);
          CHECK(event->top_logprobs(i)[0].second >= logprobs[i]);
        }
      }
      if (event->type() != headrace::EventType::kTokens) continue;
      const std::vector<float> logprobs = event->logprobs();
      const std::vector<int32_t> tokens = event->tokens();
      REQUIRE(logprobs.size() == tokens.size());
      for (size_t i = 0; i < tokens.size(); ++i) {
        const auto top = event->top_logprobs(i);
        REQUIRE(top.size() == 96);
        CHECK(top[0].first == tokens[i]);  // greedy
        CHECK(top[0].second == logprobs[i]);
        double sum = 0;
        for (size_t k = 0; k < top.size(); ++k) {
          if (k > 0) CHECK(top[k].second <= top[k - 1].second);
          sum += std::exp(static_cast<double>(top[k].second));
        }
        // Each logarithm is a float32 of magnitude up to 16: half an ulp of it, twice for the log-sum, is at most 2e-6 of
        // its probability, and the probabilities sum to 1.
        CHECK(sum == Approx(1.0).margin(2e-6));
        ++tokens_seen;
      }
      CHECK(failure_of([&] { event->top_logprobs(tokens.size()); }).code == HEADRACE_NOT_FOUND);
    }
  }
  CHECK(prompts == 1);
  CHECK(tokens_seen == 3);
}

TEST_CASE("X1: a stop string over tokens' borders is cut off, with nothing of it sent before") {
  const std::string whole = run(make_request(24)).text;
  REQUIRE(whole.size() >= 24 - 4);
  std::set<std::string> tried;
  for (size_t begin = 1; begin + 4 <= whole.size(); begin += 3) {
    const std::string stop = whole.substr(begin, 4);
    // Pieces of two-byte characters are no text to search for.
    if (stop.find_first_of("\xC3\xA9\xEF") != std::string::npos || !tried.insert(stop).second) continue;
    INFO("stop \"" << stop << "\"");
    Request request = make_request(24);
    request.add_stop(stop).add_stop("never in there, so it changes nothing");
    Scheduler scheduler(text_model());
    scheduler.submit(request);
    std::string text, reason;
    for (bool working = true; working;) {
      working = scheduler.step();
      while (auto event = scheduler.next_event()) {
        text += event->text();
        // Certain means certain: at any moment the text is a beginning of what is right.
        CHECK(whole.substr(0, whole.find(stop)).compare(0, text.size(), text) == 0);
        if (event->type() == headrace::EventType::kFinished) reason = event->finish_reason();
      }
    }
    CHECK(text == whole.substr(0, whole.find(stop)));
    CHECK(reason == "stop");
  }
  CHECK_FALSE(tried.empty());
}

TEST_CASE("X2: a stop string that begins or ends inside a token is cut there") {
  const std::pair<const char*, const char*> cases[] = {
      {"DE", ""}, {"E", "D"}, {"F", "DE"}, {"FD", "DE"}, {"EFDEFD", "D"}};
  for (const auto& [stop, left] : cases) {
    INFO("stop \"" << stop << "\"");
    Request request = make_request(5);
    request.add_logit_bias(kDef, 1000.0f).add_stop(stop);
    const Output output = run(request);
    CHECK(output.text == left);
    CHECK(output.finish_reason == "stop");
  }
}

TEST_CASE("a held beginning of a stop string comes out when the output ends") {
  Request request = make_request(4);
  request.add_logit_bias(letter('q'), 1000.0f).add_stop("qqqqq");
  const Output output = run(request);
  CHECK(output.text == "qqqq");
  CHECK(output.finish_reason == "length");
}

TEST_CASE("stop tokens and end tokens stop, min_tokens and ignore_eos hold them off") {
  Request request = make_request(8);
  request.add_logit_bias(letter('q'), 1000.0f).add_stop_token(letter('q'));
  CHECK(run(request).finish_reason == "stop");
  CHECK(run(request).usage.output_tokens == 1);
  request.set_length(3, 8);
  const Output later = run(request);
  CHECK(later.finish_reason == "stop");
  CHECK(later.usage.output_tokens == 4);
  Request ends(text_model());
  ends.add_tokens(kPrompt).set_length(0, 8).add_logit_bias(kEos, 1000.0f);
  CHECK(run(ends).finish_reason == "stop");
  CHECK(run(ends).text.empty());
  ends.set_ignore_eos(true);
  CHECK(run(ends).finish_reason == "length");
}

TEST_CASE("a deadline, a cancel and a full queue end requests with their codes") {
  headrace::Options options;
  options.set("scheduler.max_queue", "2");
  Scheduler scheduler(text_model(), options);
  Request request = make_request(200);
  request.set_deadline(1);
  const uint64_t late = scheduler.submit(request);
  usleep(5000);
  CHECK(finish_all(scheduler).at({late, 0}).finish_reason == "deadline");
  const Request unhurried = make_request(200);
  const uint64_t cancelled = scheduler.submit(unhurried);
  scheduler.submit(make_request(2));
  const Failure full = failure_of([&] { scheduler.submit(unhurried); });
  CHECK(full.code == HEADRACE_RESOURCE_EXHAUSTED);
  CHECK(full.place == "scheduler.max_queue");
  scheduler.step();
  scheduler.cancel(cancelled);
  CHECK(finish_all(scheduler).at({cancelled, 0}).finish_reason == "cancelled");
  CHECK(failure_of([&] { scheduler.cancel(cancelled); }).code == HEADRACE_NOT_FOUND);
}

TEST_CASE("a cached prefix is found with the same salt only, and changes no token") {
  Scheduler scheduler(text_model());
  Request request(text_model());
  std::vector<int32_t> prompt;
  for (int32_t i = 0; i < 64; ++i) prompt.push_back(5 + i % 60);
  request.add_tokens(prompt).set_length(0, 8).set_ignore_eos(true);
  const auto salted = [&](const char* salt) {
    request.set_cache_salt(salt);
    return generate(scheduler, request);
  };
  const Output first = salted("tenant a"), other = salted("tenant b"), again = salted("tenant a");
  CHECK(first.usage.cached_tokens == 0);
  CHECK(other.usage.cached_tokens == 0);
  CHECK(again.usage.cached_tokens >= 48);
  CHECK(other.tokens == first.tokens);
  CHECK(again.tokens == first.tokens);
  const headrace_scheduler_stats stats = scheduler.stats();
  CHECK(stats.finished_requests == 3);
  CHECK(stats.num_running == 0);
  CHECK(stats.cached_tokens == static_cast<uint64_t>(again.usage.cached_tokens));
}

TEST_CASE("what the model's files recommend is given, and refused where it is out of range") {
  const auto recommended = [](const std::string& json) {
    const TemporaryFolder folder;
    write_text_model(folder, json);
    return headrace::Model::load(folder.path()).sampling();
  };
  const headrace_sampling good =
      recommended(R"({"do_sample":true,"temperature":0.5,"top_k":7,"top_p":0.75,"repetition_penalty":1.25})");
  CHECK(good.temperature == 0.5f);
  CHECK(good.top_k == 7);
  CHECK(good.top_p == 0.75f);
  CHECK(good.repetition_penalty == 1.25f);
  CHECK(text_model().sampling().temperature == 0.0f);
  const std::pair<const char*, const char*> bad[] = {{"temperature", "-1"},
                                                     {"temperature", "1e300"},
                                                     {"top_p", "1.5"},
                                                     {"min_p", "-0.5"},
                                                     {"repetition_penalty", "0"}};
  for (const auto& [field, value] : bad) {
    INFO(field << " = " << value);
    const std::string json = std::string(R"({"do_sample":true,")") + field + "\":" + value + "}";
    const Failure failure = failure_of([&] { recommended(json); });
    CHECK(failure.code == HEADRACE_MALFORMED);
    CHECK(failure.place.ends_with(field));
  }
}
