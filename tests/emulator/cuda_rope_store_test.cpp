// Rotation and storing against the scalar reference, for the layouts of cache and rotation that models have.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "emulated.h"
#include "emulator/sync_points.h"
#include "kernels/rope_store.h"
#include "ops/reference_backend.h"
#include "tensor/half.h"

namespace headrace::emulator {
namespace {

constexpr int32_t kTokens = 3, kHeads = 4, kKvHeads = 2, kBlocks = 3;
constexpr float kQueryScales[kTokens] = {1.0f, 0.5f, 1.5f};

struct Variant {
  int32_t head_dim, rotary_dim, block_size;
  bool interleaved, with_norm;
  KvDType dtype = KvDType::kF16;
  bool norm_after = false;
};

struct Case {
  Variant variant;
  KvLayout layout;
  std::vector<float> q, k, v, norm, inv_freq;
  std::vector<int32_t> positions;
  std::vector<int64_t> slots;
};

Case make(const Variant& variant) {
  const auto dim = static_cast<size_t>(variant.head_dim);
  Case c{variant,
         {variant.dtype, kKvHeads, variant.head_dim, variant.block_size},
         random_floats(kTokens * kHeads * dim, 1),
         random_floats(kTokens * kKvHeads * dim, 2),
         random_floats(kTokens * kKvHeads * dim, 3),
         random_floats(dim, 4),
         {},
         {0, 17, 131071},
         {2 * variant.block_size + 5, variant.block_size - 1, 0}};
  for (int32_t i = 0; i < variant.rotary_dim / 2; ++i) {
    c.inv_freq.push_back(std::pow(10000.0f, -2.0f * static_cast<float>(i) / static_cast<float>(variant.rotary_dim)));
  }
  return c;
}

struct Result {
  std::vector<float> q;
  std::vector<uint8_t> cache;
};

Result run(const Case& c) {
  DeviceArray<float> q(c.q), k(c.k), v(c.v), norm(c.norm), inv_freq(c.inv_freq);
  DeviceArray<float> q_scale(std::vector<float>(kQueryScales, kQueryScales + kTokens));
  DeviceArray<int32_t> positions(c.positions);
  DeviceArray<int64_t> slots(c.slots);
  DeviceArray<uint8_t> cache(kBlocks * c.layout.block_bytes());
  cache.fill(0);
  cuda::RopeStoreArguments a;
  a.q = q.get();
  a.k = k.get();
  a.v = v.get();
  a.q_norm = a.k_norm = c.variant.with_norm ? norm.get() : nullptr;
  a.norm_eps = 1e-6f;
  a.num_tokens = kTokens;
  a.num_heads = kHeads;
  a.positions = positions.get();
  a.inv_freq = inv_freq.get();
  a.rotary_dim = c.variant.rotary_dim;
  a.interleaved = c.variant.interleaved;
  a.norm_after_rotation = c.variant.norm_after;
  a.q_scale = q_scale.get();
  a.layout = c.layout;
  a.cache = reinterpret_cast<std::byte*>(cache.get());
  a.slots = slots.get();
  REQUIRE(cuda::rope_and_store_kv(a, nullptr) == cudaSuccess);
  return {q.read(), cache.read()};
}

Result expected(const Case& c, std::vector<float>* q_float) {
  std::vector<float> q = c.q, k = c.k;
  Result out;
  out.cache.resize(kBlocks * c.layout.block_bytes());
  RopeStoreParams p;
  p.q = q.data();
  p.k = k.data();
  p.v = c.v.data();
  p.num_tokens = kTokens;
  p.num_heads = kHeads;
  p.q_norm = p.k_norm = c.variant.with_norm ? c.norm.data() : nullptr;
  p.norm_eps = 1e-6f;
  p.positions = c.positions.data();
  p.inv_freq = c.inv_freq.data();
  p.rotary_dim = c.variant.rotary_dim;
  p.interleaved = c.variant.interleaved;
  p.norm_after_rotation = c.variant.norm_after;
  p.q_scale = kQueryScales;
  p.layout = c.layout;
  p.cache = reinterpret_cast<std::byte*>(out.cache.data());
  p.slots = c.slots.data();
  reference_rope_and_store_kv(p);
  *q_float = q;
  return out;
}

// One rounding to 16 bits, of either side in the cache; angles, norm and rotation err by some float32 roundings of values up
// to 40.
bool close(double value, double wanted, double unit) {
  return std::fabs(value - wanted) <= 2 * unit * std::fabs(wanted) + 2 * kHalfSmallest + 16 * kUnit * 40;
}

void check(const Case& c) {
  std::vector<float> q;
  const Result right = expected(c, &q), out = run(c);
  bool queries = true, cached = true;
  for (size_t i = 0; i < q.size(); ++i) {
    queries = queries && close(static_cast<double>(out.q[i]), static_cast<double>(q[i]), 0.0);
  }
  const size_t element = c.layout.element_bytes();
  const auto value = [&](const Result& r, size_t i) {
    const auto half = static_cast<uint16_t>(r.cache[i] | r.cache[i + 1] << 8);
    float full = 0.0f;
    if (element == 4) std::memcpy(&full, &r.cache[i], sizeof full);
    return static_cast<double>(element == 4                      ? full
                               : c.layout.dtype == KvDType::kF16 ? half_to_float(half)
                                                                 : bfloat16_to_float(half));
  };
  const double unit = c.layout.dtype == KvDType::kBF16 ? 0x1p-8 : kHalfUnit;
  for (size_t i = 0; i < out.cache.size(); i += element) {
    cached = cached && close(value(out, i), value(right, i), element == 4 ? 0.0 : unit);
  }
  CHECK(queries);
  CHECK(cached);
}

}  // namespace

TEST_CASE("Rotated queries and the cache agree with the reference") {
  for (const Variant& variant :
       {Variant{64, 64, 16, false, false}, Variant{128, 128, 32, false, true}, Variant{96, 48, 16, true, true},
        Variant{256, 64, 16, false, false}, Variant{16, 16, 16, false, true, KvDType::kF32},
        Variant{32, 32, 16, false, true, KvDType::kBF16, true}}) {
    INFO("head_dim " << variant.head_dim << " rotary_dim " << variant.rotary_dim);
    const Case c = make(variant);
    under_schedules(schedules(variant.head_dim == 64 ? 20 : 2), [&] { check(c); });
  }
}

TEST_CASE("Values and queries leave in whole sectors, and each synchronisation point is needed") {
  const Case c = make({128, 128, 16, false, false});
  run(c);
  const std::vector<Counters> counters = take_counters();
  INFO(to_string(counters.at(0)));
  CHECK(counters[0].conflicts() == 0);
  CHECK(counters[0].global_loads.sectors == counters[0].global_loads.ideal_sectors);
  // A key's values lie 32 bytes apart.
  const uint64_t keys = uint64_t{kTokens} * kKvHeads * 128;
  CHECK(counters[0].global_stores.sectors == keys + uint64_t{kTokens} * (kHeads * 4 + kKvHeads * 2) * 128 / 32);
  // Pairs of neighbours: of dims half a head apart each lane has both.
  const Case neighbours = make({128, 128, 16, true, false});
  const Result expected_bits = run(neighbours);
  const std::vector<Mutant> mutants = run_mutants([&] {
    const Result out = run(neighbours);
    return out.q == expected_bits.q && out.cache == expected_bits.cache;
  });
  INFO(to_string(mutants));
  CHECK(mutants.size() == 3);
  for (const Mutant& mutant : mutants) CHECK(mutant.caught);
  take_counters();
}

}  // namespace headrace::emulator
