// Rotation and the store of keys and values against the reference, for every cache type.
#include "op_cases.h"

#include "ops/reference_backend.h"

namespace headrace::test {
namespace {

struct Case {
  KvDType dtype = KvDType::kF16;
  int32_t head_dim = 64, kv_heads = 2, num_heads = 4, block_size = 16, rotary_dim = 64;
  int64_t tokens = 5;
  bool interleaved = false, norm = false;
  int32_t first_position = 0;
  float attention_factor = 1.0f;
  bool norm_last = false, scaled = false;
  int32_t num_axes = 1;
};

struct Stored {
  std::vector<float> q, k;
  std::vector<std::byte> cache;
};

Stored run(Backend& backend, const Case& c, int64_t begin, int64_t end, const std::vector<std::byte>& before) {
  const auto size = [&](int64_t heads) { return static_cast<size_t>(c.tokens * heads * c.head_dim); };
  Stored s{random_floats(size(c.num_heads), 1), random_floats(size(c.kv_heads), 2), before};
  const std::vector<float> v = random_floats(size(c.kv_heads), 3);
  const std::vector<float> q_norm = random_floats(static_cast<size_t>(c.head_dim), 4);
  const std::vector<float> k_norm = random_floats(static_cast<size_t>(c.head_dim), 5);
  std::vector<float> inv_freq;
  for (int32_t i = 0; i < c.rotary_dim / 2; ++i) {
    inv_freq.push_back(std::pow(10000.0f, -2.0f * static_cast<float>(i) / static_cast<float>(c.rotary_dim)));
  }
  std::vector<int32_t> positions;
  std::vector<int64_t> slots;
  for (int64_t i = 0; i < c.tokens; ++i) {
    for (int32_t axis = 0; axis < c.num_axes; ++axis) {
      positions.push_back(c.first_position + static_cast<int32_t>(i) * (axis + 1) + axis);
    }
    slots.push_back((i * 7 + 3) % (2 * c.block_size));  // 7 and the slots share no factor
  }
  RopeStoreParams p;
  p.q = s.q.data() + begin * c.num_heads * c.head_dim;
  p.k = s.k.data() + begin * c.kv_heads * c.head_dim;
  p.v = v.data() + begin * c.kv_heads * c.head_dim;
  p.num_tokens = end - begin;
  p.num_heads = c.num_heads;
  p.q_norm = c.norm ? q_norm.data() : nullptr;
  p.k_norm = c.norm ? k_norm.data() : nullptr;
  p.norm_after_rotation = c.norm_last;
  std::vector<float> q_scale;
  for (int64_t i = 0; i < c.tokens; ++i) q_scale.push_back(1.0f - 0.01f * static_cast<float>(i));
  p.q_scale = c.scaled ? q_scale.data() + begin : nullptr;
  p.norm_eps = 1e-6f;
  p.norm_weight_offset = 1.0f;
  p.positions = positions.data() + begin * c.num_axes;
  p.num_axes = c.num_axes;
  std::vector<int32_t> axes;
  for (int32_t i = 0; i < c.rotary_dim / 2; ++i) axes.push_back(i % c.num_axes);
  p.axes = c.num_axes > 1 ? axes.data() : nullptr;
  p.inv_freq = c.rotary_dim == 0 ? nullptr : inv_freq.data();
  p.rotary_dim = c.rotary_dim;
  p.interleaved = c.interleaved;
  p.attention_factor = c.attention_factor;
  p.layout = {c.dtype, c.kv_heads, c.head_dim, c.block_size};
  p.cache = s.cache.data();
  p.slots = slots.data() + begin;
  backend.rope_and_store_kv(p);
  return s;
}

void check(const Case& c) {
  INFO(kv_dtype_name(c.dtype) << " head_dim " << c.head_dim << " rotary " << c.rotary_dim << " interleaved "
                              << c.interleaved << " norm " << c.norm << " position " << c.first_position);
  const KvLayout layout{c.dtype, c.kv_heads, c.head_dim, c.block_size};
  const std::vector<std::byte> empty(2 * layout.block_bytes(), std::byte{0x5a});
  const auto reference = make_reference_backend();
  const Stored expected = run(*reference, c, 0, c.tokens, empty);
  // Normalised entries stay below 6 sigma times a weight of at most 6; a rotation rounds four times.
  const double largest = c.norm ? 36.0 : 6.0;
  const double float_bound = (c.norm ? c.head_dim / 16.0 + 12.0 : 6.0) * kUnit * largest * 1.5;
  for (Isa isa : available_isas()) {
    INFO(isa_name(isa));
    const auto backend = cpu_backend(isa, 1);
    const Stored got = run(*backend, c, 0, c.tokens, empty);
    CHECK(worst(got.q, expected.q, std::vector<double>(got.q.size(), float_bound)) <= 1.0);
    CHECK(worst(got.k, expected.k, std::vector<double>(got.k.size(), float_bound)) <= 1.0);
    // A key that differs in its last float32 bits may round to the neighbouring code.
    double step = 0.0;
    switch (c.dtype) {
      case KvDType::kF32: break;
      case KvDType::kF16: step = largest * 1.5 * 0x1p-10; break;
      case KvDType::kBF16: step = largest * 1.5 * 0x1p-7; break;
      case KvDType::kQ8: step = largest * 1.5 / 127.0 * 2.0; break;
    }
    size_t different = 0, total = 0;
    for (int64_t t = 0; t < c.tokens; ++t) {
      const auto slot = static_cast<int32_t>((t * 7 + 3) % (2 * c.block_size));
      for (int32_t h = 0; h < c.kv_heads; ++h) {
        const size_t at = static_cast<size_t>(slot / c.block_size) * layout.block_bytes() +
                          static_cast<size_t>(h) * layout.head_bytes();
        for (int32_t d = 0; d < c.head_dim; ++d, ++total) {
          const int32_t offset = slot % c.block_size;
          const double a = static_cast<double>(cached_key(layout, got.cache.data() + at, offset, d));
          const double b = static_cast<double>(cached_key(layout, expected.cache.data() + at, offset, d));
          different += a != b;
          REQUIRE(std::fabs(a - b) <= float_bound + step);
          // Values are not touched before they are stored: the same bits.
          REQUIRE(cached_value(layout, got.cache.data() + at, offset, d) ==
                  cached_value(layout, expected.cache.data() + at, offset, d));
        }
      }
    }
    // Only keys near a rounding boundary may differ.
    if (c.dtype != KvDType::kF32) CHECK(different <= total / 50 + 2);
    // Without arithmetic before the store, every byte is the reference's, unused slots included.
    if (c.rotary_dim == 0 && !c.norm) CHECK(got.cache == expected.cache);

    const auto three = cpu_backend(isa, 3);
    const Stored threads = run(*three, c, 0, c.tokens, empty);
    CHECK((same_bits(threads.q, got.q) && same_bits(threads.k, got.k) && threads.cache == got.cache));
    std::vector<std::byte> cache = empty;
    for (int64_t t = 0; t < c.tokens; ++t) cache = run(*backend, c, t, t + 1, cache).cache;
    CHECK(cache == got.cache);
  }
}

}  // namespace

TEST_CASE("Rotation and store agree with the reference") {
  for (KvDType dtype : {KvDType::kF32, KvDType::kF16, KvDType::kBF16, KvDType::kQ8}) {
    for (int32_t head_dim : {8, 16, 20, 32, 64, 80, 128, 256}) {
      for (bool interleaved : {false, true}) {
        check({dtype, head_dim, 2, 3, 16, head_dim, 11, interleaved, false, 1000});
        check({dtype, head_dim, 1, 2, 32, head_dim / 2, 3, interleaved, true, 0, 1.3f});
      }
      check({dtype, head_dim, 2, 2, 16, 0, 20});
    }
  }
  check({KvDType::kF32, 64, 1, 1, 16, 64, 4, false, false, 1000000});
  check({KvDType::kF32, 64, 2, 4, 16, 32, 7, false, true, 10, 1.0f, true, false});
  check({KvDType::kF32, 64, 2, 4, 16, 64, 7, true, false, 10, 1.0f, false, true});
  for (bool interleaved : {false, true}) {
    for (int32_t axes : {2, 3}) {
      check({KvDType::kF32, 16, 2, 4, 16, 16, 9, interleaved, true, 5, 1.0f, false, false, axes});
      check({KvDType::kF16, 32, 1, 2, 16, 16, 9, interleaved, false, 500, 1.0f, false, false, axes});
    }
  }
}

TEST_CASE("Equal positions on every axis rotate as one position does") {
  const auto backend = cpu_backend(available_isas().back(), 1);
  std::vector<float> q[2], k[2];
  for (int i = 0; i < 2; ++i) {
    q[i] = random_floats(4 * 32, 1);
    k[i] = random_floats(2 * 32, 2);
    const std::vector<float> v = random_floats(2 * 32, 3);
    std::vector<float> inv_freq;
    for (int32_t d = 0; d < 16; ++d) inv_freq.push_back(std::pow(10000.0f, -static_cast<float>(d) / 16.0f));
    std::vector<int32_t> axes;
    for (int32_t d = 0; d < 16; ++d) axes.push_back(d % 3);
    const int32_t positions[] = {77, 77, 77};
    const int64_t slot = 0;
    const KvLayout layout{KvDType::kF32, 2, 32, 16};
    std::vector<std::byte> cache(layout.block_bytes());
    RopeStoreParams p;
    p.q = q[i].data();
    p.k = k[i].data();
    p.v = v.data();
    p.num_tokens = 1;
    p.num_heads = 4;
    p.positions = positions;
    p.num_axes = i == 0 ? 1 : 3;
    p.axes = i == 0 ? nullptr : axes.data();
    p.inv_freq = inv_freq.data();
    p.rotary_dim = 32;
    p.layout = layout;
    p.cache = cache.data();
    p.slots = &slot;
    backend->rope_and_store_kv(p);
  }
  CHECK((same_bits(q[0], q[1]) && same_bits(k[0], k[1])));
}

TEST_CASE("The last dims of heads rotate, and back") {
  constexpr int64_t kRows = 3, kHeads = 2;
  constexpr int32_t kDim = 24, kRotary = 8, kBegin = kDim - kRotary;
  const std::vector<float> x = random_floats(kRows * kHeads * kDim, 1);
  const std::vector<float> inv_freq = {1.0f, 0.3f, 0.1f, 0.01f};
  const std::vector<int32_t> positions = {3, 70, 1000};
  const auto rotate = [&](Backend& backend, std::vector<float> heads, int64_t count, int32_t dim, int32_t begin,
                          bool backwards) {
    RopeStoreParams p;
    p.q = heads.data();
    p.num_tokens = kRows;
    p.num_heads = static_cast<int32_t>(count);
    p.positions = positions.data();
    p.inv_freq = inv_freq.data();
    p.rotary_dim = kRotary;
    p.rotary_begin = begin;
    p.interleaved = true;
    p.backwards = backwards;
    p.layout.head_dim = dim;
    backend.rope_and_store_kv(p);
    return heads;
  };
  std::vector<float> tails;
  for (size_t head = 0; head < kRows * kHeads; ++head) {
    const auto first = x.begin() + static_cast<int64_t>(head * kDim);
    tails.insert(tails.end(), first + kBegin, first + kDim);
  }
  std::vector<std::unique_ptr<Backend>> backends;
  backends.push_back(make_reference_backend());
  for (Isa isa : available_isas()) backends.push_back(cpu_backend(isa, 2));
  for (const auto& backend : backends) {
    INFO(backend->name());
    const std::vector<float> out = rotate(*backend, x, kHeads, kDim, kBegin, false);
    const std::vector<float> alone = rotate(*backend, tails, kHeads, kRotary, 0, false);
    for (size_t head = 0; head < kRows * kHeads; ++head) {
      for (size_t d = 0; d < kDim; ++d) {
        const bool rotates = d >= kBegin;
        CHECK(out[head * kDim + d] == (rotates ? alone[head * kRotary + d - kBegin] : x[head * kDim + d]));
      }
    }
    const std::vector<float> back = rotate(*backend, out, kHeads, kDim, kBegin, true);
    CHECK(worst(back, x, std::vector<double>(x.size(), 2 * 6 * kUnit * 6 * 1.5)) <= 1.0);
  }
}

TEST_CASE("A run of tokens has one row, where its last token's lies") {
  constexpr int32_t kDim = 40, kBlock = 16, kRun = 4, kBlocks = 3;
  for (KvDType dtype : {KvDType::kF32, KvDType::kF16, KvDType::kBF16, KvDType::kQ8}) {
    const KvLayout layout{dtype, 1, kDim, kBlock, KvContent::kRows, kRun};
    CHECK(layout.rows_per_block() == 4);
    const std::vector<int64_t> slots = {3, 15, 16 + 7, 32 + 11};
    std::vector<std::vector<std::byte>> caches;
    std::vector<std::unique_ptr<Backend>> backends;
    backends.push_back(make_reference_backend());
    for (Isa isa : available_isas()) backends.push_back(cpu_backend(isa, 1));
    for (const auto& backend : backends) {
      std::vector<float> k = random_floats(slots.size() * kDim, 1);
      std::vector<std::byte> cache(kBlocks * layout.block_bytes(), std::byte{0x5a});
      RopeStoreParams p;
      p.k = k.data();
      p.num_tokens = static_cast<int64_t>(slots.size());
      p.layout = layout;
      p.cache = cache.data();
      p.slots = slots.data();
      backend->rope_and_store_kv(p);
      for (size_t i = 0; i < slots.size(); ++i) {
        const std::byte* block = cache.data() + static_cast<size_t>(slots[i] / kBlock) * layout.block_bytes();
        for (int32_t d = 0; d < kDim; ++d) {
          const double stored = static_cast<double>(cached_value(layout, block, layout.row_of(slots[i] % kBlock), d));
          CHECK(stored == Approx(static_cast<double>(k[i * kDim + static_cast<size_t>(d)])).margin(0.03));
        }
      }
      caches.push_back(std::move(cache));
    }
    for (const auto& cache : caches) CHECK(cache == caches[0]);
  }
}

TEST_CASE("Q8 keeps zeros, small, large and broken groups apart") {
  for (Isa isa : available_isas()) {
    const auto backend = cpu_backend(isa, 1);
    const auto reference = make_reference_backend();
    const KvLayout layout{KvDType::kQ8, 1, 160, 16};
    std::vector<float> k = random_floats(160, 1), v = random_floats(160, 2);
    for (size_t i = 0; i < 32; ++i) v[i] = 0.0f, v[32 + i] *= 1e-7f, v[64 + i] *= 1e7f;
    v[100] = NAN;
    v[130] = INFINITY;
    const int64_t slot = 5;
    std::vector<std::byte> caches[2];
    for (int which = 0; which < 2; ++which) {
      caches[which].assign(layout.block_bytes(), std::byte{0});
      RopeStoreParams p;
      std::vector<float> key = k;
      p.k = key.data();
      p.v = v.data();
      p.num_tokens = 1;
      p.layout = layout;
      p.cache = caches[which].data();
      p.slots = &slot;
      (which == 0 ? *reference : *backend).rope_and_store_kv(p);
    }
    CHECK(caches[0] == caches[1]);
    CHECK(cached_value(layout, caches[1].data(), 5, 3) == 0.0f);
    CHECK(std::isnan(cached_value(layout, caches[1].data(), 5, 101)));
    CHECK(std::isnan(cached_value(layout, caches[1].data(), 5, 159)));
  }
}

}  // namespace headrace::test
