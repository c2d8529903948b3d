// A model's self-check: no tiny model of any family, weight type or type of cached values fails it on any instruction set of
// this machine, and a kernel that is made wrong is found and named.
#include <filesystem>
#include <functional>

#include "golden/golden_run.h"
#include "model/model_header.h"
#include "model/self_check.h"
#include "ops/forwarding_backend.h"
#include "quantized_model.h"
#include "unit/gguf_writer.h"

using namespace headrace;
using namespace headrace::golden;
namespace fs = std::filesystem;

namespace {

const std::string kShipped = std::string(HEADRACE_SOURCE_DIR) + "/tests/data/";
const std::string kModels = std::string(HEADRACE_TEST_DATA) + "/goldens/models/";

void check_passes(const ModelSource& source, const std::string& name) {
  for (const auto& backend : all_backends()) {
    for (const ActivationType activations : {ActivationType::kInt8, ActivationType::kInt16}) {
      ModelLoadOptions options;
      options.load_tokenizer = false;
      options.pack.activations = activations;
      const auto model = Model::load(source, options, *backend);
      INFO(name << ": " << model.status().to_string());
      REQUIRE(model.ok());
      for (const KvDType dtype : {KvDType::kF32, KvDType::kF16, KvDType::kBF16, KvDType::kQ8}) {
        const auto checked = self_check(**model, options.pack, dtype, *backend);
        INFO(name << " on " << backend->name() << ", " << kv_dtype_name(dtype) << ": " << checked.status().to_string());
        REQUIRE(checked.ok());
        CHECK(*checked > 5);
      }
      if (activations == ActivationType::kInt8 && backend->name() == "reference") break;
    }
  }
}

// Makes one value of what an op wrote another.
class SpoilingBackend : public test::ForwardingBackend {
 public:
  // in_features: of the only products that are spoiled; 0: all.
  SpoilingBackend(Backend& backend, std::string op, int64_t in_features = 0)
      : ForwardingBackend(backend), op_(std::move(op)), in_features_(in_features) {}

  void embed(const EmbedParams& p) override {
    ForwardingBackend::embed(p);
    spoil("embed", p.out + 3);
  }
  void rms_norm(const RmsNormParams& p) override {
    ForwardingBackend::rms_norm(p);
    spoil("rms_norm", p.out + p.size - 1);
  }
  void linear(const LinearParams& p) override {
    ForwardingBackend::linear(p);
    const LinearOutput& last = p.outputs.back();
    if (in_features_ != 0 && in_features_ != p.in_features) return;
    spoil("linear", last.y + (p.num_tokens - 1) * last.y_stride + last.weight->rows() - 1);
  }
  void gated_linear(const GatedLinearParams& p) override {
    ForwardingBackend::gated_linear(p);
    spoil("gated_linear", p.out);
  }
  void rope_and_store_kv(const RopeStoreParams& p) override {
    ForwardingBackend::rope_and_store_kv(p);
    spoil("rope_and_store_kv", p.q + 1);
    if (op_ == "stored") {  // the code of a value of the first row
      p.cache[static_cast<size_t>(p.slots[0] / p.layout.block_size) * p.layout.block_bytes() + p.layout.half_bytes() +
              static_cast<size_t>(p.slots[0] % p.layout.block_size * p.layout.head_dim) * p.layout.element_bytes() +
              p.layout.element_bytes() - 1] ^= std::byte{0x42};
    }
  }
  void paged_attention(const PagedAttentionParams& p) override {
    ForwardingBackend::paged_attention(p);
    spoil("paged_attention", p.out + 7);
  }
  void logit_stats(const LogitStatsParams& p) override {
    ForwardingBackend::logit_stats(p);
    spoil("logit_stats", &p.out[0].log_sum);
  }
  Result<std::unique_ptr<PackedWeight>> pack(const WeightSource& source, const PackOptions& options) override {
    if (op_ != "pack") return ForwardingBackend::pack(source, options);
    WeightSource wrong = source;
    wrong.read = [read = source.read](uint64_t offset, std::span<std::byte> destination) {
      const Status status = read(offset, destination);
      destination.back() ^= std::byte{1};
      return status;
    };
    return ForwardingBackend::pack(wrong, options);
  }

 private:
  // By two hundredths of its size: what a lane too few or a scale of the wrong block does is more.
  void spoil(const char* op, float* value) {
    if (op_ == op) *value = *value * 1.02f + 0.02f;
  }
  const std::string op_;
  const int64_t in_features_;
};

}  // namespace

TEST_CASE("shipped models and weight types pass their self-check") {
  for (const fs::path& folder : {fs::path(kShipped) / "goldens", fs::path(kShipped) / "quantized"}) {
    for (const auto& entry : fs::directory_iterator(folder)) {
      if (!fs::exists(entry.path() / "config.json")) continue;
      DYNAMIC_SECTION(entry.path().filename().string()) {
        check_passes(source_at(entry.path().string()), entry.path().string());
      }
    }
  }
}

TEST_CASE("every family passes its self-check") {
  if (!fs::exists(kModels)) {
    std::puts("SKIPPED: HEADRACE_TEST_DATA with the golden models is not there");
    return;
  }
  for (const auto& entry : fs::directory_iterator(kModels)) {
    const auto header = ModelHeader::read(source_at(entry.path().string()));
    if (!header.ok()) continue;  // families that are not read are other tests' to name
    DYNAMIC_SECTION(entry.path().filename().string()) {
      check_passes(source_at(entry.path().string()), entry.path().filename().string());
    }
  }
}

TEST_CASE("the encoder for images is checked too") {
  if (!fs::exists(kModels)) {
    std::puts("SKIPPED: HEADRACE_TEST_DATA with the golden models is not there");
    return;
  }
  for (const char* name : {"gemma3_vlm", "llava_clip", "qwen2_5_vl", "qwen3_vl"}) {
    INFO(name);
    const auto backend = make_reference_backend();
    const auto model = Model::load(source_at(kModels + name), {}, *backend);
    REQUIRE(model.ok());
    // The products of patches, which the decoder has none of.
    const int64_t patch = (*model)->vision()->patch_floats();
    REQUIRE(patch != (*model)->spec().hidden_size);
    SpoilingBackend spoiling(*backend, "linear", patch);
    const auto checked = self_check(**model, {}, KvDType::kF16, spoiling);
    REQUIRE_FALSE(checked.ok());
    CHECK(checked.status().place() == "linear");
  }
}

TEST_CASE("a kernel that computes wrongly is named with its op, types and instruction set") {
  const auto check = [](const ModelSource& source, const std::string& op, const std::string& place,
                        const std::string& type) {
    for (const auto& backend : all_backends()) {
      ModelLoadOptions options;
      options.load_tokenizer = false;
      const auto model = Model::load(source, options, *backend);
      REQUIRE(model.ok());
      SpoilingBackend spoiling(*backend, op);
      const auto checked = self_check(**model, options.pack, KvDType::kF16, spoiling);
      INFO(op << ": " << checked.status().to_string());
      REQUIRE_FALSE(checked.ok());
      CHECK(checked.status().code() == StatusCode::kInternal);
      CHECK(checked.status().place() == place);
      CHECK(checked.status().message().find(std::string(backend->name())) == 0);
      CHECK(checked.status().message().find(type) != std::string::npos);
    }
  };
  SECTION("float weights") {
    const ModelSource source = source_at(kShipped + "goldens/llama");
    for (const char* op : {"embed", "linear", "gated_linear", "pack"}) check(source, op, op, "F32");
    for (const char* op : {"rope_and_store_kv", "paged_attention"}) check(source, op, op, "f16");
    check(source, "stored", "rope_and_store_kv", "f16");
    for (const char* op : {"rms_norm", "logit_stats"}) check(source, op, op, "row");
  }
  SECTION("quantized weights") {
    ModelSource source;
    source.sources.push_back(source_of(headrace_test::QuantizedModel::bytes(), "quantized"));
    for (const char* op : {"linear", "gated_linear", "pack"}) check(source, op, op, "Q8_0");
  }
}
