// Quantized checkpoints: what does not fit is refused by its key or tensor, and reads may begin anywhere.
#include <cstring>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "base/byte_source.h"
#include "formats/safetensors.h"
#include "model/quantization/checkpoint.h"
#include "tensor/dequantize.h"

using namespace headrace;
using nlohmann::json;

namespace {

struct Part {
  std::string dtype;
  std::vector<uint64_t> shape;
  std::string bytes;
};
using Parts = std::map<std::string, Part>;

template <class T>
Part part(std::string dtype, std::vector<uint64_t> shape, T value) {
  uint64_t count = 1;
  for (const uint64_t size : shape) count *= size;
  std::string bytes;
  for (uint64_t i = 0; i < count; ++i) bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
  return {std::move(dtype), std::move(shape), std::move(bytes)};
}

// The file's bytes, kept by the caller.
std::string file_of(const Parts& parts) {
  json header = json::object();
  std::string body;
  for (const auto& [name, each] : parts) {
    header[name] = {
        {"dtype", each.dtype}, {"shape", each.shape}, {"data_offsets", {body.size(), body.size() + each.bytes.size()}}};
    body += each.bytes;
  }
  const std::string text = header.dump();
  const uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + text + body;
}

Result<std::shared_ptr<TensorFile>> open(const std::string& bytes, const json& quantization) {
  auto file = SafetensorsFile::open({open_memory(std::as_bytes(std::span(bytes)), "model.safetensors", [] {})});
  INFO(file.status().to_string());
  REQUIRE(file.ok());
  return open_quantized(file.take(), {{"quantization_config", quantization}});
}

// Opens and reads the weight; the failure of either.
Status outcome(const Parts& parts, const json& quantization) {
  const std::string bytes = file_of(parts);
  auto opened = open(bytes, quantization);
  if (!opened.ok()) return opened.status();
  for (const TensorEntry& entry : (*opened)->tensors()) {
    std::vector<std::byte> all(entry.bytes);
    if (Status status = (*opened)->read(entry, 0, all); !status.ok()) return status;
  }
  return {};
}

void check_refused(const Parts& parts, const json& quantization, StatusCode code, const std::string& place) {
  const Status status = outcome(parts, quantization);
  INFO("expected " << place << ", got " << status.to_string());
  CHECK(status.code() == code);
  CHECK(status.place().find(place) != std::string::npos);
}

// 64 inputs in two groups, 32 outputs, 4 bits.
Parts gptq_parts() {
  return {{"m.qweight", part<uint32_t>("I32", {8, 32}, 0x76543210)},
          {"m.qzeros", part<uint32_t>("I32", {2, 4}, 0x77777777)},
          {"m.scales", part<uint16_t>("F16", {2, 32}, 0x3c00)},
          {"m.g_idx", part<int32_t>("I32", {64}, 0)}};
}
json gptq_config() {
  return {{"quant_method", "gptq"}, {"bits", 4},         {"group_size", 32},
          {"sym", false},           {"desc_act", false}, {"checkpoint_format", "gptq"}};
}
Parts fp8_parts() {
  return {{"m.weight", part<uint8_t>("F8_E4M3", {40, 64}, 0x38)},
          {"m.weight_scale_inv", part<float>("F32", {2, 2}, 0.5f)}};
}
json fp8_config() { return {{"quant_method", "fp8"}, {"weight_block_size", {32, 32}}}; }
Parts packed_parts() {
  const int64_t shape[] = {32, 64};
  Part sizes = part<int64_t>("I64", {2}, 0);
  std::memcpy(sizes.bytes.data(), shape, sizeof shape);
  return {{"m.weight_packed", part<uint32_t>("I32", {32, 8}, 0x98765432)},
          {"m.weight_scale", part<uint16_t>("BF16", {32, 2}, 0x3f80)},
          {"m.weight_zero_point", part<uint32_t>("I32", {4, 2}, 0x88888888)},
          {"m.weight_shape", sizes}};
}
json packed_config() {
  const json weights = {
      {"num_bits", 4}, {"type", "int"}, {"symmetric", false}, {"strategy", "group"}, {"group_size", 32}};
  return {{"quant_method", "compressed-tensors"},
          {"format", "pack-quantized"},
          {"config_groups", {{"group_0", {{"targets", {"Linear"}}, {"weights", weights}}}}}};
}
Parts nvfp4_parts() {
  return {{"m.weight", part<uint8_t>("U8", {16, 32}, 0x21)},
          {"m.weight_scale", part<uint8_t>("F8_E4M3", {16, 4}, 0x38)},
          {"m.weight_scale_2", part<float>("F32", {}, 0.25f)}};
}
json nvfp4_config() { return {{"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}}; }

template <class Change>
Parts with(Parts parts, Change change) {
  change(parts);
  return parts;
}
json with(json config, const std::string& key, json value) {
  config[key] = std::move(value);
  return config;
}

constexpr StatusCode kMalformed = StatusCode::kMalformed, kUnsupported = StatusCode::kUnsupported,
                     kNotFound = StatusCode::kNotFound;

}  // namespace

TEST_CASE("sound parts are read") {
  CHECK(outcome(gptq_parts(), gptq_config()).ok());
  CHECK(outcome(fp8_parts(), fp8_config()).ok());
  CHECK(outcome(packed_parts(), packed_config()).ok());
  CHECK(outcome(nvfp4_parts(), nvfp4_config()).ok());
}

TEST_CASE("a config without quantization leaves the file as it is") {
  const std::string bytes = file_of(gptq_parts());
  auto file = SafetensorsFile::open({open_memory(std::as_bytes(std::span(bytes)), "model.safetensors", [] {})});
  REQUIRE(file.ok());
  const std::shared_ptr<TensorFile> before = *file;
  for (const json& config : {json::object(), json{{"quantization_config", nullptr}}}) {
    const auto after = open_quantized(before, config);
    REQUIRE(after.ok());
    CHECK(*after == before);
  }
}

TEST_CASE("keys that change the weights' meaning are refused by name") {
  const auto gptq = [](const std::string& key, const json& value, StatusCode code) {
    check_refused(gptq_parts(), with(gptq_config(), key, value), code, "/quantization_config/" + key);
  };
  gptq("quant_method", "aqlm", kUnsupported);
  gptq("checkpoint_format", "marlin", kUnsupported);
  gptq("is_marlin_format", true, kUnsupported);
  gptq("pack_dtype", "int8", kUnsupported);
  gptq("rotation", "hadamard", kUnsupported);
  gptq("sym", "yes", kMalformed);
  gptq("group_size", 0, kMalformed);
  check_refused(fp8_parts(), with(fp8_config(), "fmt", "e5m2"), kUnsupported, "/quantization_config/fmt");
  check_refused(fp8_parts(), with(fp8_config(), "weight_block_size", json::array({32})), kMalformed,
                "/quantization_config/weight_block_size");
  check_refused(packed_parts(), with(packed_config(), "format", "marlin-24"), kUnsupported,
                "/quantization_config/format");
  check_refused(packed_parts(), with(packed_config(), "transform_config", {{"config_groups", json::object()}}),
                kUnsupported, "/quantization_config/transform_config");
  check_refused(packed_parts(), with(packed_config(), "sparsity_config", {{"format", "sparse-24-bitmask"}}),
                kUnsupported, "/quantization_config/sparsity_config/format");
  check_refused(nvfp4_parts(), with(nvfp4_config(), "quant_algo", "W4A8_AWQ"), kUnsupported,
                "/quantization_config/quant_algo");
  check_refused(gptq_parts(), "gptq", kMalformed, "/quantization_config");
}

TEST_CASE("parts that do not go together are refused by name") {
  const auto gptq = [](auto change, StatusCode code, const std::string& place, json config = gptq_config()) {
    check_refused(with(gptq_parts(), change), config, code, place);
  };
  gptq([](Parts& p) { p.erase("m.qzeros"); }, kNotFound, "m.qzeros");
  gptq([](Parts& p) { p.erase("m.g_idx"); }, kNotFound, "m.g_idx", with(gptq_config(), "desc_act", true));
  gptq([](Parts& p) { p["m.scales"] = part<uint16_t>("F16", {2, 16}, 0x3c00); }, kMalformed, "m.qweight");
  gptq([](Parts& p) { p["m.qzeros"] = part<uint32_t>("I32", {2, 3}, 0); }, kUnsupported, "m.qweight");  // 3 bits
  gptq([](Parts& p) { p["m.qzeros"] = part<uint32_t>("I32", {3, 4}, 0); }, kMalformed, "m.qzeros");
  gptq([](Parts& p) { p["m.g_idx"] = part<int32_t>("I32", {64}, 2); }, kMalformed, "m.g_idx");
  gptq([](Parts& p) { p["m.g_idx"] = part<int32_t>("I32", {64}, -1); }, kMalformed, "m.g_idx");
  gptq([](Parts& p) { p["m.g_idx"] = part<int32_t>("I32", {32}, 0); }, kMalformed, "m.g_idx");
  gptq([](Parts& p) { p["m.scales"] = part<uint16_t>("F16", {2, 32}, 0x7c00); }, kMalformed, "m.scales");
  gptq([](Parts& p) { p["m.qweight"] = part<int64_t>("I64", {8, 32}, 0); }, kMalformed, "m.qweight");
  gptq([](Parts& p) { p["m.g_idx"].bytes[4 * 33] = 1; }, kUnsupported, "m.qweight");  // a group of one column
  gptq([](Parts& p) { p.erase("m.g_idx"); }, kMalformed, "m.scales", with(gptq_config(), "group_size", 64));
  // No symmetric zero point.
  gptq(
      [](Parts& p) {
        p["m.qzeros"] = part<uint32_t>("I32", {2, 4}, 0x77767777);
      },
      kMalformed, "m.qzeros", with(gptq_config(), "sym", true));
  gptq([](Parts&) {}, kMalformed, "m.weight", with(gptq_config(), "modules_to_not_convert", json::array({"m"})));
  gptq([](Parts& p) { p["m.weight"] = part<float>("F32", {32, 64}, 1); }, kMalformed, "m.weight");

  const auto fp8 = [](auto change, StatusCode code, const std::string& place) {
    check_refused(with(fp8_parts(), change), fp8_config(), code, place);
  };
  fp8([](Parts& p) { p.erase("m.weight_scale_inv"); }, kNotFound, "m.weight_scale_inv");
  fp8([](Parts& p) { p["m.weight_scale_inv"] = part<float>("F32", {2, 3}, 1); }, kMalformed, "m.weight_scale_inv");
  fp8([](Parts& p) { p["m.weight"].bytes[700] = '\x7f'; }, kMalformed, "m.weight");
  fp8(
      [](Parts& p) {
        p["m.weight_scale_inv"] = part<float>("F32", {2, 2}, std::numeric_limits<float>::infinity());
      },
      kMalformed, "m.weight_scale_inv");
  fp8([](Parts& p) { p["m.weight"] = part<uint8_t>("F8_E4M3", {40, 48}, 0x38); }, kUnsupported, "m.weight");

  const auto packed = [](auto change, StatusCode code, const std::string& place) {
    check_refused(with(packed_parts(), change), packed_config(), code, place);
  };
  packed([](Parts& p) { p.erase("m.weight_zero_point"); }, kNotFound, "m.weight_zero_point");
  packed([](Parts& p) { p.erase("m.weight_shape"); }, kNotFound, "m.weight_shape");
  packed([](Parts& p) { p["m.weight_shape"] = part<int64_t>("I64", {2}, -3); }, kMalformed, "m.weight_shape");
  packed([](Parts& p) { p["m.weight_packed"] = part<uint32_t>("I32", {32, 4}, 0); }, kUnsupported, "m.weight_packed");
  packed([](Parts& p) { p["m.weight_packed"] = part<uint32_t>("I32", {31, 8}, 0); }, kMalformed, "m.weight_packed");
  packed([](Parts& p) { p["m.weight_scale"] = part<uint16_t>("BF16", {32, 3}, 0); }, kMalformed, "m.weight_scale");
  packed([](Parts& p) { p["m.weight_scale"] = part<uint16_t>("BF16", {32, 4}, 0); }, kUnsupported, "m.weight_packed");
  packed(
      [](Parts& p) {
        p["m.weight_zero_point"] = part<uint32_t>("I32", {5, 2}, 0);
      },
      kMalformed, "m.weight_zero_point");
  packed(
      [](Parts& p) {
        p["m.weight_zero_point"] = part<int8_t>("I8", {32, 2}, -9);
      },
      kMalformed, "m.weight_zero_point");
  packed(
      [](Parts& p) {
        p["m.weight_g_idx"] = part<int32_t>("I32", {64}, 0);
        p["m.weight_scale"] = part<uint16_t>("BF16", {32, 65}, 0x3f80);
        p["m.weight_zero_point"] = part<uint32_t>("I32", {4, 65}, 0x88888888);
      },
      kMalformed, "m.weight_scale");

  const auto nvfp4 = [](auto change, StatusCode code, const std::string& place) {
    check_refused(with(nvfp4_parts(), change), nvfp4_config(), code, place);
  };
  nvfp4([](Parts& p) { p.erase("m.weight_scale_2"); }, kNotFound, "m.weight_scale_2");
  nvfp4([](Parts& p) { p["m.weight_scale_2"] = part<float>("F32", {}, -1.0f); }, kMalformed, "m.weight_scale_2");
  nvfp4([](Parts& p) { p["m.weight_scale_2"] = part<float>("F32", {}, 3e38f); }, kMalformed, "m.weight_scale_2");
  nvfp4([](Parts& p) { p["m.weight_scale"].bytes[3] = '\x80'; }, kMalformed, "m.weight_scale");
  nvfp4([](Parts& p) { p["m.weight"] = part<uint8_t>("U8", {16, 16}, 0); }, kUnsupported, "m.weight");
}

TEST_CASE("bytes are the same wherever a read begins") {
  const std::string bytes = file_of(gptq_parts());
  auto opened = open(bytes, gptq_config());
  REQUIRE(opened.ok());
  const TensorEntry* entry = (*opened)->find("m.weight");
  REQUIRE(entry != nullptr);
  CHECK(entry->shape == std::vector<uint64_t>{32, 64});
  CHECK((*opened)->tensors().size() == 1);
  std::vector<std::byte> all(entry->bytes), some(50);
  REQUIRE((*opened)->read(*entry, 0, all).ok());
  for (uint64_t at = 0; at + some.size() <= all.size(); at += 7) {
    REQUIRE((*opened)->read(*entry, at, some).ok());
    REQUIRE(std::memcmp(some.data(), all.data() + at, some.size()) == 0);
  }
  CHECK((*opened)->read(*entry, all.size() - 10, some).code() == StatusCode::kInvalidArgument);
  // Every word has the codes 0 to 7, stored zero points are 7: 8.
  std::vector<float> row(64);
  REQUIRE(dequantize_row(entry->dtype, all.data(), row.data(), 64).ok());
  for (size_t k = 0; k < row.size(); ++k) CHECK(row[k] == static_cast<float>(k % 8) - 8.0f);
}
