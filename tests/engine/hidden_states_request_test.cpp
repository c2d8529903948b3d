// Requests for hidden states: each row once and in order, with the same bits however the request was computed.
#include <algorithm>

#include "engine/real_requests.h"
#include "engine/session.h"
#include "engine/toy_engine.h"
#include "model/model_header.h"

using namespace headrace;
using namespace headrace::engine;
using namespace headrace::engine::real;

namespace {

const std::string kLlama = std::string(HEADRACE_SOURCE_DIR) + "/tests/data/goldens/llama";
constexpr int64_t kHidden = 32;
const std::vector<int32_t> kLayers = {2, 0, 1};

ModelHandle load_llama(int32_t threads = 1) {
  EngineOptions options;
  options.threads = threads;
  ModelSource source;
  source.path = kLlama;
  return load_source(std::move(source), options);
}

RequestParams asking(size_t prompt_size, uint64_t seed, int64_t max_tokens, int64_t begin = 0,
                     int64_t end = INT64_MAX) {
  RequestParams params;
  params.prompt = seeded_tokens(prompt_size, seed, 3, 90);
  params.max_tokens = max_tokens;
  params.ignore_eos = true;
  params.hidden_states = {kLayers, begin, end};
  return params;
}

// Of one sample: rows [layer][values] as they came, which must follow each other.
struct Rows {
  int64_t first = -1, next = -1;
  std::vector<std::vector<float>> layers = std::vector<std::vector<float>>(kLayers.size());
  std::vector<int32_t> tokens;
  Usage usage;

  void add(const Event& event) {
    tokens.insert(tokens.end(), event.tokens.begin(), event.tokens.end());
    if (event.type == EventType::kFinished) usage = event.usage;
    if (event.type != EventType::kHidden) return;
    const HiddenStates& hidden = *event.hidden;
    REQUIRE(hidden.layers == kLayers);
    REQUIRE(hidden.hidden_size == kHidden);
    if (first < 0) first = next = hidden.first_position;
    REQUIRE(hidden.first_position == next);
    next += hidden.num_rows;
    const auto values = static_cast<ptrdiff_t>(hidden.num_rows * kHidden);
    for (size_t layer = 0; layer < layers.size(); ++layer) {
      const auto begin = hidden.values.begin() + static_cast<ptrdiff_t>(layer) * values;
      layers[layer].insert(layers[layer].end(), begin, begin + values);
    }
  }
  // Rows [begin, end) of each layer.
  std::vector<std::vector<float>> part(int64_t begin, int64_t end) const {
    std::vector<std::vector<float>> out;
    for (const auto& rows : layers)
      out.emplace_back(rows.begin() + (begin - first) * kHidden, rows.begin() + (end - first) * kHidden);
    return out;
  }
};

// By request in order of submission, and by sample.
std::vector<std::map<uint32_t, Rows>> run(Scheduler& scheduler, std::vector<RequestParams> requests) {
  std::map<uint64_t, std::map<uint32_t, Rows>> out;
  run_requests(scheduler, std::move(requests),
               [&](const Event& event) { out[event.request_id][event.index].add(event); });
  return values_of(std::move(out));
}

Rows run_one(Scheduler& scheduler, RequestParams params) { return run(scheduler, {std::move(params)})[0][0]; }

}  // namespace

TEST_CASE("each row comes once, in order, and the last token drawn has none") {
  const auto model = load_llama();
  const auto scheduler = scheduler_of(model, {});
  const Rows rows = run_one(*scheduler, asking(40, 1, 9));
  CHECK(rows.first == 0);
  CHECK(rows.next == 40 + 8);
  RequestParams plain = asking(40, 1, 9);
  plain.hidden_states = {};
  CHECK(run_one(*scheduler, plain).tokens == rows.tokens);
}

TEST_CASE("hidden states are the same bits however a request is computed") {
  const auto model = load_llama();
  const Rows expected = run_one(*scheduler_of(model, {}), asking(60, 1, 20));
  REQUIRE(expected.next == 79);

  SECTION("in chunks, beside others, on two threads") {
    EngineOptions options;
    options.max_num_batched_tokens = 7;
    const auto both =
        run(*scheduler_of(load_llama(2), options), {asking(33, 2, 30), asking(60, 1, 20), asking(5, 3, 40)});
    CHECK(both[1].at(0).layers == expected.layers);
    CHECK(both[1].at(0).tokens == expected.tokens);
  }
  SECTION("preempted") {
    EngineOptions options;
    options.kv_max_tokens = 112;
    const auto scheduler = scheduler_of(model, options);
    const auto both = run(*scheduler, {asking(20, 2, 70), asking(60, 1, 20)});
    CHECK(scheduler->stats().preemptions > 0);
    CHECK(both[1].at(0).layers == expected.layers);
  }
  SECTION("a cached prefix is computed anew where its rows are wanted, and serves where they are not") {
    const auto scheduler = scheduler_of(model, {});
    run_one(*scheduler, asking(60, 1, 20));
    const Rows again = run_one(*scheduler, asking(60, 1, 20));
    CHECK(again.layers == expected.layers);
    CHECK(again.usage.cached_tokens == 0);
    CHECK(again.usage.reuse_miss == ReuseMiss::kHiddenStates);
    const Rows late = run_one(*scheduler, asking(60, 1, 20, 50, 62));
    CHECK(late.usage.cached_tokens == 48);
    CHECK(late.first == 50);
    CHECK(late.next == 62);
    CHECK(late.layers == expected.part(50, 62));
    const Rows output = run_one(*scheduler, asking(60, 1, 20, 59));
    CHECK(output.usage.cached_tokens == 48);
    CHECK(output.usage.reuse_miss == ReuseMiss::kNone);
    CHECK(output.layers == expected.part(59, 79));
  }
}

TEST_CASE("samples share the prompt's rows, and have their own behind it") {
  const auto model = load_llama();
  RequestParams params = asking(20, 4, 6);
  params.n = 3;
  params.sampling.temperature = 1.5f;
  params.has_seed = true;
  const auto samples = run(*scheduler_of(model, {}), {params})[0];
  CHECK(samples.at(0).first == 0);
  CHECK(samples.at(0).next == 25);
  for (uint32_t index : {1u, 2u}) {
    CHECK(samples.at(index).first == 20);
    CHECK(samples.at(index).next == 25);
  }
  // The rows of a sample are those of its tokens as a prompt.
  RequestParams whole = asking(20, 4, 1);
  whole.prompt.insert(whole.prompt.end(), samples.at(2).tokens.begin(), samples.at(2).tokens.end() - 1);
  CHECK(run_one(*scheduler_of(model, {}), whole).part(20, 25) == samples.at(2).layers);
}

TEST_CASE("on a session the request's own rows come, with their positions in the whole") {
  const auto model = load_llama();
  EngineOptions options;
  auto cache = make_kv_cache(*model, options);
  REQUIRE(cache.ok());
  const auto scheduler = scheduler_of(model, options, *cache);
  auto session = Session::create(model, *cache, options);
  REQUIRE(session.ok());
  RequestParams first = asking(30, 5, 4);
  first.session = *session;
  const Rows before = run_one(*scheduler, first);
  RequestParams second = asking(10, 6, 4, 2);
  second.session = *session;
  const Rows after = run_one(*scheduler, second);
  CHECK(after.first == 36);
  CHECK(after.next == 44 + 3);
  RequestParams whole = asking(30, 5, 1);
  whole.prompt.insert(whole.prompt.end(), before.tokens.begin(), before.tokens.end());
  const std::vector<int32_t> own = seeded_tokens(10, 6, 3, 90);
  whole.prompt.insert(whole.prompt.end(), own.begin(), own.end());
  CHECK(run_one(*scheduler_of(model, {}), whole).part(36, 44) == after.part(36, 44));
}

TEST_CASE("what cannot be given is refused") {
  const auto model = load_llama();
  const auto scheduler = scheduler_of(model, {});
  const auto place_of = [&](const HiddenStatesParams& asked) {
    RequestParams params = asking(5, 1, 1);
    params.hidden_states = asked;
    return scheduler->submit(params).status().place();
  };
  CHECK(place_of({{3}, 0, 1}) == "hidden_states: layers[0]");
  CHECK(place_of({{0, 0}, 0, 1}) == "hidden_states: layers[1]");
  CHECK(place_of({{0}, 2, 2}) == "hidden_states");
  CHECK(place_of({{0}, -1, 2}) == "hidden_states");
  toy::Toy toy;
  RequestParams params = asking(5, 1, 1);
  params.prompt = {3, 4};
  const auto refused = toy.scheduler()->submit(params);
  CHECK(refused.status().code() == StatusCode::kUnsupported);
  CHECK(refused.status().place() == "hidden_states");
}
