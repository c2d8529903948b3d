// Kernels without a fault give what they should, and nothing is found, under every schedule.
#include <algorithm>
#include <numeric>
#include <random>

#include "emulated.h"
#include "probes.h"
#include "tensor/half.h"

namespace headrace::emulator {
namespace {

std::vector<uint4> vectors(int size) {
  std::vector<uint4> out;
  for (unsigned i = 0; i < static_cast<unsigned>(size); ++i) out.push_back({i, i * 7, ~i, i ^ 0x55u});
  return out;
}

bool same(const std::vector<uint4>& a, const std::vector<uint4>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const uint4& x, const uint4& y) {
    return x.x == y.x && x.y == y.y && x.z == y.z && x.w == y.w;
  });
}

}  // namespace

TEST_CASE("Each thread of a grid runs once and knows its place") {
  under_schedules(schedules(), [] {
    DeviceArray<int> out(3 * 2 * 2 * 5 * 4 * 3);
    REQUIRE(probe_indices(dim3(3, 2, 2), dim3(5, 4, 3), out.get()) == cudaSuccess);
    CHECK(out.read() == counting(720));
  });
}

TEST_CASE("A tree of sums in shared memory") {
  under_schedules(schedules(), [] {
    const std::vector<int> values = counting(512);
    DeviceArray<int> in(values), out(2);
    REQUIRE(probe_sum(in.get(), out.get(), 2, Fault::kNone) == cudaSuccess);
    CHECK(out.read() == std::vector<int>{255 * 128, 255 * 128 + 256 * 256});
  });
}

TEST_CASE("Shuffles, votes and reductions of a warp") {
  under_schedules(schedules(), [] {
    const std::vector<int> values = counting(32);
    DeviceArray<int> in(values), out(12 * 32);
    REQUIRE(probe_collectives(in.get(), out.get()) == cudaSuccess);
    const std::vector<int> all = out.read();
    for (int lane = 0; lane < 32; ++lane) {
      const auto row = [&](int i) { return all[static_cast<size_t>(i * 32 + lane)]; };
      INFO("lane " << lane);
      CHECK(row(0) == 5);
      CHECK(row(1) == (lane ^ 3));
      CHECK(row(2) == (lane + 4 < 32 ? lane + 4 : lane));
      CHECK(row(3) == (lane >= 4 ? lane - 4 : lane));
      CHECK(row(4) == (lane ^ 5));
      CHECK(static_cast<unsigned>(row(5)) == 0x49249249u);
      CHECK(row(6) == 3);
      CHECK(row(7) == 31 * 16);
      CHECK(row(8) == -69);
      CHECK(static_cast<unsigned>(row(9)) == 0x11111111u << lane % 4);
      CHECK(row(10) == 16);
      CHECK(row(11) == 2);
    }
  });
}

TEST_CASE("Lanes may go apart with masks of their own, and meet through shared memory") {
  under_schedules(schedules(), [] {
    DeviceArray<int> in(counting(32)), out(32);
    REQUIRE(probe_divergent(in.get(), out.get(), Fault::kNone) == cudaSuccess);
    const std::vector<int> apart = out.read();
    REQUIRE(probe_neighbours(in.get(), out.get(), Fault::kNone) == cudaSuccess);
    const std::vector<int> shifted = out.read();
    for (int lane = 0; lane < 32; ++lane) {
      CHECK(apart[static_cast<size_t>(lane)] == (lane < 8 ? lane ^ 1 : lane ^ 2));
      CHECK(shifted[static_cast<size_t>(lane)] == (lane + 31) % 32);
    }
  });
}

TEST_CASE("Warps hand values over through named barriers") {
  under_schedules(schedules(), [] {
    DeviceArray<int> in(counting(256)), out(256);
    REQUIRE(probe_handover(in.get(), out.get(), Fault::kNone) == cudaSuccess);
    const std::vector<int> values = out.read();
    for (int i = 0; i < 256; ++i) CHECK(values[static_cast<size_t>(i)] == i / 32 * 32 + 31 - i % 32);
  });
}

TEST_CASE("Blocks of a cooperative launch wait for each other") {
  under_schedules(schedules(), [] {
    constexpr int kBlocks = 5, kSteps = 4;
    std::vector<int> first = counting(kBlocks);
    first.resize(kBlocks * (kSteps + 1));
    DeviceArray<int> out(first), arrivals(std::vector<int>{0});
    REQUIRE(probe_grid(out.get(), arrivals.get(), kBlocks, kSteps, Fault::kNone) == cudaSuccess);
    const std::vector<int> values = out.read();
    for (int b = 0; b < kBlocks; ++b)
      CHECK(values[kBlocks * kSteps + static_cast<size_t>(b)] == (b + kSteps) % kBlocks + kSteps);
  });
}

TEST_CASE("The last block to come adds up what the others left, and atomics lose nothing") {
  under_schedules(schedules(), [] {
    constexpr int kBlocks = 7;
    DeviceArray<int> in(counting(kBlocks * 64)), partial(kBlocks * 2), counter(std::vector<int>{0}), out(1);
    REQUIRE(probe_last_block(in.get(), partial.get(), counter.get(), out.get(), kBlocks, Fault::kNone) == cudaSuccess);
    CHECK(out.read()[0] == 447 * 224);
    DeviceArray<int> bins(std::vector<int>(9, 0));
    REQUIRE(probe_atomics(bins.get(), 3) == cudaSuccess);
    CHECK(bins.read() == std::vector<int>{36, 36, 36, 36, 36, 36, 36, 36, 95});
  });
}

TEST_CASE("Tiles pass through rings of asynchronous copies") {
  under_schedules(schedules(), [] {
    const std::vector<uint4> values = vectors(8 * 128);
    DeviceArray<uint4> in(values), out(values.size());
    REQUIRE(probe_pipeline(in.get(), out.get(), 8, Fault::kNone) == cudaSuccess);
    CHECK(same(out.read(), values));
    out.fill(0);
    REQUIRE(probe_bulk_pipeline(in.get(), out.get(), 8, Fault::kNone) == cudaSuccess);
    CHECK(same(out.read(), values));
  });
}

TEST_CASE("Matrix instructions multiply") {
  std::mt19937 random(3);
  std::uniform_int_distribution<int> small(-8, 8);
  for (const int type : {0, 1, 2}) {
    const int k = type == 2 ? 32 : 16;
    std::vector<int> a(static_cast<size_t>(16 * k)), b(static_cast<size_t>(8 * k));
    for (int& x : a) x = small(random);
    for (int& x : b) x = small(random);
    const auto bytes = [&](const std::vector<int>& values) {
      std::vector<uint8_t> out;
      for (const int x : values) {
        const auto value = static_cast<float>(x);
        const uint16_t half = type == 0 ? float_to_half(value) : float_to_bfloat16(value);
        if (type == 2) {
          out.push_back(static_cast<uint8_t>(x));
        } else {
          out.push_back(static_cast<uint8_t>(half));
          out.push_back(static_cast<uint8_t>(half >> 8));
        }
      }
      return out;
    };
    under_schedules(schedules(4), [&] {
      DeviceArray<uint8_t> device_a(bytes(a)), device_b(bytes(b));
      DeviceArray<uint32_t> d(128);
      REQUIRE(probe_mma(type, device_a.get(), device_b.get(), d.get()) == cudaSuccess);
      const std::vector<uint32_t> out = d.read();
      for (size_t row = 0; row < 16; ++row) {
        for (size_t column = 0; column < 8; ++column) {
          int expected = 0;
          for (size_t i = 0; i < static_cast<size_t>(k); ++i) {
            expected += a[row * static_cast<size_t>(k) + i] * b[column * static_cast<size_t>(k) + i];
          }
          const uint32_t bits = out[row * 8 + column];
          float value;
          std::memcpy(&value, &bits, 4);
          CHECK((type == 2 ? static_cast<float>(static_cast<int32_t>(bits)) : value) == static_cast<float>(expected));
        }
      }
    });
  }
}

TEST_CASE("ldmatrix transposes") {
  std::vector<uint16_t> values(256);
  std::iota(values.begin(), values.end(), uint16_t{0});
  under_schedules(schedules(4), [&] {
    DeviceArray<uint16_t> in(values);
    DeviceArray<uint32_t> out(128);
    REQUIRE(probe_transpose(in.get(), out.get()) == cudaSuccess);
    const std::vector<uint32_t> fragments = out.read();
    for (uint32_t matrix = 0; matrix < 4; ++matrix) {
      for (uint32_t lane = 0; lane < 32; ++lane) {
        const uint32_t row = lane % 4 * 2, column = lane / 4, first = matrix * 64 + row * 8 + column;
        CHECK(fragments[matrix * 32 + lane] == (first | (first + 8) << 16));
      }
    }
  });
}

}  // namespace headrace::emulator
