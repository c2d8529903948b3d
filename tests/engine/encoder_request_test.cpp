// Requests to models with an encoder in front of their decoder: the same bits however they are computed, inputs told apart by
// their contents, and refusals.
#include <catch2/catch.hpp>

#include <map>

#include "engine/embedder.h"
#include "engine/input_reader.h"
#include "engine/model_executor.h"
#include "engine/real_requests.h"
#include "engine/scheduler.h"
#include "engine/session.h"

using namespace headrace;
using namespace headrace::engine;
using namespace headrace::engine::real;

namespace {

const std::vector<std::string> kNames = {"t5", "whisper"};

bool have_data() { return have_model("t5"); }

std::shared_ptr<const EncoderInput> make_input(const EngineModel& model, uint64_t seed) {
  InputReader& reader = *model.executor->inputs();
  const auto made = [&] {
    if (!reader.encoder().audio) return make_token_input(reader, seeded_tokens(30 + seed % 7, seed));
    const int64_t mels = reader.encoder().audio->num_mels, frames = reader.encoder().audio->num_frames;
    return make_feature_input(reader, seeded_floats(static_cast<size_t>(mels * frames), seed), mels, frames);
  }();
  INFO(made.status().to_string());
  REQUIRE(made.ok());
  return *made;
}

struct Output {
  std::map<uint32_t, std::vector<int32_t>> tokens;  // by sample
  std::vector<float> logprobs;
  int64_t cached_tokens = 0;
  bool same(const Output& other) const { return tokens == other.tokens && equal_bits(logprobs, other.logprobs); }
};

RequestParams request_with(std::shared_ptr<const EncoderInput> input, size_t prompt_size = 37) {
  RequestParams params;
  params.encoder_input = std::move(input);
  params.prompt = seeded_tokens(prompt_size, 1000);
  params.max_tokens = 10;
  params.ignore_eos = true;
  params.num_logprobs = 5;
  return params;
}

std::vector<Output> run(Scheduler& scheduler, std::vector<RequestParams> requests) {
  std::map<uint64_t, Output> by_id;
  run_requests(scheduler, std::move(requests), [&](const Event& event) {
    Output& out = by_id[event.request_id];
    auto& sample = out.tokens[event.index];
    sample.insert(sample.end(), event.tokens.begin(), event.tokens.end());
    add_logprobs(out.logprobs, event);
    if (event.type == EventType::kFinished) out.cached_tokens = event.usage.cached_tokens;
  });
  return values_of(std::move(by_id));
}

std::shared_ptr<Scheduler> make_scheduler(const ModelHandle& model, int32_t step_rows = 512, bool index = false,
                                          int64_t cache_tokens = 1024) {
  EngineOptions options;
  options.max_num_batched_tokens = step_rows;
  options.kv_prefix_index = index;
  options.kv_max_tokens = cache_tokens;
  return scheduler_of(model, options);
}

}  // namespace

TEST_CASE("requests behind an encoder have the same bits however they are computed") {
  if (!have_data()) return;
  for (const std::string& name : kNames) {
    DYNAMIC_SECTION(name) {
      const ModelHandle model = load_golden(name, 1);
      const auto input = make_input(*model, 1), other = make_input(*model, 2);
      const Output alone = run(*make_scheduler(model), {request_with(input)})[0];
      const Output other_alone = run(*make_scheduler(model), {request_with(other, 21)})[0];
      REQUIRE(alone.tokens.at(0).size() == 10);
      CHECK_FALSE(run(*make_scheduler(model), {request_with(other)})[0].same(alone));
      for (const int32_t rows : {3, 16}) {
        INFO("steps of " << rows);
        CHECK(run(*make_scheduler(model, rows), {request_with(input)})[0].same(alone));
        const auto outputs =
            run(*make_scheduler(model, rows), {request_with(other, 21), request_with(input), request_with(other, 21)});
        CHECK(outputs[0].same(other_alone));
        CHECK(outputs[1].same(alone));
        CHECK(outputs[2].same(other_alone));
      }
      for (const int32_t threads : {2, 3}) {
        const ModelHandle again = load_golden(name, threads);
        CHECK(run(*make_scheduler(again), {request_with(make_input(*again, 1))})[0].same(alone));
      }
    }
  }
}

TEST_CASE("a preempted request behind an encoder computes the same again") {
  if (!have_data()) return;
  for (const std::string& name : kNames) {
    DYNAMIC_SECTION(name) {
      const ModelHandle model = load_golden(name, 2);
      const auto input = make_input(*model, 1), other = make_input(*model, 2);
      const Output alone = run(*make_scheduler(model), {request_with(input, 30)})[0];
      const Output other_alone = run(*make_scheduler(model), {request_with(other, 30)})[0];
      // Room for both prompts, not for what follows them.
      const auto scheduler = make_scheduler(model, 512, false, 5 * 16);
      const auto outputs = run(*scheduler, {request_with(input, 30), request_with(other, 30)});
      CHECK(scheduler->stats().preemptions > 0);
      CHECK(outputs[0].same(alone));
      CHECK(outputs[1].same(other_alone));
    }
  }
}

TEST_CASE("a decoder's cached prefixes are found behind the same input alone") {
  if (!have_data()) return;
  for (const std::string& name : kNames) {
    DYNAMIC_SECTION(name) {
      const ModelHandle model = load_golden(name, 2);
      const auto scheduler = make_scheduler(model, 512, true);
      const Output cold = run(*scheduler, {request_with(make_input(*model, 1))})[0];
      CHECK(cold.cached_tokens == 0);
      CHECK(run(*scheduler, {request_with(make_input(*model, 2))})[0].cached_tokens == 0);
      const Output warm = run(*scheduler, {request_with(make_input(*model, 1))})[0];
      CHECK(warm.cached_tokens == 32);
      CHECK(warm.same(cold));
      RequestParams salted = request_with(make_input(*model, 1));
      salted.cache_salt = "tenant";
      const Output apart = run(*scheduler, {std::move(salted)})[0];
      CHECK(apart.cached_tokens == 0);
      CHECK(apart.same(cold));
    }
  }
}

TEST_CASE("samples share what an encoder made, and it goes with the last of them") {
  if (!have_data()) return;
  for (const std::string& name : kNames) {
    DYNAMIC_SECTION(name) {
      const ModelHandle model = load_golden(name, 2);
      const auto input = make_input(*model, 1);
      const auto sampled = [&] {
        RequestParams params = request_with(input);
        params.n = 3;
        params.sampling.temperature = 1.0f;
        params.sampling.seed = 7;
        params.has_seed = true;
        return params;
      };
      const auto scheduler = make_scheduler(model);
      const Output whole = run(*scheduler, {sampled()})[0];
      REQUIRE(whole.tokens.size() == 3);
      CHECK(input.use_count() == 1);
      CHECK(run(*make_scheduler(model, 5), {sampled()})[0].tokens == whole.tokens);

      // Cancelled on the way.
      const auto id = scheduler->submit(sampled());
      REQUIRE(id.ok());
      REQUIRE(scheduler->step().ok());
      CHECK(input.use_count() == 2);
      REQUIRE(scheduler->cancel(*id).ok());
      for (bool more = true; more;) {
        const auto stepped = scheduler->step();
        REQUIRE(stepped.ok());
        more = *stepped;
      }
      while (scheduler->next_event()) {
      }
      CHECK(input.use_count() == 1);
      CHECK(scheduler->kv_cache()->stats().free_blocks == scheduler->kv_cache()->stats().num_blocks);
    }
  }
}

TEST_CASE("an empty prompt behind an encoder is the decoder's first token") {
  if (!have_data()) return;
  for (const std::string& name : kNames) {
    DYNAMIC_SECTION(name) {
      const ModelHandle model = load_golden(name, 2);
      RequestParams started = request_with(make_input(*model, 1)), empty = started;
      started.prompt = {model->executor->inputs()->encoder().start_token_id};
      empty.prompt.clear();
      CHECK(run(*make_scheduler(model), {std::move(empty)})[0].same(
          run(*make_scheduler(model), {std::move(started)})[0]));
    }
  }
}

TEST_CASE("what does not go with an encoder is refused by name") {
  if (!have_data()) return;
  const ModelHandle t5 = load_golden("t5", 1), llama = load_golden("llama", 1);
  RequestParams without = request_with(nullptr);
  auto refused = make_scheduler(t5)->submit(without);
  CHECK(refused.status().code() == StatusCode::kInvalidArgument);
  CHECK(refused.status().place() == "encoder_input");
  refused = make_scheduler(llama)->submit(request_with(make_input(*t5, 1)));
  CHECK(refused.status().code() == StatusCode::kUnsupported);
  CHECK(refused.status().place() == "encoder_input");
  CHECK(Session::create(t5, nullptr, EngineOptions()).status().code() == StatusCode::kUnsupported);
  CHECK(Embedder::create(t5, EngineOptions()).status().code() == StatusCode::kUnsupported);
  CHECK(t5->executor->load_adapter("nowhere").status().code() == StatusCode::kUnsupported);

  const ModelHandle whisper = load_golden("whisper", 1);
  const std::vector<float> samples(100, 0.1f);
  // Its files do not say how features are made.
  CHECK(make_audio_input(*whisper->executor->inputs(), samples, 16000).status().code() == StatusCode::kNotFound);
  CHECK(make_audio_input(*t5->executor->inputs(), samples, 16000).status().place() == "audio");
}
