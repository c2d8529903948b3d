// The ops of several residual streams and of gates that are mostly zero against the reference, and their independence of
// neighbours and threads.
#include "op_cases.h"

#include <algorithm>

namespace headrace::test {
namespace {

// Every row by itself and all together, with one thread and with three, in the same bits; against float64.
template <class Run>
void check(const Run& run, int64_t rows, int64_t width, double tolerance) {
  const auto reference = make_reference_backend();
  const std::vector<float> expected = run(*reference, 0, rows);
  const std::vector<double> bound(expected.size(), tolerance);
  for (Isa isa : available_isas()) {
    INFO(isa_name(isa));
    const auto one = cpu_backend(isa, 1), three = cpu_backend(isa, 3);
    const std::vector<float> out = run(*one, 0, rows);
    CHECK(worst(out, expected, bound) <= 1.0);
    CHECK(same_bits(run(*three, 0, rows), out));
    for (int64_t row = 0; row < rows; ++row) {
      const std::vector<float> alone = run(*three, row, 1);
      REQUIRE(same_bits(alone, {out.begin() + row * width, out.begin() + (row + 1) * width}));
    }
  }
}

}  // namespace

TEST_CASE("Streams are mixed by each row's coefficients") {
  for (const int64_t size : {1, 7, 64, 200}) {
    for (const bool accumulate : {false, true}) {
      constexpr int64_t kRows = 9, kIn = 4, kOut = 3;
      INFO(size << " " << accumulate);
      const std::vector<float> x = random_floats(static_cast<size_t>(kIn * kRows * size), 1);
      const std::vector<float> coefficients = random_floats(static_cast<size_t>(kRows * kOut * kIn), 2);
      const std::vector<float> before = random_floats(static_cast<size_t>(kRows * kOut * size), 3);
      // x is stream by stream, out row by row.
      const auto run = [&](Backend& backend, int64_t first, int64_t rows) {
        std::vector<float> out(before.begin() + first * kOut * size, before.begin() + (first + rows) * kOut * size);
        MixStreamsParams p;
        p.x = x.data() + first * size;
        p.x_row_stride = size;
        p.x_stream_stride = kRows * size;
        p.num_in = kIn;
        p.coefficients = coefficients.data() + first * kOut * kIn;
        p.out = out.data();
        p.out_row_stride = kOut * size;
        p.out_stream_stride = size;
        p.num_out = kOut;
        p.num_tokens = rows;
        p.size = size;
        p.accumulate = accumulate;
        backend.mix_streams(p);
        return out;
      };
      // Values below 5 in magnitude: a product and a sum round by half a unit each, of sums below 25 kIn + 5.
      check(run, kRows, kOut * size, 2 * kIn * (25 * kIn + 5) * kUnit);
    }
  }
}

namespace {

// StreamGatesParams in the words of its definition, the map as [in][out] until the end.
std::vector<float> defined_gates(const float* x, const std::vector<float>& base, const std::vector<float>& scale,
                                 size_t n, int iterations, double eps) {
  const auto y = [&](size_t part, size_t i) {
    return static_cast<double>(scale[part]) * static_cast<double>(x[i]) + static_cast<double>(base[i]);
  };
  const auto logistic = [](double value) { return 1.0 / (1.0 + std::exp(-value)); };
  std::vector<float> out;
  for (size_t i = 0; i < n; ++i) out.push_back(static_cast<float>(logistic(y(0, i)) + eps));
  for (size_t i = 0; i < n; ++i) out.push_back(static_cast<float>(2 * logistic(y(1, n + i))));
  std::vector<std::vector<double>> a(n, std::vector<double>(n));
  for (size_t i = 0; i < n; ++i) {
    double sum = 0.0;
    for (size_t o = 0; o < n; ++o) sum += std::exp(y(2, 2 * n + i * n + o));
    for (size_t o = 0; o < n; ++o) a[i][o] = std::exp(y(2, 2 * n + i * n + o)) / sum + eps;
  }
  for (int iteration = 0; iteration < iterations; ++iteration) {
    for (size_t i = 0; i < n && iteration > 0; ++i) {
      double sum = eps;
      for (size_t o = 0; o < n; ++o) sum += a[i][o];
      for (size_t o = 0; o < n; ++o) a[i][o] /= sum;
    }
    for (size_t o = 0; o < n; ++o) {
      double sum = eps;
      for (size_t i = 0; i < n; ++i) sum += a[i][o];
      for (size_t i = 0; i < n; ++i) a[i][o] /= sum;
    }
  }
  for (size_t o = 0; o < n; ++o) {
    for (size_t i = 0; i < n; ++i) out.push_back(static_cast<float>(a[i][o]));
  }
  return out;
}

// enter, leave and map of each row, one after the other.
std::vector<float> run_gates(Backend& backend, const float* x, int64_t rows, const std::vector<float>& base,
                             const std::vector<float>& scale, int32_t n, int iterations, float eps) {
  const auto count = static_cast<size_t>(rows * n);
  std::vector<float> enter(count), leave(count), map(count * static_cast<size_t>(n)), out;
  backend.stream_gates(
      {x, base.data(), scale.data(), n, iterations, eps, rows, enter.data(), leave.data(), map.data()});
  for (int64_t row = 0; row < rows; ++row) {
    for (const auto& [values, width] : {std::pair(&enter, n), std::pair(&leave, n), std::pair(&map, n * n)}) {
      out.insert(out.end(), values->begin() + row * width, values->begin() + (row + 1) * width);
    }
  }
  return out;
}

}  // namespace

TEST_CASE("Gates of streams are what their definition says") {
  for (const int32_t n : {1, 2, 4, 16}) {
    for (const int iterations : {1, 3, 20}) {
      constexpr int64_t kRows = 7;
      const int64_t width = int64_t{n} * (n + 2);
      INFO(n << " streams, " << iterations << " iterations");
      const std::vector<float> x = random_floats(static_cast<size_t>(kRows * width), 21);
      const std::vector<float> base = random_floats(static_cast<size_t>(width), 22), scale = {0.7f, 1.5f, -1.2f};
      constexpr float kEps = 1e-6f;
      const auto run = [&](Backend& backend, int64_t first, int64_t rows) {
        return run_gates(backend, x.data() + first * width, rows, base, scale, n, iterations, kEps);
      };
      check(run, kRows, width, 1e-300);  // one arithmetic on every backend
      const std::vector<float> out = run(*make_reference_backend(), 0, kRows);
      std::vector<float> expected;
      for (int64_t row = 0; row < kRows; ++row) {
        const std::vector<float> gates = defined_gates(x.data() + row * width, base, scale, static_cast<size_t>(n),
                                                       iterations, static_cast<double>(kEps));
        expected.insert(expected.end(), gates.begin(), gates.end());
      }
      // Two float64 computations of one float32 of at most 2.
      CHECK(worst(out, expected, std::vector<double>(out.size(), 4 * kUnit)) <= 1.0);
      // What comes into a stream adds up to one: its sums were the last to be divided.
      for (int64_t row = 0; row < kRows; ++row) {
        for (int64_t o = 0; o < n; ++o) {
          double sum = 0.0;
          for (int64_t i = 0; i < n; ++i)
            sum += static_cast<double>(out[static_cast<size_t>(row * width + 2 * n + o * n + i)]);
          CHECK(sum == Approx(1.0).margin(1e-5));
        }
      }
    }
  }
}

TEST_CASE("The first part of the gates stands by itself") {
  const std::vector<float> x = {0.0f, 2.0f, -30.0f, NAN}, base = {0.5f, 0.0f}, scale = {1.0f};
  std::vector<float> enter(4);
  StreamGatesParams p;
  p.x = x.data();
  p.base = base.data();
  p.scale = scale.data();
  p.num_streams = 2;
  p.eps = 0.25f;
  p.num_tokens = 2;
  p.enter = enter.data();
  for (const auto& backend : {make_reference_backend(), cpu_backend(kWeakestIsa, 1)}) {
    backend->stream_gates(p);
    CHECK(static_cast<double>(enter[0]) == Approx(0.25 + 1.0 / (1.0 + std::exp(-0.5))));
    CHECK(static_cast<double>(enter[1]) == Approx(0.25 + 1.0 / (1.0 + std::exp(-2.0))));
    CHECK(static_cast<double>(enter[2]) == Approx(0.25));
    CHECK(std::isnan(enter[3]));
  }
}

TEST_CASE("Rows are brought to another row's magnitude") {
  for (const int64_t size : {1, 5, 64, 300}) {
    constexpr int64_t kRows = 6;
    std::vector<float> x = random_floats(static_cast<size_t>(kRows * size), 4);
    std::fill_n(x.begin(), size, 1e-4f);  // below the floor
    const std::vector<float> like = random_floats(static_cast<size_t>(kRows * size), 5);
    const auto run = [&](Backend& backend, int64_t first, int64_t rows) {
      std::vector<float> out(x.begin() + first * size, x.begin() + (first + rows) * size);
      backend.match_magnitude({out.data(), like.data() + first * size, rows, size, 1e-5f});
      return out;
    };
    // No value exceeds sqrt(size) times its row's magnitude, which is below 5; factor and product round once each.
    check(run, kRows, size, 3 * 5 * std::sqrt(static_cast<double>(size)) * kUnit);
  }
  std::vector<float> x = {3e-4f, -4e-4f};
  const std::vector<float> like = {1.0f, -1.0f};
  make_reference_backend()->match_magnitude({x.data(), like.data(), 1, 2, 1e-2f});
  CHECK(x[0] == Approx(3e-3));
  CHECK(x[1] == Approx(-4e-3));
}

TEST_CASE("Gates below a row's cutoff become zero, the others what lies above it") {
  for (const int64_t size : {1, 9, 64, 1000}) {
    for (const float factor : {-0.5f, 0.0f, 1.2815516f}) {
      constexpr int64_t kRows = 5;
      const std::vector<float> x = random_floats(static_cast<size_t>(kRows * size), 6);
      const auto run = [&](Backend& backend, int64_t first, int64_t rows) {
        std::vector<float> out(x.begin() + first * size, x.begin() + (first + rows) * size);
        backend.cut_gates({out.data(), rows, size, factor});
        return out;
      };
      // The cutoff rounds once, and the difference: of values below 16.
      check(run, kRows, size, 32 * kUnit);
    }
  }
  std::vector<float> x = {1.0f, 3.0f, NAN, 2.0f};
  make_reference_backend()->cut_gates({x.data(), 1, 2, 0.0f});
  CHECK(x[0] == 0.0f);
  CHECK(x[1] == 1.0f);
  for (const auto& backend : {make_reference_backend(), cpu_backend(kWeakestIsa, 1)}) {
    std::vector<float> poisoned = {1.0f, NAN, 2.0f};
    backend->cut_gates({poisoned.data(), 1, 3, 1.0f});
    for (const float value : poisoned) CHECK(std::isnan(value));
  }
}

TEST_CASE("Columns are scaled by factors of their own") {
  constexpr int64_t kRows = 7, kColumns = 13;
  const std::vector<float> x = random_floats(kRows * kColumns, 7), factors = random_floats(kColumns, 8);
  const auto run = [&](Backend& backend, int64_t first, int64_t rows) {
    std::vector<float> out(x.begin() + first * kColumns, x.begin() + (first + rows) * kColumns);
    backend.scale({out.data(), rows * kColumns, 0.5f, factors.data(), kColumns});
    return out;
  };
  check(run, kRows, kColumns, 0.0);
}

TEST_CASE("Queries rotate without keys to store") {
  constexpr int64_t kRows = 3, kHeads = 2, kDim = 8;
  const std::vector<float> q = random_floats(kRows * kHeads * kDim, 9), inv_freq = random_floats(kDim / 2, 10);
  const std::vector<int32_t> positions = {0, 5, 9};
  for (Isa isa : available_isas()) {
    const auto backend = cpu_backend(isa, 2);
    for (Backend* each : {backend.get()}) {
      std::vector<float> alone = q, stored = q, keys = random_floats(kRows * kDim, 11);
      std::vector<std::byte> cache(4096);
      const std::vector<int64_t> slots = {0, 5, 9};
      RopeStoreParams p;
      p.q = alone.data();
      p.num_tokens = kRows;
      p.num_heads = kHeads;
      p.positions = positions.data();
      p.inv_freq = inv_freq.data();
      p.rotary_dim = kDim;
      p.layout = {KvDType::kF32, 1, kDim, 16};
      each->rope_and_store_kv(p);
      p.q = stored.data();
      p.k = keys.data();
      p.v = keys.data();
      p.cache = cache.data();
      p.slots = slots.data();
      each->rope_and_store_kv(p);
      CHECK(same_bits(alone, stored));
    }
  }
}

}  // namespace headrace::test
