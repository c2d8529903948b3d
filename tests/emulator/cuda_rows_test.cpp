// Norm, embedding and activations against the scalar reference, and what they move.
#include <cmath>
#include <random>

#include "emulated.h"
#include "emulator/sync_points.h"
#include "kernels/row_kernels.h"
#include "ops/backend.h"
#include "ops/reference_backend.h"
#include "tensor/half.h"

namespace headrace::emulator {
namespace {

// The largest difference in units of what `roundings` float32 roundings and `absolute` allow.
double worst(const std::vector<float>& out, const std::vector<float>& expected, double roundings,
             double absolute = 0.0) {
  double worst = 0.0;
  for (size_t i = 0; i < out.size(); ++i) {
    const double value = static_cast<double>(expected[i]);
    const double bound = std::fabs(value) * roundings * kUnit + absolute;
    const double difference = std::fabs(static_cast<double>(out[i]) - value);
    worst = difference <= bound ? std::max(worst, difference / std::max(bound, 1e-300)) : INFINITY;
  }
  return worst;
}

struct NormCase {
  std::vector<float> x, delta, weight;
  int64_t tokens, size;
};

NormCase norm_case(int64_t tokens, int64_t size) {
  const auto count = static_cast<size_t>(tokens * size);
  return {random_floats(count, 1, 3.0f), random_floats(count, 2), random_floats(static_cast<size_t>(size), 3), tokens,
          size};
}

std::vector<float> run(const NormCase& c, bool with_delta, std::vector<float>* sum = nullptr) {
  DeviceArray<float> x(c.x), delta(c.delta), weight(c.weight);
  DeviceArray<float> out(c.x.size());
  REQUIRE(cuda::rms_norm(
              {x.get(), with_delta ? delta.get() : nullptr, weight.get(), c.tokens, c.size, 1e-5f, 1.0f, out.get()},
              nullptr) == cudaSuccess);
  if (sum != nullptr) *sum = x.read();
  return out.read();
}

std::vector<float> expected(const NormCase& c, bool with_delta) {
  std::vector<float> x = c.x;
  for (size_t i = 0; with_delta && i < x.size(); ++i) x[i] += c.delta[i];
  make_reference_backend()->rms_norm({x.data(), c.weight.data(), c.tokens, c.size, 1e-5f, 1.0f, x.data()});
  return x;
}

// A thread's chain of squares, the block's tree, the root and products; and the weight's sum with its offset, which may
// cancel: rounding 1 + w to float32 is an error of 2^-24 of at most 5.
double norm_roundings(int64_t size) { return static_cast<double>(size) / 256.0 + 30.0; }

}  // namespace

TEST_CASE("RMS norm agrees with the reference under every schedule") {
  const NormCase c = norm_case(3, 132);
  under_schedules(schedules(), [&] {
    CHECK(worst(run(c, false), expected(c, false), norm_roundings(c.size)) <= 1.0);
    std::vector<float> sum;
    CHECK(worst(run(c, true, &sum), expected(c, true), norm_roundings(c.size)) <= 1.0);
    for (size_t i = 0; i < sum.size(); ++i) CHECK(sum[i] == c.x[i] + c.delta[i]);
  });
}

TEST_CASE("RMS norm of odd and large sizes, and of a row alone as among others") {
  for (const int64_t size : {4, 576, 1024, 1028, 4096, 5120, 16384}) {
    const NormCase c = norm_case(3, size);
    INFO("size " << size);
    const std::vector<float> out = run(c, true);
    CHECK(worst(out, expected(c, true), norm_roundings(size)) <= 1.0);
    NormCase last = norm_case(3, size);
    last.tokens = 1;
    last.x.erase(last.x.begin(), last.x.begin() + 2 * size);
    last.delta.erase(last.delta.begin(), last.delta.begin() + 2 * size);
    CHECK(run(last, true) == std::vector<float>(out.begin() + 2 * size, out.end()));
    CHECK(to_string(take_findings()).empty());
  }
  take_counters();
  CHECK(cuda::rms_norm({nullptr, nullptr, nullptr, 1, 6, 0.0f, 0.0f, nullptr}, nullptr) == cudaErrorInvalidValue);
}

TEST_CASE("RMS norm moves every byte once and meets no bank twice; its barrier is needed") {
  const NormCase c = norm_case(64, 4096);
  run(c, true);
  const std::vector<Counters> counters = take_counters();
  REQUIRE(counters.size() == 1);
  INFO(to_string(counters[0]));
  const double ideal = 64.0 * 4096 * (4 + 4 + 4 + 4) + 4096 * 4;
  CHECK(static_cast<double>(counters[0].bytes_read + counters[0].bytes_written) <= 1.05 * ideal);
  CHECK(counters[0].global_loads.sectors == counters[0].global_loads.ideal_sectors);
  CHECK(counters[0].global_stores.sectors == counters[0].global_stores.ideal_sectors);
  CHECK(counters[0].conflicts() == 0);
  const NormCase small = norm_case(2, 64);
  const std::vector<float> right = run(small, true);
  const std::vector<Mutant> mutants = run_mutants([&] { return run(small, true) == right; });
  INFO(to_string(mutants));
  CHECK(mutants.size() == 1);
  for (const Mutant& mutant : mutants) CHECK(mutant.caught);
  take_counters();
}

TEST_CASE("Embedding gathers rows") {
  constexpr int64_t kVocab = 11, kSize = 515;
  std::vector<uint16_t> table;
  for (const float x : random_floats(kVocab * kSize, 4)) table.push_back(float_to_half(x));
  const std::vector<int32_t> ids = {3, 0, 10, 3};
  under_schedules(schedules(), [&] {
    DeviceArray<uint16_t> device_table(table);
    DeviceArray<int32_t> device_ids(ids);
    DeviceArray<float> out(ids.size() * kSize);
    REQUIRE(cuda::embed({device_table.get(), cuda::FloatType::kF16, device_ids.get(), 4, kSize, 1.5f, out.get()},
                        nullptr) == cudaSuccess);
    const std::vector<float> values = out.read();
    for (size_t t = 0; t < ids.size(); ++t) {
      for (size_t i = 0; i < kSize; ++i) {
        CHECK(values[t * kSize + i] == 1.5f * half_to_float(table[static_cast<size_t>(ids[t]) * kSize + i]));
      }
    }
  });
}

TEST_CASE("Gated activations agree with the reference") {
  constexpr int64_t kCount = 2051;
  const std::vector<float> gate = random_floats(kCount, 5, 4.0f), up = random_floats(kCount, 6, 4.0f);
  for (const Activation activation : {Activation::kSilu, Activation::kGeluTanh, Activation::kGeluErf, Activation::kRelu,
                                      Activation::kClampedSwish, Activation::kRelu2, Activation::kSigmoid,
                                      Activation::kTanh, Activation::kGeluSigmoid, Activation::kClampedSilu}) {
    for (const bool with_up : {true, false}) {
      INFO("activation " << static_cast<int>(activation) << " up " << with_up);
      GatedActivationParams p{gate.data(), with_up ? up.data() : nullptr, kCount, activation, nullptr, 3.0f};
      std::vector<float> expected_values(kCount);
      p.out = expected_values.data();
      reference_gated_activation(p);
      under_schedules(schedules(activation == Activation::kSilu ? 20 : 0), [&] {
        DeviceArray<float> device_gate(gate), device_up(up);
        DeviceArray<float> out(kCount);
        REQUIRE(cuda::gated_activation(
                    {device_gate.get(), with_up ? device_up.get() : nullptr, kCount, activation, 3.0f, out.get()},
                    nullptr) == cudaSuccess);
        // 1 + tanh and erfc lose their leading bits for a large negative gate, where the result is near zero: an
        // absolute error of a few units of |gate up|, at most 16 * 16, covers it.
        CHECK(worst(out.read(), expected_values, 16, 8 * kUnit * 256) <= 1.0);
      });
    }
  }
}

TEST_CASE("Sums, factors and soft caps agree with the reference") {
  constexpr int64_t kCount = 515;
  const std::vector<float> x = random_floats(kCount, 7, 20.0f), columns = random_floats(5, 8);
  const auto reference = make_reference_backend();
  std::vector<float> sums = x, scaled = x, by_column = x, capped = x;
  reference->add({x.data(), sums.data(), kCount});
  reference->scale({scaled.data(), kCount, 0.3f});
  reference->scale({by_column.data(), kCount, 0.3f, columns.data(), 5});
  reference->softcap({capped.data(), kCount, 30.0f});
  under_schedules(schedules(4), [&] {
    DeviceArray<float> values(x), other(x), of_columns(columns);
    REQUIRE(cuda::add(values.get(), other.get(), kCount, nullptr) == cudaSuccess);
    CHECK(other.read() == sums);
    other.write(x);
    REQUIRE(cuda::scale(other.get(), kCount, 0.3f, nullptr, 0, nullptr) == cudaSuccess);
    CHECK(other.read() == scaled);
    other.write(x);
    REQUIRE(cuda::scale(other.get(), kCount, 0.3f, of_columns.get(), 5, nullptr) == cudaSuccess);
    CHECK(other.read() == by_column);
    other.write(x);
    REQUIRE(cuda::softcap(other.get(), kCount, 30.0f, nullptr) == cudaSuccess);
    CHECK(worst(other.read(), capped, 6) <= 1.0);
  });
}

TEST_CASE("Rows become 16-bit values, scaled where float16 would overflow") {
  constexpr int64_t kRows = 3, kSize = 1028;
  std::vector<float> x = random_floats(kRows * kSize, 9);
  x[kSize + 3] = -1e6f;      // the second row's greatest magnitude, 2^19.9
  x[2 * kSize] = 32767.99f;  // as much as is left alone
  for (const cuda::FloatType type : {cuda::FloatType::kF16, cuda::FloatType::kBF16}) {
    const bool is_half = type == cuda::FloatType::kF16;
    under_schedules(schedules(is_half ? 20 : 2), [&] {
      DeviceArray<float> values(x), scales(kRows);
      DeviceArray<uint16_t> out(x.size());
      REQUIRE(cuda::narrow_rows({values.get(), kRows, kSize, type, out.get(), scales.get()}, nullptr) == cudaSuccess);
      const std::vector<float> factors = scales.read();
      CHECK(factors == std::vector<float>{1.0f, is_half ? 32.0f : 1.0f, 1.0f});
      const std::vector<uint16_t> bits = out.read();
      bool equal = true;
      for (size_t i = 0; i < bits.size(); ++i) {
        const float value = x[i] / factors[i / kSize];
        equal = equal && bits[i] == (is_half ? float_to_half(value) : float_to_bfloat16(value));
      }
      CHECK(equal);
    });
  }
}

TEST_CASE("The barrier between a row's maximum and its values is needed") {
  std::vector<float> x = random_floats(512, 10, 1e5f);
  const auto run_once = [&] {
    DeviceArray<float> values(x), scales(1);
    DeviceArray<uint16_t> out(x.size());
    REQUIRE(cuda::narrow_rows({values.get(), 1, 512, cuda::FloatType::kF16, out.get(), scales.get()}, nullptr) ==
            cudaSuccess);
    return out.read();
  };
  const std::vector<uint16_t> right = run_once();
  const std::vector<Mutant> mutants = run_mutants([&] { return run_once() == right; });
  INFO(to_string(mutants));
  CHECK(mutants.size() == 1);
  for (const Mutant& mutant : mutants) CHECK(mutant.caught);
  take_counters();
}

}  // namespace headrace::emulator
