#include "sampling/philox.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <set>

#include "sampling/portable_exp.h"

namespace headrace {
namespace {

using Counter = std::array<uint32_t, 4>;

// The known answers that the authors publish with Random123 (kat_vectors, philox 4x32, 10 rounds).
TEST_CASE("Philox gives its authors' known answers") {
  CHECK(philox4x32({0, 0, 0, 0}, {0, 0}) == Counter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}) ==
        Counter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
        Counter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("A uniform draw takes 53 bits of the first two words") {
  static_assert(uniform_draw(0, 0, 0) == static_cast<double>(0xe169c58d6627e8d5u >> 11) / 9007199254740992.0);
  std::set<double> draws;
  double sum = 0;
  constexpr int kDraws = 10000;
  for (int i = 0; i < kDraws; ++i) {
    const double u = uniform_draw(7, 0, static_cast<uint64_t>(i));
    REQUIRE(u >= 0.0);
    REQUIRE(u < 1.0);
    draws.insert(u);
    sum += u;
  }
  CHECK(draws.size() == kDraws);
  // Five standard deviations of a mean of uniform numbers.
  CHECK(std::abs(sum / kDraws - 0.5) < 5 / std::sqrt(12.0 * kDraws));
}

TEST_CASE("Every part of the key and the counter changes the draw") {
  const std::set<double> draws = {uniform_draw(1, 2, 3),
                                  uniform_draw(1ull << 40, 2, 3),
                                  uniform_draw(2, 2, 3),
                                  uniform_draw(1, 3, 3),
                                  uniform_draw(1, 2, 4),
                                  uniform_draw(1, 2, 3ull << 40),
                                  uniform_draw(1, 2, 3, DrawPurpose::kAcceptance),
                                  uniform_draw(1, 2, 3, DrawPurpose::kResidual)};
  CHECK(draws.size() == 8);
}

TEST_CASE("The portable exponential is exact to a few units in the last place") {
  double worst = 0;
  for (int i = 0; i <= 400000; ++i) {
    const double x = -708.0 * i / 400000.0;
    const long double exact = std::exp(static_cast<long double>(x));
    worst = std::max(worst, static_cast<double>(std::abs(portable_exp(x) - exact) / exact));
  }
  CHECK(worst < 0x1p-51);
  CHECK(portable_exp(0.0) == 1.0);
  CHECK(portable_exp(-0.0) == 1.0);
  CHECK(portable_exp(-709.0) == 0.0);
  CHECK(portable_exp(-INFINITY) == 0.0);
}

}  // namespace
}  // namespace headrace
