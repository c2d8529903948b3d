// Token masks through the C ABI: a toy automaton says which tokens may come, with and without guesses ahead.
#include <map>
#include <stdexcept>

#include "capi/tiny_model.h"

namespace {

using namespace capi_test;
using headrace::Model;
using headrace::Options;
using headrace::Request;
using headrace::Scheduler;

// Tokens rise by 1 to 5 from 10, and begin again there behind 55.
class RisingMask : public headrace::TokenMask {
 public:
  explicit RisingMask(int32_t* num_alive) : num_alive_(num_alive) { ++*num_alive_; }
  ~RisingMask() override { --*num_alive_; }

  bool fill(uint32_t* words, size_t num_words) override {
    for (int32_t token = 0; token < static_cast<int32_t>(num_words) * 32; ++token) {
      if (allows(token)) words[token / 32] |= uint32_t{1} << (token % 32);
    }
    return true;
  }
  bool advance(int32_t token) override {
    if (!allows(token)) return false;
    tokens_.push_back(token);
    return true;
  }
  void retreat(int32_t num_tokens) noexcept override {
    tokens_.resize(tokens_.size() - static_cast<size_t>(num_tokens));
  }

 private:
  bool allows(int32_t token) const {
    const int32_t last = tokens_.empty() ? 10 : tokens_.back();
    return last >= 55 ? token == 10 : token > last && token <= last + 5;
  }
  int32_t* num_alive_;
  std::vector<int32_t> tokens_;
};

const std::string kLlama = HEADRACE_SOURCE_DIR "/tests/data/goldens/llama";

Options options_with(const std::string& drafter) {
  Options options;
  options.set("engine.threads", "1").set("scheduler.draft_always", "true").set("scheduler.drafter", drafter);
  return options;
}

Request masked(const Model& model, uint32_t n, const headrace::TokenMaskSource& source) {
  headrace::Sampling sampling;
  sampling.temperature = 0.8f;
  sampling.has_seed = 1;
  sampling.seed = 7;
  sampling.n = n;
  Request request(model);
  request.add_tokens({11, 12, 13, 14, 15, 16}).set_sampling(sampling).set_length(0, 40).set_ignore_eos(true);
  request.set_token_mask(source);
  return request;
}

// What came of each sample.
std::map<uint32_t, std::vector<int32_t>> run(Scheduler& scheduler, const Request& request) {
  scheduler.submit(request);
  std::map<uint32_t, std::vector<int32_t>> out;
  for (bool more = true; more;) {
    more = scheduler.step();
    while (const auto event = scheduler.next_event()) {
      REQUIRE(event->type() != headrace::EventType::kFailed);
      for (const int32_t token : event->tokens()) out[event->index()].push_back(token);
    }
  }
  return out;
}

}  // namespace

TEST_CASE("only tokens that the mask allows come, whoever guesses ahead, and every walk ends") {
  const Model model = Model::load(tiny_path(), options_with("off"));
  int32_t num_alive = 0;
  std::map<uint32_t, std::vector<int32_t>> expected;
  for (const std::string& drafter : std::vector<std::string>{"off", "suffix", "model:" + kLlama}) {
    INFO(drafter);
    Scheduler scheduler(model, options_with(drafter));
    const auto said = run(scheduler, masked(model, 3, [&] { return std::make_unique<RisingMask>(&num_alive); }));
    CHECK(num_alive == 0);
    REQUIRE(said.size() == 3);
    for (const auto& [index, tokens] : said) {
      REQUIRE(tokens.size() == 40);
      for (size_t i = 0; i < tokens.size(); ++i) {
        const int32_t last = i == 0 ? 10 : tokens[i - 1];
        CHECK((last >= 55 ? tokens[i] == 10 : tokens[i] > last && tokens[i] <= last + 5));
      }
    }
    if (drafter == "off") expected = said;
    CHECK(said == expected);
  }
}

TEST_CASE("a mask that allows nothing, or throws, fails its request alone") {
  const Model model = Model::load(tiny_path(), options_with("off"));
  class Stuck : public headrace::TokenMask {
   public:
    explicit Stuck(bool throws) : throws_(throws) {}
    bool fill(uint32_t*, size_t) override {
      if (throws_) throw std::runtime_error("stuck");
      return true;
    }
    bool advance(int32_t) override { return true; }
    void retreat(int32_t) noexcept override {}

   private:
    bool throws_;
  };
  Scheduler scheduler(model, options_with("off"));
  const std::vector<headrace::TokenMaskSource> sources = {
      [] { return std::make_unique<Stuck>(false); }, [] { return std::make_unique<Stuck>(true); },
      []() -> std::unique_ptr<headrace::TokenMask> { return nullptr; }};
  for (const auto& source : sources) {
    const uint64_t id = scheduler.submit(masked(model, 1, source));
    Request plain(model);
    plain.add_tokens({11, 12, 13}).set_length(0, 5).set_ignore_eos(true);
    const uint64_t other = scheduler.submit(plain);
    std::map<uint64_t, headrace::EventType> last;
    for (bool more = true; more;) {
      more = scheduler.step();
      while (const auto event = scheduler.next_event()) last[event->request_id()] = event->type();
    }
    CHECK(last[id] == headrace::EventType::kFailed);
    CHECK(last[other] == headrace::EventType::kFinished);
  }
}

TEST_CASE("a mask without its functions is refused, and the host is told when its own are needed no more") {
  const Model model = Model::load(tiny_path(), options_with("off"));
  headrace_request* request = nullptr;
  REQUIRE(headrace_request_create(model.get(), &request, nullptr) == HEADRACE_OK);
  int32_t released = 0;
  headrace_token_mask mask;
  headrace_token_mask_init(&mask);
  mask.user = &released;
  mask.release = [](void* user) { ++*static_cast<int32_t*>(user); };
  CHECK(headrace_request_set_token_mask(request, &mask, nullptr) == HEADRACE_INVALID_ARGUMENT);
  CHECK(released == 0);
  mask.start = [](void* user) { return user; };
  mask.fill = [](void*, uint32_t*, size_t) -> int32_t { return 0; };
  mask.advance = [](void*, int32_t) -> int32_t { return 1; };
  mask.retreat = [](void*, int32_t) {};
  mask.end = [](void*) {};
  CHECK(headrace_request_set_token_mask(request, &mask, nullptr) == HEADRACE_OK);
  CHECK(released == 0);
  CHECK(headrace_request_set_token_mask(request, nullptr, nullptr) == HEADRACE_OK);
  CHECK(released == 1);
  CHECK(headrace_request_set_token_mask(request, &mask, nullptr) == HEADRACE_OK);
  headrace_request_destroy(request);
  CHECK(released == 2);
}
