// Every choice of linear_choice.h, on every available instruction set, has the bits of the rule on the baseline.
#include <cstring>
#include <random>
#include <vector>

#include "base/cpu_features.h"
#include "cpu/tuner.h"
#include "tuning_weights.h"

using namespace headrace;

namespace {

using tuning_test::make_weight;

std::vector<float> random_rows(int64_t rows, int64_t cols) {
  std::mt19937 rng(7);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<size_t>(rows * cols));
  for (float& value : x) value = normal(rng);
  for (int64_t row = 0; row < rows; ++row) x[static_cast<size_t>(row * cols) + rng() % static_cast<size_t>(cols)] *= 90;
  return x;
}

// y of old values 0.5 with a bias where `is_sum`, of bytes that no product writes otherwise.
std::vector<float> multiply(const CpuPackedWeight& weight, const std::vector<float>& x, int64_t rows,
                            const LinearChoice& choice, bool is_sum, ThreadPool& pool, const KernelTable& kernels) {
  ActivationRows q;
  quantize_activations(x.data(), rows, weight.cols(), weight.input_type(), pool, kernels, q);
  const LinearInput input{x.data(), nullptr, &q, rows, weight.cols(), &choice};
  std::vector<float> y(static_cast<size_t>(rows * weight.rows()), 0.5f);
  const std::vector<float> bias(static_cast<size_t>(weight.rows()), 0.25f);
  if (!is_sum) std::memset(y.data(), 0xff, y.size() * sizeof(float));
  run_product(weight, input, {&weight, is_sum ? bias.data() : nullptr, y.data(), weight.rows(), is_sum}, pool, kernels);
  return y;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

std::vector<LinearChoice> all_choices() {
  std::vector<LinearChoice> all = {LinearChoice()};
  for (const Unpack unpack : {Unpack::kRegisters, Unpack::kMemory}) {
    for (const int32_t run_pairs : {1, 3, LinearChoice::kMostRunPairs}) {
      for (const int32_t task_rows : {12, 24, 60, static_cast<int32_t>(kOutlierGroupRows)}) {
        REQUIRE(LinearChoice{unpack, run_pairs, task_rows}.is_valid());
        all.push_back({unpack, run_pairs, task_rows});
      }
    }
  }
  return all;
}

void check(DType dtype, ActivationType type, int64_t rows, bool is_sum) {
  constexpr int64_t kOut = 141, kIn = 768;  // five pairs of strips, the last in part; two chunks
  ThreadPool one(1), three(3);
  const auto weight = make_weight(dtype, kOut, kIn, one, type);
  const std::vector<float> x = random_rows(rows, kIn);
  const std::vector<float> expected = multiply(*weight, x, rows, {}, is_sum, one, kernel_table(0));
  for (const Isa isa : available_isas()) {
    for (const LinearChoice& choice : all_choices()) {
      INFO(dtype_name(dtype) << " on " << isa_name(isa) << ", " << rows << " rows, unpack "
                             << static_cast<int>(choice.unpack) << ", " << choice.run_pairs << " pairs, "
                             << choice.task_rows << " rows of a task");
      CHECK(same_bits(
          multiply(*weight, x, rows, choice, is_sum, rows % 2 ? one : three, kernel_table(static_cast<int32_t>(isa))),
          expected));
    }
  }
}

}  // namespace

TEST_CASE("every choice has the same bits for every format") {
  for (int32_t i = 0; i < static_cast<int32_t>(DType::kCount); ++i) {
    const auto dtype = static_cast<DType>(i);
    if (!is_block_format(dtype) || is_scaled_float(dtype)) continue;
    for (const int64_t rows : {1, 7, 50}) check(dtype, ActivationType::kInt8, rows, false);
  }
}

TEST_CASE("every choice has the same bits where rows are shared out over tiles of other sizes") {
  for (const int64_t rows : {13, 14, 15, 19, 20, 25}) {
    check(DType::kQ4_K, ActivationType::kInt8, rows, false);
    check(DType::kQ6_K, ActivationType::kInt16, rows, false);
  }
}

TEST_CASE("every choice has the same bits for many rows, two terms, a bias and a sum") {
  for (const DType dtype : {DType::kQ4_K, DType::kQ6_K, DType::kQ8_0, DType::kQ4_0, DType::kIQ3_S}) {
    check(dtype, ActivationType::kInt8, 150, true);
    check(dtype, ActivationType::kInt16, 61, true);
  }
  for (const int64_t rows : {528, 529, 1100}) check(DType::kQ4_K, ActivationType::kInt8, rows, false);
}

TEST_CASE("what a weight proposes is valid, without repetition and enough to choose from") {
  ThreadPool pool(2);
  for (const DType dtype : {DType::kQ4_K, DType::kQ2_K}) {
    const auto weight = make_weight(dtype, 4096, 512, pool);
    for (const int64_t rows : {1, 2, 3, 8, 48, 64, 128, 200, 512, 4000}) {
      const std::vector<LinearChoice> choices = weight->choices(rows, 2);
      for (size_t i = 0; i < choices.size(); ++i) {
        CHECK(choices[i].is_valid());
        for (size_t j = 0; j < i; ++j) CHECK(!(choices[i] == choices[j]));
      }
      if (dtype == DType::kQ4_K) CHECK(choices.size() >= 2);
    }
  }
}

TEST_CASE("numbers of rows are told apart up to powers of two") {
  CHECK(row_bucket(1) == 0);
  CHECK(row_bucket(2) == 1);
  CHECK(row_bucket(3) == 2);
  CHECK(row_bucket(4) == 2);
  CHECK(row_bucket(5) == 3);
  CHECK(row_bucket(256) == 8);
  CHECK(row_bucket(257) == 9);
  CHECK(row_bucket(512) == 9);
  CHECK(row_bucket(100000) == 9);
}
