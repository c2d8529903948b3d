// Requests with images: the same bits however they are computed, images told apart by their contents, and refusals.
#include <catch2/catch.hpp>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>

#include "engine/image_reader.h"
#include "engine/model_executor.h"
#include "engine/scheduler.h"
#include "engine/session.h"

using namespace headrace;
using namespace headrace::engine;

namespace {

using ModelHandle = std::shared_ptr<const EngineModel>;

const std::string kModels = std::string(HEADRACE_TEST_DATA) + "/goldens/models/";
const std::vector<std::string> kNames = {"llava_clip", "gemma3_vlm", "qwen2_5_vl", "qwen3_vl", "qwen3_5_vl"};

bool have_data() {
  if (std::ifstream(kModels + "llava_clip/config.json").good()) return true;
  std::puts("SKIPPED: HEADRACE_TEST_DATA with the golden models is not there");
  return false;
}

ModelHandle load(const std::string& name, int32_t threads) {
  EngineOptions options;
  options.threads = threads;
  ModelSource source;
  source.path = kModels + name;
  auto model = load_engine_model(std::move(source), options);
  INFO(model.status().to_string());
  REQUIRE(model.ok());
  return model.take();
}

// Pixel values that differ with the seed, of a size that the model takes.
std::shared_ptr<const RequestImage> make_image(const EngineModel& model, uint64_t seed, int64_t height = 4,
                                               int64_t width = 6) {
  const VisionSpec& vision = model.executor->images()->vision();
  size_t values = static_cast<size_t>(height * width * vision.patch_floats());
  if (vision.planes) {
    height = width = vision.image_size;
    values = static_cast<size_t>(vision.channels * height * width);
  }
  std::vector<float> pixels(values);
  for (size_t i = 0; i < pixels.size(); ++i) {
    const uint64_t key[2] = {seed, i};
    pixels[i] = static_cast<float>(hash64(key, sizeof key) >> 40) * 0x1p-23f - 1.0f;
  }
  auto image = make_request_image(*model.executor->images(), pixels, height, width);
  INFO(image.status().to_string());
  REQUIRE(image.ok());
  return image.take();
}

std::vector<int32_t> text(size_t size, uint64_t seed) {
  std::vector<int32_t> out(size);
  for (size_t i = 0; i < size; ++i) {
    const uint64_t key[2] = {seed, i};
    out[i] = 8 + static_cast<int32_t>(hash64(key, sizeof key) % 300);
  }
  return out;
}

struct Output {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  int64_t prompt_tokens = 0, cached_tokens = 0;
  bool same(const Output& other) const {
    return tokens == other.tokens && logprobs.size() == other.logprobs.size() &&
           std::memcmp(logprobs.data(), other.logprobs.data(), logprobs.size() * sizeof(float)) == 0;
  }
};

// Text around one token for each image.
RequestParams request_with(const EngineModel& model, std::vector<std::shared_ptr<const RequestImage>> images,
                           size_t text_size = 21) {
  RequestParams params;
  for (size_t i = 0; i <= images.size(); ++i) {
    const std::vector<int32_t> part = text(text_size, i);
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
  for (RequestParams& request : requests) {
    const auto id = scheduler.submit(std::move(request));
    INFO(id.status().to_string());
    REQUIRE(id.ok());
    by_id[*id];
  }
  for (bool more = true; more;) {
    const auto stepped = scheduler.step();
    REQUIRE(stepped.ok());
    more = *stepped;
    while (auto event = scheduler.next_event()) {
      INFO(event->status.to_string());
      REQUIRE(event->type != EventType::kFailed);
      Output& out = by_id[event->request_id];
      out.tokens.insert(out.tokens.end(), event->tokens.begin(), event->tokens.end());
      for (const TopLogprobs& top : event->top_logprobs) {
        out.logprobs.insert(out.logprobs.end(), top.logprobs.begin(), top.logprobs.end());
      }
      if (event->type != EventType::kFinished) continue;
      out.prompt_tokens = event->usage.prompt_tokens;
      out.cached_tokens = event->usage.cached_tokens;
    }
  }
  REQUIRE(scheduler.check_invariants().ok());
  std::vector<Output> out;
  for (auto& [id, output] : by_id) out.push_back(std::move(output));
  return out;
}

std::shared_ptr<Scheduler> new_scheduler(const ModelHandle& model, int32_t rows = 512, int64_t cache_tokens = 0) {
  EngineOptions options;
  options.max_num_batched_tokens = rows;
  options.kv_max_tokens = cache_tokens;
  options.kv_snapshot_interval = 16;
  auto scheduler = Scheduler::create(model, nullptr, options);
  INFO(scheduler.status().to_string());
  REQUIRE(scheduler.ok());
  return scheduler.take();
}

}  // namespace

TEST_CASE("a request with images has the same bits however it is computed") {
  if (!have_data()) return;
  for (const std::string& name : kNames) {
    DYNAMIC_SECTION(name) {
      const ModelHandle model = load(name, 2);
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
        const ModelHandle other = threads == 2 ? model : load(name, threads);
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
      auto narrow = new_scheduler(model, 64, 176);
      std::vector<RequestParams> requests;
      for (int i = 0; i < 3; ++i) {
        requests.push_back(request_with(*model, {image, second}));
        requests.back().cache_salt = std::to_string(i);
        requests.back().max_tokens = 10;
      }
      for (const Output& output : run(*narrow, std::move(requests))) CHECK(output.same(alone));
    }
  }
}

TEST_CASE("images of other contents share nothing behind their first row") {
  if (!have_data()) return;
  const ModelHandle model = load("llava_clip", 2);
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
  const ModelHandle model = load("gemma3_vlm", 2);
  RequestParams request = request_with(*model, {make_image(*model, 1)});
  const Output alone = run(*new_scheduler(model), {request})[0];
  request.n = 3;
  const Output all = run(*new_scheduler(model), {request})[0];
  CHECK(all.tokens.size() == 30);
  request.n = 1;
  request.sampling.repetition_penalty = 1.2f;  // of the image's token as of the others
  CHECK(run(*new_scheduler(model), {request})[0].tokens.size() == alone.tokens.size());
}

TEST_CASE("what does not go together with images is refused by name") {
  if (!have_data()) return;
  const ModelHandle model = load("llava_clip", 1);
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
  request.num_prompt_logprobs = 0;
  refused(request, StatusCode::kUnsupported, "num_prompt_logprobs");
  request = request_with(*model, {image});
  request.images.push_back(image);
  refused(request, StatusCode::kInvalidArgument, "images");
  request = request_with(*model, {image});
  auto session = Session::create(model, scheduler->kv_cache(), {});
  REQUIRE(session.ok());
  request.session = session.take();
  refused(request, StatusCode::kUnsupported, "images");

  const std::vector<float> pixels(3 * 32 * 32, NAN);
  const auto bad = make_request_image(*model->executor->images(), pixels, 32, 32);
  REQUIRE_FALSE(bad.ok());
  CHECK(bad.status().place() == "image");
  CHECK(load("llama", 1)->executor->images() == nullptr);
}
