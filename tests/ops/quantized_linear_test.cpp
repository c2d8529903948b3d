// Linear layers of block-format weights: every format on every available instruction set, against float64 products of
// the decoded weights, with bounds derived from the arithmetic; and the laws of bit-equality.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "cpu/cpu_backend.h"
#include "tensor/block_formats.h"
#include "tensor/dequantize.h"
#include "tensor/half.h"

using namespace headrace;

namespace {

constexpr int64_t kRows = 70;  // of activations

const std::vector<DType>& block_formats() {
  static const std::vector<DType> all = [] {
    std::vector<DType> list;
    for (int32_t i = 0; i < static_cast<int32_t>(DType::kCount); ++i) {
      const DType dtype = static_cast<DType>(i);
      if (is_block_format(dtype) && !is_scaled_float(dtype)) list.push_back(dtype);
    }
    return list;
  }();
  return all;
}

// A weight in file form with its decoded values.
struct Weight {
  DType dtype;
  int64_t rows, cols;
  std::vector<std::byte> file;
  std::vector<float> values;

  WeightSource source() const {
    return {"weight", dtype, rows, cols, [this](uint64_t offset, std::span<std::byte> to) {
              if (offset + to.size() > file.size()) return io_error("weight", "read past the end");
              std::memcpy(to.data(), file.data() + offset, to.size());
              return Status();
            }};
  }
};

// Scales between 2^-7 and 2^-5 of either sign where the format allows one: finite, and close enough to each other
// that no row hides another's error.
uint16_t random_half(std::mt19937& rng) {
  std::uniform_real_distribution<float> magnitude(0x1p-7f, 0x1p-5f);
  return float_to_half(rng() & 1 ? magnitude(rng) : -magnitude(rng));
}

template <class Block>
Block& block_at(std::byte* at) {
  return *reinterpret_cast<Block*>(at);
}

void set_scales(DType dtype, std::byte* at, std::mt19937& rng) {
  const uint16_t d = random_half(rng), m = random_half(rng);
  switch (dtype) {
    case DType::kQ4_1: block_at<BlockQ4_1>(at).m = m; break;
    case DType::kQ5_1: block_at<BlockQ5_1>(at).m = m; break;
    case DType::kQ2_K: block_at<BlockQ2_K>(at).d = d, block_at<BlockQ2_K>(at).dmin = m; return;
    case DType::kQ3_K: block_at<BlockQ3_K>(at).d = d; return;
    case DType::kQ4_K: block_at<BlockQ4_K>(at).dmin = m; break;
    case DType::kQ5_K: block_at<BlockQ5_K>(at).dmin = m; break;
    case DType::kQ6_K: block_at<BlockQ6_K>(at).d = d; return;
    case DType::kQ8_K: block_at<BlockQ8_K>(at).d = half_to_float(d); return;
    case DType::kTQ1_0: block_at<BlockTQ1_0>(at).d = d; return;
    case DType::kTQ2_0: block_at<BlockTQ2_0>(at).d = d; return;
    case DType::kMXFP4: block_at<BlockMXFP4>(at).e = static_cast<uint8_t>(120 + rng() % 4); return;
    case DType::kNVFP4:
      for (uint8_t& scale : block_at<BlockNVFP4>(at).d) scale = static_cast<uint8_t>(rng() % 64);
      return;
    case DType::kINT4_G32:
    case DType::kINT4_G128:
      block_at<BlockInt4<32>>(at).d = half_to_float(d) * 1.0001f;  // no float16
      block_at<BlockInt4<32>>(at).zero = static_cast<uint8_t>(rng() % 17);
      return;
    case DType::kINT8_G32:
    case DType::kINT8_G128:
      block_at<BlockInt8<32>>(at).d = half_to_float(d) * 1.0001f;
      block_at<BlockInt8<32>>(at).zero = static_cast<int16_t>(static_cast<int>(rng() % 257) - 128);
      return;
    case DType::kNVFP4_G64:
      block_at<BlockScaledNvfp4>(at).scale = rng() & 1 ? 0.7f : -3.3f;
      for (uint8_t& scale : block_at<BlockScaledNvfp4>(at).d) scale = static_cast<uint8_t>(rng() % 64);
      return;
    case DType::kIQ1_M:
      for (int i = 0; i < 4; ++i) {
        uint16_t& word = block_at<BlockIQ1_M>(at).scales[i];
        word = static_cast<uint16_t>((word & 0xfff) | ((d >> (4 * i)) & 15) << 12);
      }
      return;
    default: break;
  }
  std::memcpy(at, &d, sizeof d);  // d comes first
}

// fill: -1 for random codes, else the byte that everything but the scales is made of.
Weight make_weight(DType dtype, int64_t rows, int64_t cols, int fill, uint32_t seed) {
  std::mt19937 rng(seed);
  Weight weight{dtype, rows, cols, {}, {}};
  const uint64_t bytes = *row_bytes(dtype, static_cast<uint64_t>(cols)) * static_cast<uint64_t>(rows);
  weight.file.resize(bytes);
  for (std::byte& byte : weight.file)
    byte = static_cast<std::byte>(fill < 0 ? rng() & 255 : static_cast<uint32_t>(fill));
  const size_t block = static_cast<size_t>(dtype_info(dtype).block_bytes);
  for (size_t at = 0; at < bytes; at += block) set_scales(dtype, weight.file.data() + at, rng);
  weight.values.resize(static_cast<size_t>(rows * cols));
  REQUIRE(dequantize_row(dtype, weight.file.data(), weight.values.data(), rows * cols).ok());
  return weight;
}

// The largest |scale * code| + |minimum| a value of set_scales' weights can be made of.
double largest_terms(DType dtype) {
  constexpr double kD = 0x1p-5;
  switch (dtype) {
    case DType::kQ4_1: return kD * 16;
    case DType::kQ5_1: return kD * 32;
    case DType::kQ2_K: return kD * (15 * 3 + 15);
    case DType::kQ3_K: return kD * 32 * 8;
    case DType::kQ4_K: return kD * (63 * 15 + 63);
    case DType::kQ5_K: return kD * (63 * 31 + 63);
    case DType::kQ6_K: return kD * 128 * 64;
    case DType::kINT4_G32:
    case DType::kINT4_G128: return kD * 1.001 * (15 + 16);
    case DType::kINT8_G32:
    case DType::kINT8_G128: return kD * 1.001 * (128 + 128);
    default: return 0;  // no minimum: the values say it
  }
}

std::unique_ptr<Backend> backend(Isa isa, int threads) {
  auto made = make_cpu_backend({isa, threads});
  REQUIRE(made.ok());
  return made.take();
}

std::unique_ptr<PackedWeight> pack(Backend& on, const Weight& weight, ActivationType type) {
  PackOptions options;
  options.activations = type;
  auto packed = on.pack(weight.source(), options);
  if (!packed.ok()) FAIL(packed.status().to_string());
  return packed.take();
}

std::vector<float> multiply(Backend& on, const PackedWeight& weight, const float* x, int64_t tokens,
                            const float* bias = nullptr, const std::vector<float>* old = nullptr) {
  std::vector<float> y(static_cast<size_t>(tokens * weight.rows()), -7.0f);
  if (old) y = *old;
  LinearOutput output{&weight, bias, y.data(), weight.rows(), old != nullptr};
  LinearParams params;
  params.x = x;
  params.num_tokens = tokens;
  params.in_features = weight.cols();
  params.outputs = std::span(&output, 1);
  on.linear(params);
  return y;
}

bool same_bits(const float* a, const float* b, size_t count) { return std::memcmp(a, b, count * sizeof(float)) == 0; }
bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && same_bits(a.data(), b.data(), a.size());
}

// Whole numbers with 127 or -127 in every 32: their int8 codes are themselves, scale 1, no second term.
std::vector<float> exact_activations(int64_t cols, uint32_t seed) {
  std::mt19937 rng(seed);
  std::vector<float> x(static_cast<size_t>(kRows * cols));
  for (float& value : x) value = static_cast<float>(static_cast<int>(rng() % 255) - 127);
  for (size_t i = 0; i < x.size(); i += 32) x[i + rng() % 32] = rng() & 1 ? 127.0f : -127.0f;
  return x;
}

std::vector<float> random_activations(int64_t cols, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<size_t>(kRows * cols));
  for (float& value : x) value = normal(rng);
  // A few massive ones, as real layers have them.
  for (int64_t row = 0; row < kRows; ++row)
    x[static_cast<size_t>(row * cols) + rng() % static_cast<size_t>(cols)] *= 300;
  return x;
}

// How far each activation may be from what the kernels see: half a step of the first term, or of the second where the
// block has one. A step is amax / 127, and its reciprocal is rounded: three roundings of values up to 127.
std::vector<double> activation_errors(const float* x, int64_t cols, ActivationType type) {
  const int64_t blocks = cols / 32;
  std::vector<float> amax(static_cast<size_t>(blocks));
  for (int64_t b = 0; b < blocks; ++b) {
    for (int64_t i = 0; i < 32; ++i)
      amax[static_cast<size_t>(b)] = std::max(amax[static_cast<size_t>(b)], std::fabs(x[32 * b + i]));
  }
  std::vector<int64_t> order(static_cast<size_t>(blocks));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return amax[static_cast<size_t>(a)] > amax[static_cast<size_t>(b)]; });
  const int64_t second = type == ActivationType::kInt16 ? blocks : (blocks + 15) / 16;
  std::vector<double> errors(static_cast<size_t>(cols));
  for (int64_t rank = 0; rank < blocks; ++rank) {
    const int64_t b = order[static_cast<size_t>(rank)];
    const double largest = amax[static_cast<size_t>(b)];
    const double first_error = largest / 127 * (0.5 + 127 * 3 * 0x1p-24);
    const double error =
        rank < second ? first_error / 127 * (0.5 + 127 * 3 * 0x1p-24) + largest * 2 * 0x1p-24 : first_error;
    std::fill_n(errors.begin() + 32 * b, 32, error);
  }
  return errors;
}

// Float64 products and the bound on a result's distance from them.
struct Expected {
  std::vector<double> y, bound;
};

Expected expected_products(const Weight& weight, const std::vector<float>& x, const std::vector<double>& errors) {
  Expected out;
  const int64_t cols = weight.cols;
  const double terms = largest_terms(weight.dtype);
  // Up to four roundings make a block's contribution and up to three add it, for both terms.
  const double roundings = (cols / 32.0 * 3 + 4 + 2) * 0x1p-24;
  for (int64_t t = 0; t < kRows; ++t) {
    for (int64_t n = 0; n < weight.rows; ++n) {
      double sum = 0, reach = 0, slack = 0;
      for (int64_t k = 0; k < cols; ++k) {
        const double w = weight.values[static_cast<size_t>(n * cols + k)], a = x[static_cast<size_t>(t * cols + k)];
        const double error = errors[static_cast<size_t>(t * cols + k)];
        sum += w * a;
        reach += (std::max(std::fabs(w), terms) + std::fabs(w) * 0x1p-23) * (std::fabs(a) + error);
        slack += std::fabs(w) * error;
        // The reference's own decoding rounds a value with a minimum once or twice.
        if (terms > 0) slack += terms * 2 * 0x1p-24 * std::fabs(a);
      }
      out.y.push_back(sum);
      out.bound.push_back(slack + roundings * reach + 1e-30);
    }
  }
  return out;
}

void check(const Expected& expected, const std::vector<float>& y) {
  REQUIRE(y.size() == expected.y.size());
  for (size_t i = 0; i < y.size(); ++i) {
    const double distance = std::fabs(y[i] - expected.y[i]);
    if (!(distance <= expected.bound[i])) {
      INFO("element " << i << ": " << y[i] << ", expected " << expected.y[i] << " within " << expected.bound[i]);
      REQUIRE(distance <= expected.bound[i]);
    }
  }
}

std::vector<int64_t> widths(DType dtype) {
  const int64_t block = dtype_info(dtype).block_size;
  return {block, 3 * block, 2304 / block * block};  // the last is more than one unpacked chunk
}

std::vector<double> all_errors(const std::vector<float>& x, int64_t cols, ActivationType type) {
  std::vector<double> errors;
  for (int64_t t = 0; t < kRows; ++t) {
    const auto row = activation_errors(x.data() + t * cols, cols, type);
    errors.insert(errors.end(), row.begin(), row.end());
  }
  return errors;
}

// Results on every instruction set, thread count and row grouping carry the same bits; returned once.
std::vector<float> one_result(const Weight& weight, const std::vector<float>& x, ActivationType type) {
  std::vector<float> first;
  for (const Isa isa : available_isas()) {
    for (int threads = 1; threads <= 3; ++threads) {
      auto on = backend(isa, threads);
      const auto packed = pack(*on, weight, type);
      const auto y = multiply(*on, *packed, x.data(), kRows);
      if (first.empty()) first = y;
      INFO("instruction set " << isa_name(isa) << ", threads " << threads);
      REQUIRE(same_bits(first, y));
      if (threads == 3) continue;
      for (const int64_t tokens : {1, 2, 3, 5, 8, 17}) {
        const int64_t from = kRows - tokens;
        const auto part = multiply(*on, *packed, x.data() + from * weight.cols, tokens);
        REQUIRE(same_bits(part.data(), first.data() + from * weight.rows, part.size()));
      }
    }
  }
  return first;
}

}  // namespace

TEST_CASE("whole-number activations multiply exactly up to the float sums") {
  for (const DType dtype : block_formats()) {
    for (const int64_t out : {1, 16, 17, 100}) {
      for (const int64_t cols : widths(dtype)) {
        INFO(dtype_name(dtype) << " [" << out << ", " << cols << "]");
        const Weight weight = make_weight(dtype, out, cols, -1, static_cast<uint32_t>(out * 31 + cols));
        const auto x = exact_activations(cols, 5);
        const std::vector<double> none(x.size());
        check(expected_products(weight, x, none), one_result(weight, x, ActivationType::kInt8));
      }
    }
  }
}

TEST_CASE("extreme codes meet extreme activations without saturating") {
  for (const DType dtype : block_formats()) {
    const int64_t cols = 2 * std::max(dtype_info(dtype).block_size, 64);
    for (const int fill : {0x00, 0xff, 0x80, 0x7f, 0x0f, 0xf0}) {
      const Weight weight = make_weight(dtype, 17, cols, fill, 3);
      std::vector<float> x(static_cast<size_t>(kRows * cols));
      for (size_t i = 0; i < x.size(); ++i) {
        const size_t row = i / static_cast<size_t>(cols);
        const bool minus = row % 4 == 1 || (row % 4 == 2 && i % 2) || (row % 4 == 3 && i / 4 % 2);
        x[i] = minus ? -127.0f : 127.0f;
      }
      INFO(dtype_name(dtype) << " filled with " << fill);
      const std::vector<double> none(x.size());
      check(expected_products(weight, x, none), one_result(weight, x, ActivationType::kInt8));
    }
  }
}

TEST_CASE("random activations stay within their quantization steps") {
  for (const ActivationType type : {ActivationType::kInt8, ActivationType::kInt16}) {
    for (const DType dtype : block_formats()) {
      const int64_t cols = 768;
      INFO(dtype_name(dtype) << " activations " << static_cast<int>(type));
      const Weight weight = make_weight(dtype, 33, cols, -1, 11);
      const auto x = random_activations(cols, 12);
      check(expected_products(weight, x, all_errors(x, cols, type)), one_result(weight, x, type));
    }
  }
}

TEST_CASE("a lone outlier block is seen in two terms") {
  const int64_t cols = 512;
  for (const DType dtype : {DType::kQ4_0, DType::kQ4_1, DType::kQ8_0, DType::kQ2_K, DType::kQ6_K, DType::kIQ2_XXS}) {
    INFO(dtype_name(dtype));
    const Weight weight = make_weight(dtype, 20, cols, -1, 21);
    std::vector<float> x(static_cast<size_t>(kRows * cols));
    std::mt19937 rng(22);
    std::normal_distribution<float> normal;
    for (int64_t t = 0; t < kRows; ++t) {
      const int64_t block = t % (cols / 32);
      for (int64_t i = 0; i < 32; ++i) x[static_cast<size_t>(t * cols + 32 * block + i)] = 50 * normal(rng);
    }
    // Every value lies in the one outlier block, so the bound is the second term's step.
    check(expected_products(weight, x, all_errors(x, cols, ActivationType::kInt8)),
          one_result(weight, x, ActivationType::kInt8));
  }
}

TEST_CASE("rows decode to the file's values and take the file's bytes") {
  auto on = backend(available_isas().back(), 2);
  for (const DType dtype : block_formats()) {
    const int64_t cols = 3 * dtype_info(dtype).block_size;
    const Weight weight = make_weight(dtype, 37, cols, -1, 31);
    const auto packed = pack(*on, weight, ActivationType::kInt8);
    INFO(dtype_name(dtype));
    CHECK(packed->dtype() == dtype);
    CHECK(packed->bytes() <= weight.file.size() / 37 * 64 + 63);
    std::vector<float> row(static_cast<size_t>(cols));
    for (int64_t n = 0; n < weight.rows; ++n) {
      packed->decode_row(n, row.data());
      REQUIRE(same_bits(row.data(), weight.values.data() + n * cols, row.size()));
    }
  }
}

TEST_CASE("bias and the residual stream are added after the product") {
  const int64_t cols = 256;
  for (const Isa isa : available_isas()) {
    auto on = backend(isa, 2);
    const Weight weight = make_weight(DType::kQ4_K, 45, cols, -1, 41);
    const auto packed = pack(*on, weight, ActivationType::kInt8);
    const auto x = random_activations(cols, 42);
    const auto plain = multiply(*on, *packed, x.data(), kRows);
    std::vector<float> bias(45), old(plain.size());
    for (size_t i = 0; i < bias.size(); ++i) bias[i] = static_cast<float>(i) - 20.5f;
    for (size_t i = 0; i < old.size(); ++i) old[i] = static_cast<float>(i % 97);
    const auto with_bias = multiply(*on, *packed, x.data(), kRows, bias.data());
    const auto both = multiply(*on, *packed, x.data(), kRows, bias.data(), &old);
    for (size_t i = 0; i < plain.size(); ++i) {
      REQUIRE(with_bias[i] == plain[i] + bias[i % 45]);
      REQUIRE(both[i] == old[i] + with_bias[i]);
    }
  }
}

TEST_CASE("zeros give zeros, and what is not finite stays in its row") {
  const int64_t cols = 512;
  for (const Isa isa : available_isas()) {
    for (const ActivationType type : {ActivationType::kInt8, ActivationType::kInt16}) {
      for (const DType dtype : {DType::kQ4_0, DType::kQ4_K, DType::kQ6_K, DType::kQ2_K, DType::kIQ3_S}) {
        auto on = backend(isa, 2);
        const Weight weight = make_weight(dtype, 19, cols, -1, 51);
        const auto packed = pack(*on, weight, type);
        auto x = random_activations(cols, 52);
        std::fill_n(x.begin() + 3 * cols, cols, 0.0f);
        std::fill_n(x.begin() + 4 * cols, cols, 1e-42f);  // no reciprocal
        const auto clean = multiply(*on, *packed, x.data(), kRows);
        x[static_cast<size_t>(5 * cols + 77)] = std::numeric_limits<float>::quiet_NaN();
        x[static_cast<size_t>(6 * cols + 5)] = -std::numeric_limits<float>::infinity();
        x[static_cast<size_t>(7 * cols + 500)] = std::numeric_limits<float>::infinity();
        x[static_cast<size_t>(7 * cols + 501)] = -std::numeric_limits<float>::quiet_NaN();
        const auto y = multiply(*on, *packed, x.data(), kRows);
        for (int64_t t = 0; t < kRows; ++t) {
          const float* row = y.data() + t * 19;
          if (t >= 5 && t <= 7) {
            REQUIRE(std::all_of(row, row + 19, [](float v) { return std::isnan(v); }));
          } else {
            REQUIRE(same_bits(row, clean.data() + t * 19, 19));
          }
          if (t == 3 || t == 4) REQUIRE(std::all_of(row, row + 19, [](float v) { return v == 0; }));
        }
      }
    }
  }
}

TEST_CASE("what cannot be packed is refused by name") {
  auto on = backend(available_isas().back(), 2);
  Weight weight = make_weight(DType::kQ4_K, 40, 512, -1, 61);
  weight.file.resize(weight.file.size() - 1);
  const auto truncated = on->pack(weight.source(), {});
  REQUIRE(!truncated.ok());
  CHECK(truncated.status().code() == StatusCode::kIo);
  CHECK(truncated.status().place().find("weight") != std::string::npos);

  WeightSource source = weight.source();
  source.cols = 500;
  CHECK(on->pack(source, {}).status().code() == StatusCode::kInvalidArgument);
  source.cols = 0;
  CHECK(on->pack(source, {}).status().code() == StatusCode::kInvalidArgument);
  source.cols = int64_t{1} << 60;
  source.rows = int64_t{1} << 60;
  CHECK(on->pack(source, {}).status().code() == StatusCode::kInvalidArgument);
}
