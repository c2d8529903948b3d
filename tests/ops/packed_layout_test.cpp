// The order of packed bytes: the one that kPackedLayout names, on every instruction set, and one that a backend takes
// back in place.
#include <catch2/catch.hpp>
#include <vector>

#include "base/cpu_features.h"
#include "base/hash.h"
#include "cpu/cpu_backend.h"
#include "cpu/packed_weight.h"
#include "tensor/dtype.h"
#include "tuning_weights.h"

using namespace headrace;

namespace {

constexpr int64_t kRows = 40, kCols = 512;  // a strip short of a pair, and rows short of a strip

// Types of GGUF files, or those of quantized checkpoints.
std::vector<DType> weight_types(bool gguf) {
  std::vector<DType> types;
  if (gguf) types = {DType::kF32, DType::kF16, DType::kBF16};
  for (int32_t i = 0; i < static_cast<int32_t>(DType::kCount); ++i) {
    const DTypeInfo& info = dtype_info(static_cast<DType>(i));
    if (is_block_format(info.dtype) && (info.ggml_type >= 0) == gguf) types.push_back(info.dtype);
  }
  return types;
}

// Of all packed bytes, of weights as they are and decoded.
uint64_t layout_hash(Backend& backend, bool gguf) {
  uint64_t hash = 0;
  for (const DType dtype : weight_types(gguf)) {
    for (const bool decode : {false, true}) {
      PackOptions options;
      options.decode_to_float = decode;
      const auto weight = backend.pack(tuning_test::make_source(dtype, kRows, kCols), options);
      INFO(dtype_name(dtype) << " " << weight.status().to_string());
      REQUIRE(weight.ok());
      REQUIRE((*weight)->packed().size() == (*weight)->bytes());
      hash = hash64((*weight)->packed().data(), (*weight)->packed().size(), hash);
    }
  }
  return hash;
}

}  // namespace

TEST_CASE("packed bytes are in the order that the layout's name stands for") {
  // Where one of these numbers has to change, the one in kPackedLayout does as well: files are kept under that name.
  REQUIRE(kPackedLayout == "cpu/2");
  for (const Isa isa : available_isas()) {
    for (const int num_threads : {1, 3}) {
      auto backend = make_cpu_backend({.isa = isa, .num_threads = num_threads});
      REQUIRE(backend.ok());
      CHECK((*backend)->packed_layout() == kPackedLayout);
      CHECK(layout_hash(**backend, true) == 0x1c5a63a05ad0bdfeu);
      CHECK(layout_hash(**backend, false) == 0x340bcf9c26362fc5u);
    }
  }
}

TEST_CASE("packed bytes are taken in place, and only as many as the shape needs") {
  auto backend = make_cpu_backend({});
  REQUIRE(backend.ok());
  std::vector<DType> types = weight_types(true);
  for (const DType dtype : weight_types(false)) types.push_back(dtype);
  for (const DType dtype : types) {
    INFO(dtype_name(dtype));
    WeightSource source = tuning_test::make_source(dtype, kRows, kCols);
    const auto packed = (*backend)->pack(source, {});
    REQUIRE(packed.ok());
    const auto bytes = (*packed)->packed();
    source.read = [](uint64_t, std::span<std::byte>) { return io_error("weight", "is not to be read"); };
    source.packed = SharedBytes(nullptr, bytes.data(), bytes.size());
    const auto taken = (*backend)->pack(source, {});
    INFO(taken.status().to_string());
    REQUIRE(taken.ok());
    CHECK((*taken)->packed().data() == bytes.data());
    std::vector<float> expected(kCols), row(kCols);
    (*packed)->decode_row(kRows - 1, expected.data());
    (*taken)->decode_row(kRows - 1, row.data());
    CHECK(std::memcmp(row.data(), expected.data(), kCols * sizeof(float)) == 0);

    source.packed = SharedBytes(nullptr, bytes.data(), bytes.size() - 64);
    const auto refused = (*backend)->pack(source, {});
    CHECK(refused.status().code() == StatusCode::kMalformed);
    CHECK(refused.status().place() == "weight");
  }
}
