// Weights whose columns are stored in another order: decoded rows and products are those of the columns in order.
#include <algorithm>
#include <numeric>

#include "op_cases.h"
#include "tensor/block_formats.h"
#include "tensor/router_params.h"

namespace headrace::test {
namespace {

constexpr int64_t kCols = 256, kRows = 40, kTokens = 37;

ColumnOrder random_order(uint32_t seed) {
  std::vector<int32_t> order(kCols);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937(seed));
  return std::make_shared<const std::vector<int32_t>>(std::move(order));
}

std::vector<std::byte> random_weight(uint32_t seed, int64_t rows = kRows) {
  std::mt19937 generator(seed);
  std::vector<std::byte> data(static_cast<size_t>(rows * kCols / 128) * sizeof(BlockInt4<128>));
  for (size_t at = 0; at < data.size(); at += sizeof(BlockInt4<128>)) {
    auto& block = reinterpret_cast<BlockInt4<128>&>(data[at]);
    block.d = static_cast<float>(generator() % 1000 + 500) * 1e-5f;
    block.zero = static_cast<uint8_t>(generator() % 17);
    for (uint8_t& q : block.qs) q = static_cast<uint8_t>(generator());
  }
  return data;
}

// Rows of x with their elements in the order's.
std::vector<float> ordered(const std::vector<float>& x, const ColumnOrder& order) {
  std::vector<float> out(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    out[i] = x[i / kCols * kCols + static_cast<size_t>((*order)[i % kCols])];
  }
  return out;
}

WeightSource source_of(const std::vector<std::byte>& data, const ColumnOrder& order, int64_t rows = kRows) {
  WeightSource source = memory_weight(DType::kINT4_G128, rows, kCols, data);
  source.column_order = order;
  return source;
}

std::vector<std::unique_ptr<Backend>> backends() {
  std::vector<std::unique_ptr<Backend>> out;
  out.push_back(make_reference_backend());
  for (const Isa isa : available_isas()) {
    for (const int threads : {1, 3}) out.push_back(cpu_backend(isa, threads));
  }
  return out;
}

constexpr PackOptions kOptions[] = {{ActivationType::kInt8}, {ActivationType::kInt16}, {ActivationType::kFloat32}};

}  // namespace

TEST_CASE("rows decode to the columns' own places") {
  const std::vector<std::byte> data = random_weight(1);
  const ColumnOrder order = random_order(2);
  for (const auto& backend : backends()) {
    for (const PackOptions& options : kOptions) {
      const auto plain = pack(*backend, source_of(data, nullptr), options);
      const auto weight = pack(*backend, source_of(data, order), options);
      std::vector<float> expected(kCols), row(kCols);
      for (int64_t n = 0; n < kRows; ++n) {
        plain->decode_row(n, expected.data());
        weight->decode_row(n, row.data());
        for (size_t j = 0; j < kCols; ++j) REQUIRE(row[static_cast<size_t>((*order)[j])] == expected[j]);
      }
    }
  }
}

// Weights of one op with equal, other and no orders. With integers the inputs in the weight's order are what is quantized,
// so that the bits are those of the same weight without an order.
TEST_CASE("products follow each weight's own order") {
  const std::vector<float> x = random_floats(kTokens * kCols, 3);
  const std::vector<ColumnOrder> orders = {random_order(4), random_order(4), random_order(5), nullptr};
  for (const auto& backend : backends()) {
    if (backend->name() == "reference") continue;
    for (const PackOptions& options : {kOptions[0], kOptions[1]}) {
      INFO(backend->name());
      for (const int64_t tokens : {int64_t{1}, kTokens}) {
        std::vector<std::unique_ptr<PackedWeight>> weights;
        std::vector<std::vector<std::byte>> data;
        for (uint32_t i = 0; i < orders.size(); ++i) data.push_back(random_weight(10 + i));
        std::vector<std::vector<float>> y(orders.size(), std::vector<float>(static_cast<size_t>(tokens * kRows)));
        std::vector<LinearOutput> outputs;
        for (size_t i = 0; i < orders.size(); ++i) {
          weights.push_back(pack(*backend, source_of(data[i], orders[i]), options));
          outputs.push_back({weights.back().get(), nullptr, y[i].data(), kRows, false});
        }
        backend->linear({x.data(), tokens, kCols, outputs});
        for (size_t i = 0; i < orders.size(); ++i) {
          const std::vector<float> inputs = orders[i] == nullptr ? x : ordered(x, orders[i]);
          const auto plain = pack(*backend, source_of(data[i], nullptr), options);
          std::vector<float> expected(y[i].size());
          const LinearOutput output{plain.get(), nullptr, expected.data(), kRows, false};
          backend->linear({inputs.data(), tokens, kCols, {&output, 1}});
          CHECK(same_bits(y[i], expected));
        }
        std::vector<float> gated(static_cast<size_t>(tokens * kRows)), expected(gated.size());
        GatedLinearParams params;
        params.x = x.data();
        params.num_tokens = tokens;
        params.in_features = kCols;
        params.gate = weights[0].get();
        params.up = weights[2].get();
        params.out = gated.data();
        backend->gated_linear(params);
        GatedActivationParams activation;
        activation.gate = y[0].data();
        activation.up = y[2].data();
        activation.num_elements = tokens * kRows;
        activation.activation = params.activation;
        activation.out = expected.data();
        backend->gated_activation(activation);
        CHECK(same_bits(gated, expected));
      }
    }
  }
}

TEST_CASE("experts follow their own orders, whatever rows they share") {
  constexpr int32_t kExperts = 3, kTop = 2;
  const std::vector<float> x = random_floats(kTokens * kCols, 6);
  std::vector<std::vector<std::byte>> data;
  for (uint32_t i = 0; i < 3 * kExperts; ++i) data.push_back(random_weight(20 + i, kCols));
  std::vector<int32_t> chosen(kTokens * kTop);
  for (size_t t = 0; t < kTokens; ++t) {  // two of three
    chosen[2 * t] = t % 3 == 2 ? 1 : 0;
    chosen[2 * t + 1] = t % 3 == 0 ? 1 : 2;
  }
  const std::vector<float> factors(chosen.size(), 0.01f);
  for (const auto& backend : backends()) {
    if (backend->name() == "reference") continue;
    INFO(backend->name());
    std::vector<std::unique_ptr<PackedWeight>> weights;
    for (uint32_t i = 0; i < data.size(); ++i) {
      weights.push_back(pack(*backend, source_of(data[i], random_order(40 + i / 2), kCols)));
    }
    std::vector<ExpertWeights> table;
    for (size_t e = 0; e < kExperts; ++e) {
      table.push_back({weights[3 * e].get(), weights[3 * e + 1].get(), weights[3 * e + 2].get()});
    }
    ExpertsParams params;
    params.x = x.data();
    params.num_tokens = kTokens;
    params.hidden_size = params.intermediate_size = kCols;
    params.top_k = kTop;
    params.all_experts = table;
    params.experts = chosen.data();
    params.weights = factors.data();
    std::vector<float> out(kTokens * kCols), one(kCols);
    params.out = out.data();
    backend->experts(params);
    for (int64_t token = 0; token < kTokens; ++token) {
      params.x = x.data() + token * kCols;
      params.num_tokens = 1;
      params.experts = chosen.data() + token * kTop;
      params.out = one.data();
      backend->experts(params);
      CHECK(same_bits(one, {out.begin() + token * kCols, out.begin() + (token + 1) * kCols}));
    }
  }
}

}  // namespace headrace::test
