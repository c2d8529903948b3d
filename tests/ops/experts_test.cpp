// The router against a plain search, and mixtures of experts against their linear layers one row at a time.
#include "op_cases.h"

#include <algorithm>
#include <numeric>

#include "tensor/router_params.h"

namespace headrace::test {
namespace {

struct Routed {
  std::vector<int32_t> experts;
  std::vector<float> weights;
};

struct RouterCase {
  int32_t num_experts = 8, top_k = 2, num_groups = 1, top_groups = 1;
  RouterScore score = RouterScore::kSoftmax;
  GroupScore group_score = GroupScore::kTopTwoSum;
  bool corrected = false, normalize = false;
  float scale = 1.0f, sum_added = 0.0f;
};

Routed route(Backend& backend, const RouterCase& c, const std::vector<float>& logits,
             const std::vector<float>& correction) {
  const auto rows = static_cast<int64_t>(logits.size()) / c.num_experts;
  Routed out;
  out.experts.resize(static_cast<size_t>(rows * c.top_k));
  out.weights.resize(out.experts.size());
  RouteParams p;
  p.logits = logits.data();
  p.correction = c.corrected ? correction.data() : nullptr;
  p.num_tokens = rows;
  p.num_experts = c.num_experts;
  p.top_k = c.top_k;
  p.num_groups = c.num_groups;
  p.top_groups = c.top_groups;
  p.score = c.score;
  p.group_score = c.group_score;
  p.normalize = c.normalize;
  p.sum_floor = 1e-20f;
  p.sum_added = c.sum_added;
  p.scale = c.scale;
  p.experts = out.experts.data();
  p.weights = out.weights.data();
  backend.route(p);
  return out;
}

// The definition, by repeated search for the largest.
Routed search(const RouterCase& c, const float* logits, const std::vector<float>& correction) {
  const auto count = static_cast<size_t>(c.num_experts);
  std::vector<double> scores(count), choice(count);
  double total = 0.0;
  for (size_t e = 0; e < count; ++e) total += std::exp(static_cast<double>(logits[e]));
  for (size_t e = 0; e < count; ++e) {
    const double raw = std::exp(static_cast<double>(logits[e]));
    scores[e] = c.score == RouterScore::kSoftmax ? raw / total : raw / (1.0 + raw);
    if (c.score == RouterScore::kSqrtSoftplus) scores[e] = std::sqrt(std::log(1.0 + raw));
    choice[e] = scores[e] + (c.corrected ? static_cast<double>(correction[e]) : 0.0);
  }
  const size_t size = count / static_cast<size_t>(c.num_groups);
  std::vector<double> groups;
  for (size_t g = 0; g < count; g += size) {
    std::vector<double> sorted(choice.begin() + static_cast<int64_t>(g),
                               choice.begin() + static_cast<int64_t>(g + size));
    std::sort(sorted.rbegin(), sorted.rend());
    groups.push_back(sorted[0] + (c.group_score == GroupScore::kTopTwoSum && size > 1 ? sorted[1] : 0.0));
  }
  std::vector<bool> open(groups.size(), false);
  for (int32_t i = 0; i < c.top_groups; ++i) {
    size_t best = groups.size();
    for (size_t g = 0; g < groups.size(); ++g) {
      if (!open[g] && (best == groups.size() || groups[g] > groups[best])) best = g;
    }
    open[best] = true;
  }
  Routed out;
  for (int32_t i = 0; i < c.top_k; ++i) {
    size_t best = count;
    for (size_t e = 0; e < count; ++e) {
      const bool taken = std::count(out.experts.begin(), out.experts.end(), static_cast<int32_t>(e)) != 0;
      if (open[e / size] && !taken && (best == count || choice[e] > choice[best])) best = e;
    }
    out.experts.push_back(static_cast<int32_t>(best));
  }
  std::sort(out.experts.begin(), out.experts.end());
  double sum = static_cast<double>(c.sum_added);
  for (const int32_t e : out.experts) sum += scores[static_cast<size_t>(e)];
  for (const int32_t e : out.experts) {
    out.weights.push_back(
        static_cast<float>(scores[static_cast<size_t>(e)] / (c.normalize ? sum : 1.0) * static_cast<double>(c.scale)));
  }
  return out;
}

void check_route(const RouterCase& c) {
  INFO("experts " << c.num_experts << " top " << c.top_k << " groups " << c.top_groups << "/" << c.num_groups);
  constexpr int64_t kRows = 41;
  const std::vector<float> logits = random_floats(static_cast<size_t>(kRows * c.num_experts), 5, 2.0f);
  const std::vector<float> correction = random_floats(static_cast<size_t>(c.num_experts), 6, 0.3f);
  std::vector<std::unique_ptr<Backend>> backends;
  backends.push_back(make_reference_backend());
  backends.push_back(cpu_backend(kWeakestIsa, 3));
  for (const auto& backend : backends) {
    const Routed got = route(*backend, c, logits, correction);
    for (int64_t row = 0; row < kRows; ++row) {
      const Routed want = search(c, logits.data() + row * c.num_experts, correction);
      const auto at = static_cast<size_t>(row * c.top_k);
      for (size_t i = 0; i < want.experts.size(); ++i) {
        REQUIRE(got.experts[at + i] == want.experts[i]);
        // Two float64 computations of one float32.
        REQUIRE(got.weights[at + i] == Approx(want.weights[i]).epsilon(2 * kUnit).margin(0));
      }
    }
  }
}

// Bytes of a weight: plain types from random floats, blocks from random codes with small scales.
std::vector<std::byte> random_weight(DType dtype, int64_t rows, int64_t cols, uint32_t seed) {
  if (!is_block_format(dtype)) return encode(dtype, random_floats(static_cast<size_t>(rows * cols), seed, 0.1f));
  const DTypeInfo& info = dtype_info(dtype);
  std::vector<std::byte> out(static_cast<size_t>(rows * cols / info.block_size * info.block_bytes));
  std::mt19937 generator(seed);
  for (std::byte& byte : out) byte = static_cast<std::byte>(generator() & 0xff);
  for (size_t at = 0; at < out.size(); at += static_cast<size_t>(info.block_bytes)) {
    if (dtype == DType::kMXFP4) {
      out[at] = static_cast<std::byte>(122 + generator() % 3);  // 2^-5 and its neighbours
    } else {
      const uint16_t scale = float_to_half(0.002f + 0.001f * static_cast<float>(generator() % 8));
      std::memcpy(&out[at], &scale, 2);
    }
  }
  return out;
}

struct MoeCase {
  DType dtype = DType::kF32;
  int32_t num_experts = 6, top_k = 2;
  int64_t hidden = 64, inner = 96, rows = 37;
  Activation activation = Activation::kSilu;
  bool bias = false, weight_inputs = false, accumulate = false, gated = true;
};

// One backend's experts, with inputs and a choice that leaves some experts without rows.
struct Moe {
  Moe(Backend& backend_, const MoeCase& c_) : backend(backend_), c(c_) {
    for (int32_t e = 0; e < c.num_experts; ++e) {
      const auto seed = static_cast<uint32_t>(100 + 10 * e);
      add(c.inner, c.hidden, seed);
      add(c.inner, c.hidden, seed + 1);
      add(c.hidden, c.inner, seed + 2);
      biases.push_back(random_floats(static_cast<size_t>(c.inner), seed + 3));
      biases.push_back(random_floats(static_cast<size_t>(c.inner), seed + 4));
      biases.push_back(random_floats(static_cast<size_t>(c.hidden), seed + 5));
    }
    const auto bias = [&](size_t index) { return c.bias ? biases[index].data() : nullptr; };
    for (size_t e = 0; e < static_cast<size_t>(c.num_experts); ++e) {
      experts.push_back({c.gated ? weights[3 * e].get() : nullptr, weights[3 * e + 1].get(), weights[3 * e + 2].get(),
                         bias(3 * e), bias(3 * e + 1), bias(3 * e + 2)});
    }
    x = random_floats(static_cast<size_t>(c.rows * c.hidden), 1);
    start = random_floats(x.size(), 2);
    factors = random_floats(static_cast<size_t>(c.rows * c.top_k), 3);
    std::mt19937 generator(4);
    for (int64_t row = 0; row < c.rows; ++row) {
      std::vector<int32_t> all(static_cast<size_t>(c.num_experts - 1));  // the last one stays alone
      std::iota(all.begin(), all.end(), 0);
      std::shuffle(all.begin(), all.end(), generator);
      std::sort(all.begin(), all.begin() + c.top_k);
      choice.insert(choice.end(), all.begin(), all.begin() + c.top_k);
    }
  }

  void add(int64_t rows, int64_t cols, uint32_t seed) {
    bytes.push_back(std::make_unique<std::vector<std::byte>>(random_weight(c.dtype, rows, cols, seed)));
    weights.push_back(pack(backend, memory_weight(c.dtype, rows, cols, *bytes.back())));
  }

  std::vector<float> run(int64_t first, int64_t end) const {
    const auto at = static_cast<size_t>(first * c.hidden);
    std::vector<float> out(start.begin() + static_cast<int64_t>(at), start.begin() + end * c.hidden);
    ExpertsParams p;
    p.x = x.data() + at;
    p.num_tokens = end - first;
    p.hidden_size = c.hidden;
    p.intermediate_size = c.inner;
    p.all_experts = experts;
    p.experts = choice.data() + first * c.top_k;
    p.weights = factors.data() + first * c.top_k;
    p.top_k = c.top_k;
    p.activation = c.activation;
    p.activation_limit = 1.5f;
    p.weight_inputs = c.weight_inputs;
    p.accumulate = c.accumulate;
    p.out = out.data();
    backend.experts(p);
    return out;
  }

  std::vector<float> multiply(const PackedWeight* weight, const float* bias, const std::vector<float>& input) const {
    std::vector<float> out(static_cast<size_t>(weight->rows()));
    const LinearOutput outputs[] = {{weight, bias, out.data(), weight->rows(), false}};
    LinearParams p;
    p.x = input.data();
    p.num_tokens = 1;
    p.in_features = weight->cols();
    p.outputs = outputs;
    backend.linear(p);
    return out;
  }

  // The same by linear ops, a row and an expert at a time.
  std::vector<float> composed(int64_t row) const {
    std::vector<float> sum;
    for (int32_t i = 0; i < c.top_k; ++i) {
      const auto visit = static_cast<size_t>(row * c.top_k + i);
      const ExpertWeights& expert = experts[static_cast<size_t>(choice[visit])];
      std::vector<float> input(x.begin() + row * c.hidden, x.begin() + (row + 1) * c.hidden);
      if (c.weight_inputs) {
        for (float& value : input) value *= factors[visit];
      }
      const std::vector<float> up = multiply(expert.up, expert.up_bias, input);
      std::vector<float> gate = c.gated ? multiply(expert.gate, expert.gate_bias, input) : up;
      GatedActivationParams activation;
      activation.gate = gate.data();
      activation.up = c.gated ? up.data() : nullptr;
      activation.num_elements = c.inner;
      activation.activation = c.activation;
      activation.limit = 1.5f;
      activation.out = gate.data();
      backend.gated_activation(activation);
      std::vector<float> out = multiply(expert.down, expert.down_bias, gate);
      for (size_t d = 0; d < out.size(); ++d) {
        if (!c.weight_inputs) out[d] *= factors[visit];
        if (i > 0) out[d] = sum[d] + out[d];
      }
      sum = out;
    }
    if (c.accumulate) {
      for (size_t d = 0; d < sum.size(); ++d) sum[d] += start[static_cast<size_t>(row * c.hidden) + d];
    }
    return sum;
  }

  Backend& backend;
  MoeCase c;
  std::vector<std::unique_ptr<std::vector<std::byte>>> bytes;
  std::vector<std::unique_ptr<PackedWeight>> weights;
  std::vector<std::vector<float>> biases;
  std::vector<ExpertWeights> experts;
  std::vector<float> x, start, factors;
  std::vector<int32_t> choice;
};

void check_experts(const MoeCase& c) {
  INFO(dtype_name(c.dtype) << " rows " << c.rows << " top_k " << c.top_k << " bias " << c.bias << " weight_inputs "
                           << c.weight_inputs << " accumulate " << c.accumulate);
  for (Isa isa : available_isas()) {
    INFO(isa_name(isa));
    const auto one = cpu_backend(isa, 1), three = cpu_backend(isa, 3);
    const Moe moe(*one, c), threaded(*three, c);
    const std::vector<float> whole = moe.run(0, c.rows);
    CHECK(same_bits(threaded.run(0, c.rows), whole));
    for (int64_t row = 0; row<c.rows; row += c.rows> 50 ? 17 : 1) {
      const std::vector<float> want(whole.begin() + row * c.hidden, whole.begin() + (row + 1) * c.hidden);
      REQUIRE(same_bits(moe.composed(row), want));
      REQUIRE(same_bits(moe.run(row, row + 1), want));
    }
    const int64_t middle = c.rows / 2;
    CHECK(same_bits(threaded.run(middle, c.rows), std::vector<float>(whole.begin() + middle * c.hidden, whole.end())));
  }
}

}  // namespace

TEST_CASE("The router finds what a plain search finds") {
  for (const bool normalize : {false, true}) {
    check_route({8, 2, 1, 1, RouterScore::kSoftmax, GroupScore::kMax, false, normalize});
    check_route({60, 4, 1, 1, RouterScore::kSoftmax, GroupScore::kMax, true, normalize, 1.5f});
    check_route({256, 8, 8, 4, RouterScore::kSigmoid, GroupScore::kTopTwoSum, true, normalize, 2.5f});
    check_route({64, 6, 8, 3, RouterScore::kSoftmax, GroupScore::kMax, false, normalize, 16.0f});
  }
  check_route({32, 4, 1, 1, RouterScore::kSigmoid, GroupScore::kMax, true, true, 1.0f, 0.25f});
  check_route({16, 1, 1, 1, RouterScore::kSigmoid});
  check_route({64, 6, 1, 1, RouterScore::kSqrtSoftplus, GroupScore::kMax, true, true, 1.5f});
  check_route({4, 4, 4, 4, RouterScore::kSoftmax});
  check_route({8, 2, 8, 2, RouterScore::kSigmoid, GroupScore::kTopTwoSum, true, true});
}

TEST_CASE("Equal scores go to the lower index, and NaN to nobody who is wanted") {
  const auto backend = make_reference_backend();
  RouterCase c;
  c.top_k = 3;
  const Routed ties = route(*backend, c, {1, 2, 1, 2, 1, 2, 1, 2}, {});
  CHECK(ties.experts == std::vector<int32_t>{1, 3, 5});
  c.score = RouterScore::kSigmoid;
  const Routed dirty = route(*backend, c, {NAN, 2, NAN, 1, NAN, 0, NAN, -3}, {});
  CHECK(dirty.experts == std::vector<int32_t>{1, 3, 5});
  const Routed all_nan = route(*backend, c, std::vector<float>(8, NAN), {});
  CHECK(all_nan.experts == std::vector<int32_t>{0, 1, 2});
}

TEST_CASE("Experts that are given have the weights of a choice of them") {
  constexpr int32_t kExperts = 8, kTop = 3;
  constexpr int64_t kRows = 5;
  const std::vector<float> logits = random_floats(kRows * kExperts, 15, 2.0f);
  const std::vector<int32_t> given = {0, 1, 2, 5, 6, 7, 0, 3, 7, 2, 4, 6, 1, 2, 3};
  for (const auto& backend : {make_reference_backend(), cpu_backend(kWeakestIsa, 2)}) {
    std::vector<int32_t> experts(given.size());
    std::vector<float> weights(given.size());
    RouteParams p;
    p.logits = logits.data();
    p.num_tokens = kRows;
    p.num_experts = kExperts;
    p.top_k = kTop;
    p.score = RouterScore::kSqrtSoftplus;
    p.normalize = true;
    p.scale = 1.5f;
    p.given = given.data();
    p.experts = experts.data();
    p.weights = weights.data();
    backend->route(p);
    CHECK(experts == given);
    for (size_t row = 0; row < kRows; ++row) {
      double sum = 0.0;
      std::vector<double> scores;
      for (size_t i = row * kTop; i < (row + 1) * kTop; ++i) {
        const double x = static_cast<double>(logits[row * kExperts + static_cast<size_t>(given[i])]);
        sum += scores.emplace_back(std::sqrt(std::log(1.0 + std::exp(x))));
      }
      for (size_t i = 0; i < kTop; ++i) {
        CHECK(static_cast<double>(weights[row * kTop + i]) == Approx(1.5 * scores[i] / sum).epsilon(2 * kUnit));
      }
    }
  }
}

TEST_CASE("Experts have the bits of their linear layers, whatever rows accompany a row") {
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kQ8_0, DType::kQ4_0, DType::kMXFP4}) {
    check_experts({dtype});
    check_experts({dtype, 6, 1, 64, 32, 5, Activation::kSilu, false, true, true});
  }
  check_experts({DType::kF32, 6, 3, 40, 24, 37, Activation::kGeluTanh, true, false, true});
  check_experts({DType::kMXFP4, 6, 4, 96, 64, 37, Activation::kClampedSwish, true, false, true});
  for (DType dtype : {DType::kF32, DType::kQ8_0}) {
    check_experts({dtype, 6, 2, 64, 96, 37, Activation::kRelu2, true, false, true, /*gated=*/false});
  }
  check_experts({DType::kQ8_0, 3, 1, 64, 32, 1300});  // rows of one expert in more than one group of outliers
}

namespace {

void check_against_reference(bool gated) {
  MoeCase c;
  c.bias = c.accumulate = true;
  c.gated = gated;
  const auto reference = make_reference_backend();
  const Moe expected(*reference, c);
  const std::vector<float> want = expected.run(0, c.rows);
  // An inner value errs by the rounding of a product of `hidden` terms (at most a few units each here), which the last
  // product hands on; all values are of the order of one.
  const double bound = (static_cast<double>(c.hidden) + static_cast<double>(c.inner)) * kUnit * 64.0;
  for (Isa isa : available_isas()) {
    const auto backend = cpu_backend(isa, 2);
    const Moe moe(*backend, c);
    CHECK(worst(moe.run(0, c.rows), want, std::vector<double>(want.size(), bound)) <= 1.0);
  }
}

}  // namespace

TEST_CASE("Experts agree with the reference, with and without a gate") {
  check_against_reference(true);
  check_against_reference(false);
}

TEST_CASE("Each head has a matrix of its own") {
  constexpr int64_t kRows = 21, kHeads = 5, kIn = 32, kOut = 24, kHead = 48, kOutHead = 40;
  const std::vector<float> x = random_floats(kRows * kHeads * kHead, 7);
  for (DType dtype : {DType::kF32, DType::kQ8_0}) {
    for (Isa isa : available_isas()) {
      const auto backend = cpu_backend(isa, 2);
      std::vector<std::unique_ptr<PackedWeight>> weights;
      std::vector<const PackedWeight*> pointers;
      for (uint32_t h = 0; h < kHeads; ++h) {
        const std::vector<std::byte> bytes = random_weight(dtype, kOut, kIn, h + 1);
        weights.push_back(pack(*backend, memory_weight(dtype, kOut, kIn, bytes)));
        pointers.push_back(weights.back().get());
      }
      std::vector<float> y(kRows * kHeads * kOutHead, -7.0f);
      HeadLinearParams p;
      p.x = x.data() + 3;
      p.x_row_stride = kHeads * kHead;
      p.x_head_stride = kHead;
      p.num_tokens = kRows;
      p.in_features = kIn;
      p.weights = pointers;
      p.y = y.data() + 2;
      p.y_row_stride = kHeads * kOutHead;
      p.y_head_stride = kOutHead;
      backend->head_linear(p);
      for (int64_t row = 0; row < kRows; ++row) {
        for (int64_t h = 0; h < kHeads; ++h) {
          std::vector<float> input(static_cast<size_t>(kIn)), want(static_cast<size_t>(kOut));
          std::copy_n(x.begin() + 3 + (row * kHeads + h) * kHead, kIn, input.begin());
          const LinearOutput outputs[] = {{pointers[static_cast<size_t>(h)], nullptr, want.data(), kOut, false}};
          backend->linear({input.data(), 1, kIn, outputs});
          const auto at = y.begin() + 2 + (row * kHeads + h) * kOutHead;
          REQUIRE(same_bits(std::vector<float>(at, at + kOut), want));
          REQUIRE(*(at + kOut) == -7.0f);
        }
      }
    }
  }
}

TEST_CASE("Rows are gated by the logistic function of their gate") {
  const std::vector<float> start = random_floats(7 * 20, 1), gate = random_floats(7, 2, 3.0f);
  for (Isa isa : available_isas()) {
    const auto backend = cpu_backend(isa, 2);
    std::vector<float> x = start;
    backend->gate_rows({x.data(), gate.data(), 7, 20});
    for (size_t i = 0; i < x.size(); ++i) {
      const double want = static_cast<double>(start[i]) / (1.0 + std::exp(-static_cast<double>(gate[i / 20])));
      CHECK(x[i] == Approx(want).epsilon(4 * kUnit));
    }
  }
}

}  // namespace headrace::test
