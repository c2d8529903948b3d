// Norm, activations, addition, softcap and embedding against the reference.
#include "op_cases.h"

#include <algorithm>

namespace headrace::test {
namespace {

// `relative` of the expected magnitude plus `absolute`.
std::vector<double> near(const std::vector<float>& expected, double relative, double absolute) {
  std::vector<double> out;
  for (float x : expected) out.push_back(relative * std::fabs(static_cast<double>(x)) + absolute);
  return out;
}

}  // namespace

TEST_CASE("RMS norm agrees with the reference, row by row") {
  const auto reference = make_reference_backend();
  for (int64_t size : {1, 7, 16, 20, 64, 100, 576, 2048, 5000}) {
    for (int64_t tokens : {1, 2, 9, 70}) {
      for (float offset : {0.0f, 1.0f}) {
        const std::vector<float> x = random_floats(static_cast<size_t>(size * tokens), 1, 3.0f);
        const std::vector<float> weight = random_floats(static_cast<size_t>(size), 2);
        const auto run = [&](Backend& backend, int64_t begin, int64_t end) {
          std::vector<float> out(x.begin() + begin * size, x.begin() + end * size);
          RmsNormParams p{out.data(), weight.data(), end - begin, size, 1e-5f, offset, out.data()};  // in place
          backend.rms_norm(p);
          return out;
        };
        const std::vector<float> expected = run(*reference, 0, tokens);
        // A lane of the sum adds size / 64 squares; its relative error is halved by the root. The weight's sum with
        // the offset may cancel: an absolute term.
        const double relative = (static_cast<double>(size) / 64.0 + 10.0) * kUnit;
        const double absolute = 2.0 * kUnit * 40.0;
        for (Isa isa : available_isas()) {
          const auto one = cpu_backend(isa, 1), three = cpu_backend(isa, 3);
          const std::vector<float> out = run(*one, 0, tokens);
          INFO(isa_name(isa) << " size " << size << " tokens " << tokens);
          CHECK(worst(out, expected, near(expected, relative, offset == 0.0f ? 1e-38 : absolute)) <= 1.0);
          CHECK(same_bits(run(*three, 0, tokens), out));
          std::vector<float> alone;
          for (int64_t t = 0; t < tokens; ++t) {
            const std::vector<float> row = run(*one, t, t + 1);
            alone.insert(alone.end(), row.begin(), row.end());
          }
          CHECK(same_bits(alone, out));
        }
      }
    }
  }
}

TEST_CASE("Layer norm agrees with the reference, row by row and group by group") {
  const auto reference = make_reference_backend();
  for (int64_t size : {1, 7, 16, 20, 100, 576, 5000}) {
    for (int64_t groups : {1, 3}) {
      for (bool with_bias : {false, true}) {
        constexpr int64_t kTokens = 9;
        const int64_t row = size * groups;
        std::vector<float> x = random_floats(static_cast<size_t>(row * kTokens), 1, 3.0f);
        for (float& value : x) value += 20.0f;  // a mean well above the spread
        const std::vector<float> weight = random_floats(static_cast<size_t>(row), 2);
        const std::vector<float> bias = random_floats(static_cast<size_t>(row), 3);
        const auto run = [&](Backend& backend, int64_t begin, int64_t end) {
          std::vector<float> out(x.begin() + begin * row, x.begin() + end * row);
          LayerNormParams p;
          p.x = p.out = out.data();  // in place
          p.weight = weight.data();
          p.bias = with_bias ? bias.data() : nullptr;
          p.num_tokens = end - begin;
          p.size = size;
          p.groups = groups;
          p.eps = 1e-5f;
          backend.layer_norm(p);
          return out;
        };
        const std::vector<float> expected = run(*reference, 0, kTokens);
        // The mean's error, relative to a value of 32, is divided by the spread of 3 (size 1: by sqrt(eps), but the
        // mean is exact there), and weighs at most 6 sigma.
        const double chain = static_cast<double>(size) / 64.0 + 10.0;
        const double absolute = chain * kUnit * 32.0 / 1.5 * 6.0;
        for (Isa isa : available_isas()) {
          const auto one = cpu_backend(isa, 1), three = cpu_backend(isa, 3);
          const std::vector<float> out = run(*one, 0, kTokens);
          INFO(isa_name(isa) << " size " << size << " groups " << groups);
          CHECK(worst(out, expected, near(expected, chain * kUnit, absolute)) <= 1.0);
          CHECK(same_bits(run(*three, 0, kTokens), out));
          std::vector<float> alone;
          for (int64_t t = 0; t < kTokens; ++t) {
            const std::vector<float> one_row = run(*one, t, t + 1);
            alone.insert(alone.end(), one_row.begin(), one_row.end());
          }
          CHECK(same_bits(alone, out));
        }
      }
    }
  }
}

TEST_CASE("An activation without a second factor is the one with a factor of one") {
  const std::vector<float> x = random_floats(20000, 1, 4.0f), ones(x.size(), 1.0f);
  std::vector<std::unique_ptr<Backend>> backends;
  backends.push_back(make_reference_backend());
  for (Isa isa : available_isas()) backends.push_back(cpu_backend(isa, 2));
  for (const auto& backend : backends) {
    for (const int activation : {0, 1, 2, 3, 4, 6, 7}) {
      std::vector<float> plain(x.size()), gated(x.size());
      const auto count = static_cast<int64_t>(x.size());
      backend->gated_activation({x.data(), nullptr, count, static_cast<Activation>(activation), plain.data()});
      backend->gated_activation({x.data(), ones.data(), count, static_cast<Activation>(activation), gated.data()});
      CHECK(same_bits(plain, gated));
    }
  }
}

TEST_CASE("Activations agree with the reference over their whole range") {
  const auto reference = make_reference_backend();
  std::vector<float> gate;
  for (float x = -110.0f; x < 110.0f; x += 0.0137f) gate.push_back(x);
  for (float x = 1e-30f; x < 1.0f; x *= 3.0f) gate.push_back(x), gate.push_back(-x);
  gate.push_back(0.0f);
  while (gate.size() < 40001) gate.push_back(0.5f);  // several tasks and a tail
  const std::vector<float> up = random_floats(gate.size(), 3);
  for (Activation activation :
       {Activation::kSilu, Activation::kGeluTanh, Activation::kGeluErf, Activation::kRelu, Activation::kRelu2,
        Activation::kSigmoid, Activation::kTanh, Activation::kGeluSigmoid}) {
    const auto run = [&](Backend& backend, size_t begin, size_t end) {
      std::vector<float> out(gate.begin() + static_cast<int64_t>(begin), gate.begin() + static_cast<int64_t>(end));
      GatedActivationParams p;
      p.gate = out.data();  // in place
      p.up = up.data() + begin;
      p.num_elements = static_cast<int64_t>(end - begin);
      p.activation = activation;
      p.out = out.data();
      backend.gated_activation(p);
      return out;
    };
    const std::vector<float> expected = run(*reference, 0, gate.size());
    // exp errs by 2e-7; in the tails its argument's rounding adds |u| 2^-24 relative to values that are small
    // themselves, which the absolute term (of |x up|) covers.
    std::vector<double> bound;
    for (size_t i = 0; i < gate.size(); ++i) {
      const double product = std::fabs(static_cast<double>(gate[i]) * static_cast<double>(up[i]));
      bound.push_back(1e-6 * std::fabs(static_cast<double>(expected[i])) + 2e-7 * std::min(product, 1.0) + 1e-36);
    }
    for (Isa isa : available_isas()) {
      INFO(isa_name(isa) << " activation " << static_cast<int>(activation));
      const auto one = cpu_backend(isa, 1), three = cpu_backend(isa, 3);
      const std::vector<float> out = run(*one, 0, gate.size());
      CHECK(worst(out, expected, bound) <= 1.0);
      CHECK(same_bits(run(*three, 0, gate.size()), out));
      for (size_t begin : {size_t{1}, size_t{17}, size_t{16383}}) {
        const std::vector<float> part = run(*one, begin, begin + 37);
        CHECK(std::memcmp(part.data(), out.data() + begin, part.size() * sizeof(float)) == 0);
      }
    }
  }
}

TEST_CASE("Clamped activations agree with the reference on both sides of the limit") {
  std::vector<float> gate;
  for (float x = -30.0f; x < 30.0f; x += 0.0137f) gate.push_back(x);
  const std::vector<float> up = random_floats(gate.size(), 3, 4.0f);
  for (const Activation activation : {Activation::kClampedSwish, Activation::kClampedSilu}) {
    for (const float limit : {0.5f, 7.0f, 10.0f}) {
      const auto run = [&](Backend& backend) {
        std::vector<float> out(gate.size());
        backend.gated_activation(
            {gate.data(), up.data(), static_cast<int64_t>(gate.size()), activation, out.data(), limit});
        return out;
      };
      const std::vector<float> expected = run(*make_reference_backend());
      for (size_t i = 0; i < gate.size() && activation == Activation::kClampedSilu; ++i) {
        const double g = std::min(static_cast<double>(gate[i]), static_cast<double>(limit));
        const double u =
            std::clamp(static_cast<double>(up[i]), -static_cast<double>(limit), static_cast<double>(limit));
        REQUIRE(static_cast<double>(expected[i]) == Approx(g / (1.0 + std::exp(-g)) * u).epsilon(2 * kUnit));
      }
      // As above; the sum of up and one rounds too.
      std::vector<double> bound;
      for (const float value : expected) bound.push_back(1e-6 * std::fabs(static_cast<double>(value)) + 2e-7);
      for (Isa isa : available_isas()) CHECK(worst(run(*cpu_backend(isa, 2)), expected, bound) <= 1.0);
    }
  }
}

TEST_CASE("A NaN in an activation is seen") {
  for (Isa isa : available_isas()) {
    const auto backend = cpu_backend(isa, 1);
    for (const int activation : {0, 1, 2, 3, 4, 6, 7}) {
      std::vector<float> gate(20, 1.0f), up(20, 1.0f);
      gate[3] = NAN;
      gate[18] = NAN;
      backend->gated_activation({gate.data(), up.data(), 20, static_cast<Activation>(activation), gate.data()});
      CHECK(std::isnan(gate[3]));
      CHECK(std::isnan(gate[18]));
      CHECK(std::isfinite(gate[4]));
    }
    std::vector<float> x(20, NAN);
    backend->softcap({x.data(), 20, 30.0f});
    CHECK(std::all_of(x.begin(), x.end(), [](float value) { return std::isnan(value); }));
  }
}

TEST_CASE("Softcap, scale and addition agree with the reference") {
  const auto reference = make_reference_backend();
  std::vector<float> x;
  for (float value = -200.0f; value < 200.0f; value += 0.0219f) x.push_back(value);
  for (float value = 1e-20f; value < 1.0f; value *= 2.0f) x.push_back(value), x.push_back(-value);
  const std::vector<float> other = random_floats(x.size(), 1);
  for (Isa isa : available_isas()) {
    INFO(isa_name(isa));
    const auto backend = cpu_backend(isa, 2);
    std::vector<float> a = x, b = x;
    reference->softcap({a.data(), static_cast<int64_t>(a.size()), 30.0f});
    backend->softcap({b.data(), static_cast<int64_t>(b.size()), 30.0f});
    CHECK(worst(b, a, near(a, 8e-7, 0.0)) <= 1.0);
    std::vector<float> c = x, d = x;
    reference->add({other.data(), c.data(), static_cast<int64_t>(c.size())});
    backend->add({other.data(), d.data(), static_cast<int64_t>(d.size())});
    CHECK(same_bits(c, d));
    std::vector<float> e = x, f = x;
    reference->scale({e.data(), static_cast<int64_t>(e.size()), 0.3f});
    backend->scale({f.data(), static_cast<int64_t>(f.size()), 0.3f});
    CHECK(same_bits(e, f));
  }
}

TEST_CASE("Embedding decodes and scales rows") {
  const auto reference = make_reference_backend();
  const std::vector<float> values = random_floats(50 * 40, 1);
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    const std::vector<std::byte> data = encode(dtype, values);
    const std::vector<int32_t> ids = {49, 0, 7, 7, 16, 31, 15};
    const auto run = [&](Backend& backend) {
      const auto table = pack(backend, memory_weight(dtype, 50, 40, data));
      std::vector<float> out(ids.size() * 40);
      backend.embed({table.get(), ids.data(), static_cast<int64_t>(ids.size()), 5.5f, out.data()});
      return out;
    };
    const std::vector<float> expected = run(*reference);
    for (Isa isa : available_isas()) CHECK(same_bits(run(*cpu_backend(isa, 2)), expected));
  }
}

}  // namespace headrace::test
