// The sums over rows of logits against the reference.
#include <cmath>
#include <limits>

#include "op_cases.h"

namespace headrace::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

std::vector<LogitStats> stats_of(Backend& backend, const std::vector<float>& logits, int64_t vocab_size) {
  std::vector<LogitStats> out(logits.size() / static_cast<size_t>(vocab_size));
  backend.logit_stats({logits.data(), static_cast<int64_t>(out.size()), vocab_size, out.data()});
  return out;
}

bool same(const LogitStats& a, const LogitStats& b) {
  return same_bits({a.max, a.log_sum}, {b.max, b.log_sum}) && a.argmax == b.argmax;
}

}  // namespace

TEST_CASE("Logit stats agree with the reference, row by row") {
  const auto reference = make_reference_backend();
  for (const int64_t size : {1, 2, 15, 16, 17, 320, 4095, 4096, 4097, 50021}) {
    std::vector<float> logits = random_floats(static_cast<size_t>(5 * size), 3, 6.0f);
    // Equal highest logits: the first counts. And a token that cannot come.
    logits[static_cast<size_t>(size - 1)] = logits[static_cast<size_t>(size / 2)] = 30.0f;
    if (size > 2) logits[static_cast<size_t>(size + 1)] = -kInfinity;
    const std::vector<LogitStats> expected = stats_of(*reference, logits, size);
    for (const Isa isa : available_isas()) {
      INFO(isa_name(isa) << " size " << size);
      const auto one = cpu_backend(isa, 1), three = cpu_backend(isa, 3);
      const std::vector<LogitStats> out = stats_of(*one, logits, size), shared = stats_of(*three, logits, size);
      for (size_t row = 0; row < out.size(); ++row) {
        CHECK(out[row].max == expected[row].max);
        CHECK(out[row].argmax == expected[row].argmax);
        // A lane adds up to 64 positive terms of relative error 1e-7, after at most 5 + 1 additions that join lanes;
        // the logarithm makes the relative error an absolute one and is rounded itself.
        const double bound = 1e-7 + 70.0 * kUnit + kUnit * std::fabs(expected[row].log_sum);
        CHECK(std::fabs(static_cast<double>(out[row].log_sum) - expected[row].log_sum) <= bound);
        CHECK(same(shared[row], out[row]));
        const auto begin = logits.begin() + static_cast<ptrdiff_t>(row) * size;
        CHECK(same(stats_of(*one, std::vector<float>(begin, begin + size), size)[0], out[row]));
      }
    }
  }
}

TEST_CASE("Logits that make no distribution are seen wherever they stand") {
  std::vector<std::unique_ptr<Backend>> backends;
  backends.push_back(make_reference_backend());
  for (const Isa isa : available_isas()) backends.push_back(cpu_backend(isa, 1));
  for (const auto& backend : backends) {
    INFO(backend->name());
    for (const size_t at : {size_t{0}, size_t{31}, size_t{4096}, size_t{5000}}) {
      for (const float bad : {kNaN, -kNaN, kInfinity}) {
        std::vector<float> logits = random_floats(5001, 4, 6.0f);
        logits[at] = bad;
        CHECK(std::isnan(stats_of(*backend, logits, 5001)[0].log_sum));
      }
    }
    CHECK(std::isnan(stats_of(*backend, std::vector<float>(5001, -kInfinity), 5001)[0].log_sum));
  }
}

}  // namespace headrace::test
