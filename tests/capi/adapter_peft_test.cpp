// Low-rank adapters against the logits that peft gives with them (tests/golden/make_adapters.py).
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include <headrace/headrace.hpp>

#include "formats/safetensors.h"

namespace {

const std::string kData = HEADRACE_SOURCE_DIR "/tests/data/";

template <typename T>
std::vector<T> values_of(const headrace::TensorFile& golden, const std::string& name) {
  const headrace::TensorEntry* entry = golden.find(name);
  REQUIRE(entry != nullptr);
  std::vector<T> out(entry->bytes / sizeof(T));
  REQUIRE(golden.read(*entry, 0, std::as_writable_bytes(std::span(out))).ok());
  return out;
}

std::vector<float> logits_of(const headrace::Model& model, const std::vector<int32_t>& tokens,
                             const headrace::Adapter* adapter) {
  headrace::Session session(model, headrace::Options().set("kv.dtype", "f32"));
  session.set_adapter(adapter);
  std::vector<float> logits(tokens.size() * static_cast<size_t>(model.info().vocab_size));
  session.evaluate(tokens.data(), tokens.size(), logits.data(), logits.size());
  return logits;
}

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  double worst = 0;
  for (size_t i = 0; i < a.size(); ++i)
    worst = std::max(worst, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  return worst;
}

}  // namespace

TEST_CASE("logits with an adapter are peft's") {
  const std::pair<const char*, std::string> kCases[] = {
      {"llama", "goldens/llama"},        // every module, ranks and scales of some
      {"qwen3", "goldens/qwen3"},        // some modules
      {"mixtral", "adapters/mixtral"}};  // experts
  for (const auto& [name, base] : kCases) {
    INFO(name);
    const std::string folder = kData + "adapters/" + name;
    const auto golden = headrace::SafetensorsFile::open_path(folder + "/golden.safetensors");
    REQUIRE(golden.ok());
    const auto tokens = values_of<int32_t>(**golden, "input_ids");
    const auto model = headrace::Model::load(kData + base, headrace::Options().set("engine.threads", "1"));
    const auto adapter = headrace::Adapter::load(model, folder);
    // The noise of float32 that conformance allows.
    CHECK(largest_difference(logits_of(model, tokens, nullptr), values_of<float>(**golden, "logits")) <= 1e-4);
    CHECK(largest_difference(logits_of(model, tokens, &adapter), values_of<float>(**golden, "adapted")) <= 1e-4);
  }
}
