// Whole models on the emulated CUDA backend: against transformers' logits, and with the same bits however a prompt is cut and
// whoever shares its batch.
#include <memory>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "backend/cuda_backend.h"
#include "backend/op_buffers.h"
#include "emulator/options.h"
#include "emulator/runtime.h"
#include "golden/golden_run.h"
#include "model/op_uses.h"

namespace headrace::golden {
namespace {

const std::string kShipped = std::string(HEADRACE_SOURCE_DIR) + "/tests/data/goldens/";

std::unique_ptr<Backend> emulated_cuda() {
  emulator::options() = emulator::Options{};
  emulator::options().count = false;
  auto backend = cuda::make_cuda_backend(0);
  INFO(backend.status().to_string());
  REQUIRE(backend.ok());
  return backend.take();
}

// A model with all it runs on.
struct Loaded {
  Loaded(const std::string& name, bool float32, KvDType dtype) : backend(emulated_cuda()), kv_dtype(dtype) {
    ModelLoadOptions options;
    options.load_tokenizer = false;
    options.pack.decode_to_float = float32;
    auto loaded = Model::load(read_header(source_at(kShipped + name)), options, *backend);
    INFO(loaded.status().to_string());
    REQUIRE(loaded.ok());
    model = loaded.take();
    forward = std::make_unique<ForwardPass>(model->spec(), model->weights(), *backend);
  }

  std::shared_ptr<KvCache> cache() const {
    KvCacheConfig config;
    config.layers = kv_layouts(model->spec(), kv_dtype);
    config.num_blocks = 16;
    config.memory = backend->memory();
    auto made = KvCache::create(std::move(config));
    REQUIRE(made.ok());
    return made.take();
  }
  std::vector<float> logits(const std::vector<int32_t>& ids, int64_t chunk = 0) const {
    const auto kv = cache();
    return run_prompt(*forward, model->spec(), *kv, ids, chunk).logits;
  }

  std::unique_ptr<Backend> backend;
  KvDType kv_dtype;
  std::shared_ptr<const Model> model;
  std::unique_ptr<ForwardPass> forward;
};

std::vector<int32_t> first(std::vector<int32_t> ids, size_t count) {
  ids.resize(std::min(ids.size(), count));
  return ids;
}

}  // namespace

TEST_CASE("models in float32 give transformers' logits on emulated CUDA") {
  for (const std::string name : {"llama", "qwen3", "gemma3"}) {
    INFO(name);
    const Golden golden(kShipped + name);
    const Loaded loaded(name, true, KvDType::kF32);
    check_logits(golden, "p40", loaded.logits(golden.ids("p40.input_ids")), loaded.model->spec().vocab_size);
  }
}

TEST_CASE("a row of a model has the same bits whole, in chunks and among others on emulated CUDA") {
  for (const std::string name : {"llama", "gemma3"}) {
    for (const KvDType dtype : {KvDType::kF32, KvDType::kF16}) {
      INFO(name << " " << kv_dtype_name(dtype));
      const Loaded loaded(name, false, dtype);
      const std::vector<int32_t> ids = first(Golden(kShipped + name).ids("p40.input_ids"), 20);
      const std::vector<float> whole = loaded.logits(ids);
      CHECK(loaded.logits(ids, 7) == whole);
      CHECK(loaded.logits(ids, 1) == whole);

      // The last row beside another sequence's rows.
      const auto kv = loaded.cache();
      KvSequence one = kv->new_sequence(), other = kv->new_sequence();
      const auto length = static_cast<int64_t>(ids.size());
      const std::vector<int32_t> reversed(ids.rbegin(), ids.rend());
      REQUIRE(kv->reserve(one, length).ok());
      REQUIRE(kv->reserve(other, length).ok());
      const auto width = static_cast<size_t>(loaded.model->spec().vocab_size);
      std::vector<float> out(2 * width);
      Batch before, last;
      before.add_sequence(*kv, one, ids, length - 1, length - 2);
      REQUIRE(loaded.forward->run(before, *kv, out.data()).ok());
      REQUIRE(kv->commit(one, ids, length - 1).ok());
      last.add_sequence(*kv, other, reversed, length, length - 1);
      last.add_sequence(*kv, one, ids, length, length - 1);
      REQUIRE(loaded.forward->run(last, *kv, out.data()).ok());
      CHECK(std::vector<float>(out.begin() + static_cast<ptrdiff_t>(width), out.end()) ==
            std::vector<float>(whole.end() - static_cast<ptrdiff_t>(width), whole.end()));
    }
  }
}

TEST_CASE("what emulated CUDA lacks is refused by name when a model is loaded") {
  const auto backend = emulated_cuda();
  const auto refusal = [&](const auto& change) {
    ModelHeader header = read_header(source_at(kShipped + "llama"));
    change(header.spec);
    return Model::load(std::move(header), {}, *backend).status();
  };
  const Status biased = refusal([](ModelSpec& spec) {
    std::get<GqaAttention>(spec.layers[1].attention).position_buckets = PositionBuckets{32, 128, 0};
  });
  CHECK(biased.code() == StatusCode::kUnsupported);
  CHECK(biased.message() == "emulated-cuda has no paged_attention with position bias");
  const Status sparse = refusal([](ModelSpec& spec) { spec.layers[0].attention = SparseLatentAttention{}; });
  CHECK(sparse.message() == "emulated-cuda has no select_positions");
  const Status wide =
      refusal([](ModelSpec& spec) { std::get<GqaAttention>(spec.layers[0].attention).head_dim = 1024; });
  CHECK(wide.message() == "emulated-cuda has paged_attention with head_dim up to 512, multiples of 4, and not 1024");
  CHECK(refusal([](ModelSpec& spec) { spec.norm = NormKind::kLayer; }).message() == "emulated-cuda has no layer_norm");
}

TEST_CASE("a device without room or kernels is an error, and what comes after is not") {
  emulator::DeviceSettings& settings = emulator::device_settings();
  const auto backend = emulated_cuda();
  ModelLoadOptions options;
  options.load_tokenizer = false;
  for (int allocation = 1; allocation <= 3; ++allocation) {
    settings.failing_allocation = allocation;
    const auto loaded = Model::load(read_header(source_at(kShipped + "llama")), options, *backend);
    CHECK(loaded.status().code() == StatusCode::kOutOfMemory);
    CHECK(backend->finish().ok());
  }
  settings.failing_allocation = 0;
  const Loaded loaded("llama", true, KvDType::kF32);
  const auto kv = loaded.cache();
  const std::vector<int32_t> ids = {1, 2, 3, 4};
  KvSequence sequence = kv->new_sequence();
  REQUIRE(kv->reserve(sequence, 4).ok());
  Batch batch;
  batch.add_sequence(*kv, sequence, ids, 4, 3);
  std::vector<float> logits(static_cast<size_t>(loaded.model->spec().vocab_size));
  // The first allocation of a step fails, then the second of the next, until a step needs none that fails.
  int failures = 0;
  Status status;
  do {
    settings.failing_allocation = failures + 1;
    status = loaded.forward->run(batch, *kv, logits.data());
    CHECK((status.ok() || status.code() == StatusCode::kOutOfMemory));
  } while (settings.failing_allocation == 0 && ++failures < 100);
  settings.failing_allocation = 0;
  INFO(status.to_string());
  CHECK(status.ok());
  CHECK(failures >= 5);
  CHECK(failures < 100);
  const std::vector<float> all = loaded.logits(ids);
  CHECK(logits == std::vector<float>(all.end() - static_cast<ptrdiff_t>(logits.size()), all.end()));

  const int major = settings.compute_major;
  settings.compute_major = 7;
  const Status old = cuda::make_cuda_backend(0).status();
  CHECK(old.code() == StatusCode::kUnsupported);
  CHECK(old.message().find("has compute capability 7.") != std::string::npos);
  settings.compute_major = major;
  CHECK(cuda::make_cuda_backend(1).status().message() == "there are 1 CUDA devices, and no 1");
}

TEST_CASE("a step without room changes nothing for those after it, and none asks for room it has, on emulated CUDA") {
  emulator::DeviceSettings& settings = emulator::device_settings();
  const Loaded loaded("llama", true, KvDType::kF32);
  const auto kv = loaded.cache();
  const std::vector<int32_t> ids = {1, 2, 3, 4, 5, 6, 7, 8};
  std::vector<float> logits;
  bool allocated = false;
  const auto step = [&](int64_t rows, bool room) {
    KvSequence sequence = kv->new_sequence();
    REQUIRE(kv->reserve(sequence, rows).ok());
    Batch batch;
    batch.add_sequence(*kv, sequence, ids, rows, 0);
    logits.assign(static_cast<size_t>(rows * loaded.model->spec().vocab_size), 0.0f);
    settings.failing_allocation = room ? 0 : 1;
    const Status status = loaded.forward->run(batch, *kv, logits.data());
    allocated = !room && settings.failing_allocation == 0;
    settings.failing_allocation = 0;
    return status;
  };
  REQUIRE(step(4, true).ok());
  const std::vector<float> before = logits;
  // What an op could not do before the step is told with the step, though another failure ends it.
  loaded.backend->layer_norm({});
  CHECK(step(8, false).code() == StatusCode::kOutOfMemory);
  const Status after = step(4, true);
  INFO(after.to_string());
  CHECK(after.ok());
  CHECK(logits == before);

  REQUIRE(step(8, true).ok());
  REQUIRE(step(1, true).ok());
  CHECK(step(8, false).ok());
  CHECK(!allocated);
}

TEST_CASE("an op has its constants to its end, however many were kept before, on emulated CUDA") {
  auto device = cuda::DeviceStream::open(0);
  REQUIRE(device.ok());
  const std::shared_ptr<cuda::DeviceStream> stream = device.take();
  cuda::OpBuffers buffers(stream);
  const std::vector<float> values(20'000, 1.0f);
  buffers.begin();
  const float* const first = buffers.constant(values.data(), 1);
  bool all = true;
  for (const float& value : values) all = all && buffers.constant(&value, 1) != nullptr;
  CHECK(all);
  CHECK(stream->owns(first));
  buffers.end();
  buffers.begin();
  CHECK(!stream->owns(first));
  buffers.end();
  CHECK(stream->take_failure().ok());
}

TEST_CASE("what emulated CUDA cannot do with an op or a weight is a failure") {
  const auto backend = emulated_cuda();
  float key = 0.0f;
  RopeStoreParams params;
  params.num_tokens = 1;
  params.k = &key;
  backend->rope_and_store_kv(params);
  CHECK(backend->finish().message() == "emulated-cuda has no such rope_and_store_kv");
  WeightSource source;
  source.name = "weight";
  source.rows = 1;
  source.cols = 8;
  source.column_order = std::make_shared<const std::vector<int32_t>>(8);
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    source.dtype = dtype;
    CHECK(backend->pack(source, {}).status().code() == StatusCode::kInternal);
  }
}

TEST_CASE("cached values on emulated CUDA are copied, saved and read back") {
  const Loaded loaded("llama", false, KvDType::kF16);
  const std::vector<int32_t> ids = first(Golden(kShipped + "llama").ids("p40.input_ids"), 24);
  const std::vector<float> whole = loaded.logits(ids);
  const auto width = static_cast<ptrdiff_t>(loaded.model->spec().vocab_size);
  const auto kv = loaded.cache();
  KvSequence sequence = kv->new_sequence();
  std::vector<float> logits(static_cast<size_t>(width));
  const auto run = [&](KvCache& cache, KvSequence& of, int64_t end) {
    REQUIRE(cache.reserve(of, end).ok());
    Batch batch;
    batch.add_sequence(cache, of, ids, end, end - 1);
    REQUIRE(loaded.forward->run(batch, cache, logits.data()).ok());
    REQUIRE(cache.commit(of, ids, end).ok());
  };
  run(*kv, sequence, 20);
  KvSequence fork = kv->fork(sequence);
  run(*kv, fork, 24);  // into a copy of the shared last block
  CHECK(logits == std::vector<float>(whole.end() - width, whole.end()));
  run(*kv, sequence, 21);
  CHECK(logits == std::vector<float>(whole.begin() + 20 * width, whole.begin() + 21 * width));

  std::vector<std::byte> file;
  REQUIRE(kv->save(sequence, ids, [&](std::span<const std::byte> bytes) {
              file.insert(file.end(), bytes.begin(), bytes.end());
              return Status();
            }).ok());
  const auto other = loaded.cache();
  const auto source = open_memory(file, "saved", {});
  auto restored = other->restore(*source);
  INFO(restored.status().to_string());
  REQUIRE(restored.ok());
  run(*other, restored->sequence, 24);
  CHECK(logits == std::vector<float>(whole.end() - width, whole.end()));
}

}  // namespace headrace::golden
