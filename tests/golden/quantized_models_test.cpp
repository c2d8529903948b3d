// Quantized checkpoints as published against transformers' float32 logits of the weights that the formats' own packages
// decode: equal up to float32's noise where weights are decoded, close on the packed kernels, and bit-equal however a
// sequence is cut.
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "golden/golden_checks.h"
#include "model/model_header.h"

using namespace headrace;
using namespace headrace::golden;

namespace {

const std::string kFolder = std::string(HEADRACE_SOURCE_DIR) + "/tests/data/quantized/";
const std::vector<std::string> kCheckpoints = {
    "gptq",
    "gptq_act_order",
    "gptq_v2",
    "gptq_int8",
    "awq",

    "ct_int4_group",
    "ct_int4_channel_asym",
    "ct_int8_group_asym",
    "ct_w8a8",
    "ct_fp8_channel",
    "ct_fp8_tensor",
    "ct_fp8_block",
    "ct_nvfp4",
    "fp8_block",
    "modelopt_nvfp4",
    "mxfp4",
    "bnb_nf4",
    "bnb_int8",
};
const std::string kCase = "p24";

std::shared_ptr<const Model> load(const std::string& name, Backend& backend, const PackOptions& pack) {
  ModelLoadOptions options;
  options.load_tokenizer = false;
  options.pack = pack;
  auto model = Model::load(read_header(source_at(kFolder + name)), options, backend);
  INFO(model.status().to_string());
  REQUIRE(model.ok());
  return model.take();
}

std::vector<float> logits_of(const Model& model, Backend& backend, const std::vector<int32_t>& ids) {
  ForwardPass forward(model.spec(), model.weights(), backend);
  auto cache = make_cache(model.spec(), KvDType::kF32);
  return run_prompt(forward, model.spec(), *cache, ids).logits;
}

// Mean over the rows of sum p (log p - log q).
double mean_kl(const std::vector<float>& reference, const std::vector<float>& logits, size_t vocab) {
  double sum = 0;
  for (size_t row = 0; row < logits.size(); row += vocab) {
    const auto log_sum = [&](const std::vector<float>& of) {
      double total = 0;
      for (size_t i = 0; i < vocab; ++i) total += std::exp(static_cast<double>(of[row + i]));
      return std::log(total);
    };
    const double p_sum = log_sum(reference), q_sum = log_sum(logits);
    for (size_t i = 0; i < vocab; ++i) {
      const double p = static_cast<double>(reference[row + i]) - p_sum;
      sum += std::exp(p) * (p - (static_cast<double>(logits[row + i]) - q_sum));
    }
  }
  return sum / static_cast<double>(reference.size() / vocab);
}

}  // namespace

TEST_CASE("decoded weights give transformers' logits") {
  for (const std::string& name : kCheckpoints) {
    INFO(name);
    const Golden golden(kFolder + name);
    for (const auto& backend : all_backends()) {
      const auto model = load(name, *backend, {.activations = ActivationType::kInt8, .decode_to_float = true});
      check_case(*model, *backend, golden, kCase);
    }
  }
}

// An activation's code is off by up to half a step of amax / 127 in 32 values, with int16 by half a step of the 127th part
// of that; mean KL falls with the square of the error. The bounds are five times what is the rule for int8 in models of this
// width (up to 2e-4), and ten times what int16 leaves (up to 1e-8).
TEST_CASE("packed kernels are as close as their activations") {
  for (const std::string& name : kCheckpoints) {
    const Golden golden(kFolder + name);
    const std::vector<int32_t> ids = golden.ids(kCase + ".input_ids");
    const std::vector<float> expected = golden.floats(kCase + ".logits").values;
    for (const auto& backend : all_backends()) {
      if (backend->name() == "reference") continue;
      for (const auto& [type, most] :
           {std::pair(ActivationType::kInt8, 1e-3), std::pair(ActivationType::kInt16, 1e-7)}) {
        const auto model = load(name, *backend, {.activations = type});
        const double kl =
            mean_kl(expected, logits_of(*model, *backend, ids), static_cast<size_t>(model->spec().vocab_size));
        INFO(name << " " << backend->name() << " activations " << static_cast<int>(type) << ": mean KL " << kl);
        CHECK(kl <= most);
      }
    }
  }
}

TEST_CASE("quantized checkpoints do not depend on the cut") {
  for (const std::string& name : kCheckpoints) {
    INFO(name);
    check_cuts(kFolder + name, Golden(kFolder + name).ids(kCase + ".input_ids"));
  }
}

// As many bytes as the codes, scales and zero points of the file but for scales widened to float32: not floats.
TEST_CASE("quantized weights stay packed") {
  for (const std::string& name : kCheckpoints) {
    INFO(name);
    const ModelHeader header = read_header(source_at(kFolder + name));
    for (const WeightEntry& weight : header.weights) {
      if (weight.name.find("proj.weight") == std::string::npos) continue;
      if (name == "mxfp4" && weight.name.find("experts") == std::string::npos) continue;  // gpt-oss quantizes no others
      INFO(weight.name);
      CHECK(is_block_format(header.file->find(weight.file_name)->dtype));
    }
  }
}

TEST_CASE("FP8 and NF4 give the bits of decoded weights") {
  for (const std::string name : {"ct_fp8_channel", "ct_fp8_tensor", "ct_fp8_block", "fp8_block", "bnb_nf4"}) {
    const std::vector<int32_t> ids = Golden(kFolder + name).ids(kCase + ".input_ids");
    for (const auto& backend : all_backends()) {
      INFO(name << " " << backend->name());
      const auto packed = load(name, *backend, {});
      const auto decoded = load(name, *backend, {.activations = ActivationType::kInt8, .decode_to_float = true});
      CHECK(logits_of(*packed, *backend, ids) == logits_of(*decoded, *backend, ids));
    }
  }
}

// The feed-forward of another quantized checkpoint, and back: the base and the donor keep their own formats.
TEST_CASE("quantized checkpoints can be grafted") {
  const std::filesystem::path folder = std::filesystem::temp_directory_path() / fmt::format("graft-{}", ::getpid());
  std::filesystem::create_directory(folder);
  const auto write = [&](const std::string& base, const std::string& donor, const std::string& part) {
    const nlohmann::json graft = {{"format", "headrace graft 1"},
                                  {"base", kFolder + base},
                                  {"replace", {{{"layers", {0}}, {"part", part}, {"from", kFolder + donor}}}}};
    const std::string path = (folder / (base + "-" + part + ".json")).string();
    std::ofstream(path) << graft.dump();
    return path;
  };
  const std::vector<int32_t> ids = Golden(kFolder + "gptq").ids(kCase + ".input_ids");
  for (const auto& backend : all_backends()) {
    INFO(backend->name());
    const auto logits_at = [&](const std::string& path) {
      const auto model = load_model(read_header(source_at(path)), *backend);
      return logits_of(*model, *backend, ids);
    };
    const std::vector<float> own = logits_at(kFolder + "gptq");
    CHECK(logits_at(write("gptq", "gptq", "layer")) == own);
    CHECK(logits_at(write("gptq", "ct_int4_group", "feed_forward")) != own);
  }
  std::filesystem::remove_all(folder);
}
