// Requests with images: the same bits however they are computed, images told apart by their contents, and refusals.
#include <catch2/catch.hpp>

#include <cstdio>
#include <map>

#include "engine/image_reader.h"
#include "engine/model_executor.h"
#include "engine/real_requests.h"
#include "engine/scheduler.h"
#include "engine/session.h"

using namespace headrace;
using namespace headrace::engine;
using namespace headrace::engine::real;

namespace {

const std::vector<std::string> kNames = {"llava_clip", "gemma3_vlm", "qwen2_5_vl", "qwen3_vl", "qwen3_5_vl"};

bool have_data() { return have_model("llava_clip"); }

// Pixel values that differ with the seed, of a size that the model takes.
std::shared_ptr<const RequestImage> make_image(const EngineModel& model, uint64_t seed, int64_t height = 4,
                                               int64_t width = 6) {
  const VisionSpec& vision = model.executor->images()->vision();
  size_t values = static_cast<size_t>(height * width * vision.patch_floats());
  if (vision.planes) {
    height = width = vision.image_size;
    values = static_cast<size_t>(vision.channels * height * width);
  }
  const std::vector<float> pixels = seeded_floats(values, seed);
  auto image = make_request_image(*model.executor->images(), pixels, height, width);
  INFO(image.status().to_string());
  REQUIRE(image.ok());
  return image.take();
}

struct Output {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;  // of the most likely tokens at each
  std::vector<float> scores;    // of the tokens
  int64_t prompt_tokens = 0, cached_tokens = 0;
  bool same(const Output& other) const { return tokens == other.tokens && equal_bits(logprobs, other.logprobs); }
};

// Text around one token for each image.
RequestParams request_with(const EngineModel& model, std::vector<std::shared_ptr<const RequestImage>> images,
                           size_t text_size = 21) {
  RequestParams params;
  for (size_t i = 0; i <= images.size(); ++i) {
    const std::vector<int32_t> part = seeded_tokens(text_size, i);
    params.prompt.insert(params.prompt.end(), part.begin(), part.end());
    if (i < images.size()) params.prompt.push_back(model.executor->images()->vision().image_token_id);
  }
  params.images = std::move(images);
  params.max_tokens = 10;
  params.ignore_eos = true;
  params.num_logprobs = 5;
  return params;
}

std::vector<Output> run(Scheduler& scheduler, std::vector<RequestParams> requests) {
  std::map<uint64_t, Output> by_id;
  run_requests(scheduler, std::move(requests), [&](const Event& event) {
    Output& out = by_id[event.request_id];
    out.tokens.insert(out.tokens.end(), event.tokens.begin(), event.tokens.end());
    out.scores.insert(out.scores.end(), event.logprobs.begin(), event.logprobs.end());
    add_logprobs(out.logprobs, event);
    if (event.type != EventType::kFinished) return;
    out.prompt_tokens = event.usage.prompt_tokens;
    out.cached_tokens = event.usage.cached_tokens;
  });
  return values_of(std::move(by_id));
}

std::shared_ptr<Scheduler> new_scheduler(const ModelHandle& model, int32_t rows = 512, int64_t cache_tokens = 0) {
  EngineOptions options;
  options.max_num_batched_tokens = rows;
  options.kv_max_tokens = cache_tokens;
  options.kv_snapshot_interval = 16;
  return scheduler_of(model, options);
}

}  // namespace

TEST_CASE("a request with images has the same bits however it is computed") {
  if (!have_data()) return;
  for (const std::string& name : kNames) {
    DYNAMIC_SECTION(name) {
      const ModelHandle model = load_golden(name, 2);
      const auto image = make_image(*model, 1), second = make_image(*model, 2, 6, 2);
      const auto scheduler = new_scheduler(model);
      const Output alone = run(*scheduler, {request_with(*model, {image, second})})[0];
      CHECK(alone.tokens.size() == 10);
      CHECK(alone.prompt_tokens == 63 + image->grid.num_tokens() + second->grid.num_tokens());
      CHECK(alone.cached_tokens == 0);
      const Output warm = run(*scheduler, {request_with(*model, {image, second})})[0];
      CHECK(warm.same(alone));
      CHECK(warm.cached_tokens >= 32);
      for (const int32_t threads : {1, 2}) {
        const ModelHandle other = threads == 2 ? model : load_golden(name, threads);
        for (const int32_t rows : {9, 512}) {
          INFO(threads << " threads, " << rows << " rows a step");
          auto fresh = new_scheduler(other, rows);
          std::vector<RequestParams> requests;
          requests.push_back(request_with(*other, {second}));
          requests.push_back(request_with(*other, {image, second}));
          requests.push_back(request_with(*other, {}));
          CHECK(run(*fresh, std::move(requests))[1].same(alone));
        }
      }
      // So little room that sequences give theirs up and are computed again, images too.
      const auto longer = [&] {
        RequestParams params = request_with(*model, {image, second});
        params.max_tokens = 60;
        return params;
      };
      const Output wanted = run(*scheduler, {longer()})[0];
      // Two prompts fit, and not what they grow to.
      auto narrow = new_scheduler(model, 64, 2 * (alone.prompt_tokens / 16 + 2) * 16);
      std::vector<RequestParams> requests;
      for (int i = 0; i < 3; ++i) {
        requests.push_back(longer());
        requests.back().cache_salt = std::to_string(i);
      }
      for (const Output& output : run(*narrow, std::move(requests))) CHECK(output.same(wanted));
      CHECK(narrow->report().metrics.preemptions > 0);
    }
  }
}

TEST_CASE("images of other contents share nothing behind their first row") {
  if (!have_data()) return;
  const ModelHandle model = load_golden("llava_clip", 2);
  const auto scheduler = new_scheduler(model);
  const auto image = make_image(*model, 1), other = make_image(*model, 2);
  const Output first = run(*scheduler, {request_with(*model, {image}, 40)})[0];
  const Output second = run(*scheduler, {request_with(*model, {other}, 40)})[0];
  CHECK(second.cached_tokens == 32);  // whole blocks of the text before
  CHECK_FALSE(second.same(first));
  const Output again = run(*scheduler, {request_with(*model, {make_image(*model, 1)}, 40)})[0];
  CHECK(again.cached_tokens >= 80);
  CHECK(again.same(first));
  // Of the same values in another shape.
  const Output fresh = run(*new_scheduler(model), {request_with(*model, {other}, 40)})[0];
  CHECK(fresh.same(second));
}

TEST_CASE("samples of a prompt with an image share it") {
  if (!have_data()) return;
  const ModelHandle model = load_golden("gemma3_vlm", 2);
  RequestParams request = request_with(*model, {make_image(*model, 1)});
  const auto scheduler = new_scheduler(model);
  const Output alone = run(*scheduler, {request})[0];
  const uint64_t rows_of_prompt = scheduler->report().metrics.computed_tokens;
  request.n = 3;
  const auto fresh = new_scheduler(model);
  const Output all = run(*fresh, {request})[0];
  CHECK(all.tokens.size() == 30);
  CHECK(rows_of_prompt == static_cast<uint64_t>(alone.prompt_tokens));
  CHECK(fresh->report().metrics.computed_tokens == rows_of_prompt);  // once for the three
  request.n = 1;
  request.sampling.repetition_penalty = 1.2f;  // of the image's token as of the others
  CHECK(run(*new_scheduler(model), {request})[0].tokens.size() == alone.tokens.size());
}

TEST_CASE("sessions keep the images of their requests") {
  if (!have_data()) return;
  for (const std::string& name : kNames) {
    DYNAMIC_SECTION(name) {
      const ModelHandle model = load_golden(name, 2);
      const auto image = make_image(*model, 1), second = make_image(*model, 2, 6, 2);
      const auto scheduler = new_scheduler(model, 64);
      const auto new_session = [&] {
        auto session = Session::create(model, scheduler->kv_cache(), {});
        REQUIRE(session.ok());
        return session.take();
      };
      const auto session = new_session();
      const auto turn = [&](const std::shared_ptr<Session>& on,
                            std::vector<std::shared_ptr<const RequestImage>> images) {
        RequestParams params = request_with(*model, std::move(images));
        params.session = on;
        return run(*scheduler, {params})[0];
      };
      // What a request says whose prompt is all that the session went through.
      const auto at_once = [&](std::vector<std::shared_ptr<const RequestImage>> images, const std::vector<Output>& said,
                               const std::vector<size_t>& images_of_turn) {
        RequestParams params;
        size_t next = 0;
        for (size_t i = 0; i < images_of_turn.size(); ++i) {
          std::vector<std::shared_ptr<const RequestImage>> own(
              images.begin() + static_cast<ptrdiff_t>(next),
              images.begin() + static_cast<ptrdiff_t>(next + images_of_turn[i]));
          next += images_of_turn[i];
          const RequestParams part = request_with(*model, std::move(own));
          params.prompt.insert(params.prompt.end(), part.prompt.begin(), part.prompt.end());
          if (i < said.size()) params.prompt.insert(params.prompt.end(), said[i].tokens.begin(), said[i].tokens.end());
        }
        const RequestParams like = request_with(*model, {});
        params.images = std::move(images);
        params.max_tokens = like.max_tokens;
        params.ignore_eos = true;
        params.num_logprobs = like.num_logprobs;
        return run(*new_scheduler(model), {params})[0];
      };
      const Output first = turn(session, {image});
      CHECK(first.same(at_once({image}, {}, {1})));
      const int32_t token = model->executor->images()->vision().image_token_id;
      CHECK(std::ranges::count(session->tokens(), token) >= image->grid.num_tokens());
      const auto fork = session->fork();
      REQUIRE(fork.ok());
      const auto size = static_cast<int64_t>(session->tokens().size());
      const Output talk = turn(session, {});
      CHECK(talk.same(at_once({image}, {first}, {1, 0})));
      CHECK(talk.cached_tokens > 0);
      const Output third = turn(session, {second});
      CHECK(third.same(at_once({image, second}, {first, talk}, {1, 0, 1})));

      // The fork went another way, and the session goes back to where they parted; neither has its values any more.
      scheduler->kv_cache()->clear_prefix_index();
      CHECK(turn(*fork, {second}).same(at_once({image, second}, {first}, {1, 1})));
      REQUIRE(session->rewind(size).ok());
      REQUIRE(session->shed());
      scheduler->kv_cache()->clear_prefix_index();
      CHECK(turn(session, {}).same(talk));

      // Its own forward passes, whole and in chunks.
      REQUIRE(session->rewind(size).ok());
      const std::vector<int32_t> more = seeded_tokens(9, 77);
      std::vector<float> logits(more.size() * static_cast<size_t>(model->executor->vocab_size())), again = logits;
      REQUIRE(session->evaluate(more, logits.data()).ok());
      REQUIRE(session->rewind(size).ok());
      REQUIRE(session->shed());
      scheduler->kv_cache()->clear_prefix_index();
      REQUIRE(session->evaluate(more, again.data()).ok());
      CHECK(logits == again);

      // 21 tokens of text stand before the image.
      const Status inside = session->rewind(22);
      CHECK(inside.code() == StatusCode::kInvalidArgument);
      CHECK(inside.place() == "num_tokens");
      CHECK(session->save("session_with_image").code() == StatusCode::kUnsupported);
      REQUIRE(session->rewind(21).ok());
      CHECK(std::ranges::count(session->tokens(), token) == 0);
      CHECK(session->save("session_without_image").ok());
      std::remove("session_without_image");
    }
  }
}

TEST_CASE("a prompt with images is scored, its rows as the image's token") {
  if (!have_data()) return;
  for (const std::string& name : kNames) {
    DYNAMIC_SECTION(name) {
      const ModelHandle model = load_golden(name, 2);
      const auto image = make_image(*model, 1);
      const auto vocab_size = static_cast<size_t>(model->executor->vocab_size());
      RequestParams params = request_with(*model, {image});
      params.num_prompt_logprobs = 5;
      const Output whole = run(*new_scheduler(model), {params})[0];
      const size_t prompt_size = 42 + static_cast<size_t>(image->grid.num_tokens());
      REQUIRE(whole.tokens.size() == prompt_size + 10);
      const int32_t token = model->executor->images()->vision().image_token_id;
      for (size_t i = 0; i < static_cast<size_t>(image->grid.num_tokens()); ++i) CHECK(whole.tokens[21 + i] == token);
      CHECK(run(*new_scheduler(model, 9), {params})[0].same(whole));
      const auto scheduler = new_scheduler(model);
      RequestParams plain = params;
      plain.num_prompt_logprobs = -1;
      run(*scheduler, {plain});  // its blocks are in the index
      CHECK(run(*scheduler, {params})[0].same(whole));

      // The text behind the image scores as a session's logits do.
      auto session = Session::create(model, scheduler->kv_cache(), {});
      REQUIRE(session.ok());
      RequestParams head = plain;
      head.prompt.resize(22);
      head.max_tokens = 1;
      head.session = *session;
      run(*scheduler, {head});
      REQUIRE((*session)->rewind(static_cast<int64_t>(prompt_size) - 21).ok());
      const std::vector<int32_t> tail = seeded_tokens(21, 1);
      std::vector<float> logits(tail.size() * vocab_size);
      REQUIRE((*session)->evaluate(tail, logits.data()).ok());
      for (size_t i = 1; i < tail.size(); ++i) {
        const std::span<const float> row(logits.data() + (i - 1) * vocab_size, vocab_size);
        LogitStats stats;
        model->executor->logit_stats({row.data(), 1, static_cast<int64_t>(vocab_size), &stats});
        const auto score = score_token(row, stats, tail[i], 5);
        REQUIRE(score.ok());
        CHECK(score->logprob == whole.scores[prompt_size - 21 + i]);
      }
    }
  }
}

TEST_CASE("a session that drops what is too much makes room for a request's images") {
  if (!have_data()) return;
  const ModelHandle model = load_golden("llava_clip", 1);
  const auto image = make_image(*model, 1);
  RequestParams request = request_with(*model, {image}, 2);
  const int64_t rows = image->grid.num_tokens();
  REQUIRE(rows > 1);
  const auto scheduler = new_scheduler(model, 512, (rows + 79) / 16 * 16);
  auto session = Session::create(model, scheduler->kv_cache(), {});
  REQUIRE(session.ok());
  SessionOverflow drop;
  drop.kind = SessionOverflow::Kind::kDrop;
  REQUIRE((*session)->set_overflow(drop).ok());
  // All fits but the image's rows.
  const int64_t limit = context_limit(*model, *scheduler->kv_cache());
  const int64_t held = limit - request.max_tokens - static_cast<int64_t>(request.prompt.size());
  REQUIRE((*session)->append_tokens(seeded_tokens(static_cast<size_t>(held), 3)).ok());
  request.session = *session;
  CHECK(run(*scheduler, {request})[0].tokens.size() == 10);
  CHECK((*session)->dropped().tokens > 0);
}

TEST_CASE("what does not go together with images is refused by name") {
  if (!have_data()) return;
  const ModelHandle model = load_golden("llava_clip", 1);
  const auto scheduler = new_scheduler(model);
  const auto image = make_image(*model, 1);
  const auto refused = [&](RequestParams request, StatusCode code, const char* place) {
    const auto id = scheduler->submit(std::move(request));
    REQUIRE_FALSE(id.ok());
    INFO(id.status().to_string());
    CHECK(id.status().code() == code);
    CHECK(id.status().place() == place);
  };
  RequestParams request = request_with(*model, {image});
  request.images.push_back(image);
  refused(request, StatusCode::kInvalidArgument, "images");
  const std::vector<float> pixels(3 * 32 * 32, NAN);
  const auto bad = make_request_image(*model->executor->images(), pixels, 32, 32);
  REQUIRE_FALSE(bad.ok());
  CHECK(bad.status().place() == "image");
  CHECK(load_golden("llama", 1)->executor->images() == nullptr);
}
