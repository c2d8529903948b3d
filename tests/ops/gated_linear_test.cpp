// The gated product against the ops that it stands for, bit for bit, and against the reference.
#include "op_cases.h"

#include "base/cpu_features.h"
#include "tensor/dtype.h"

namespace headrace::test {
namespace {

// Bytes of a tensor whose float16 fields are small and finite wherever they lie.
std::vector<std::byte> block_bytes(DType dtype, int64_t rows, int64_t cols, uint32_t seed) {
  std::mt19937 generator(seed);
  std::vector<std::byte> out(static_cast<size_t>(rows) * row_bytes(dtype, static_cast<uint64_t>(cols)).value());
  for (std::byte& byte : out) byte = static_cast<std::byte>(generator() & 0x3f);
  return out;
}

struct Case {
  DType gate, up;
  int64_t rows, in, out;
  bool bias;
};

std::vector<std::byte> weight_bytes(DType dtype, const Case& c, uint32_t seed) {
  if (is_block_format(dtype)) return block_bytes(dtype, c.out, c.in, seed);
  return encode(dtype, random_floats(static_cast<size_t>(c.out * c.in), seed, 0.1f));
}

std::vector<float> run_gated(Backend& backend, const Case& c, const PackedWeight& gate, const PackedWeight& up,
                             const std::vector<float>& x, const std::vector<float>& bias, Activation activation) {
  std::vector<float> out(static_cast<size_t>(c.rows * c.out), -1.0f);
  GatedLinearParams p;
  p.x = x.data();
  p.num_tokens = c.rows;
  p.in_features = c.in;
  p.gate = &gate;
  p.up = &up;
  p.gate_bias = c.bias ? bias.data() : nullptr;
  p.up_bias = c.bias ? bias.data() + c.out : nullptr;
  p.activation = activation;
  p.limit = 7.0f;
  p.out = out.data();
  backend.gated_linear(p);
  return out;
}

std::vector<float> run_apart(Backend& backend, const Case& c, const PackedWeight& gate, const PackedWeight& up,
                             const std::vector<float>& x, const std::vector<float>& bias, Activation activation) {
  std::vector<float> out(static_cast<size_t>(c.rows * c.out)), other = out;
  const LinearOutput outputs[] = {{&gate, c.bias ? bias.data() : nullptr, out.data(), c.out, false},
                                  {&up, c.bias ? bias.data() + c.out : nullptr, other.data(), c.out, false}};
  backend.linear({x.data(), c.rows, c.in, outputs});
  backend.gated_activation({out.data(), other.data(), c.rows * c.out, activation, out.data(), 7.0f});
  return out;
}

}  // namespace

TEST_CASE("a gated product has the bits of two products and an activation") {
  const std::vector<Case> cases = {
      {DType::kF32, DType::kF32, 1, 64, 200, true},      {DType::kF32, DType::kF32, 150, 64, 50, false},
      {DType::kF16, DType::kBF16, 40, 96, 70, true},     {DType::kQ4_K, DType::kQ4_K, 1, 512, 1040, false},
      {DType::kQ4_K, DType::kQ6_K, 7, 256, 100, true},   {DType::kQ8_0, DType::kQ5_0, 60, 128, 96, false},
      {DType::kQ4_K, DType::kQ4_K, 600, 256, 130, true}, {DType::kQ4_K, DType::kF32, 9, 256, 33, true},
  };
  for (const Isa isa : available_isas()) {
    for (const int threads : {1, 2}) {
      const auto backend = cpu_backend(isa, threads);
      for (const Case& c : cases) {
        const auto gate_bytes = weight_bytes(c.gate, c, 1), up_bytes = weight_bytes(c.up, c, 2);
        const auto gate = pack(*backend, memory_weight(c.gate, c.out, c.in, gate_bytes));
        const auto up = pack(*backend, memory_weight(c.up, c.out, c.in, up_bytes));
        const auto x = random_floats(static_cast<size_t>(c.rows * c.in), 3);
        const auto bias = random_floats(static_cast<size_t>(2 * c.out), 4);
        for (const Activation activation : {Activation::kSilu, Activation::kClampedSwish, Activation::kClampedSilu}) {
          INFO(backend->name() << " threads " << threads << " rows " << c.rows << " out " << c.out);
          REQUIRE(same_bits(run_gated(*backend, c, *gate, *up, x, bias, activation),
                            run_apart(*backend, c, *gate, *up, x, bias, activation)));
        }
      }
    }
  }
}

TEST_CASE("the reference's gated product is its products and activation") {
  const auto backend = make_reference_backend();
  const Case c{DType::kF32, DType::kF32, 3, 16, 5, true};
  const auto gate_bytes = weight_bytes(c.gate, c, 1), up_bytes = weight_bytes(c.up, c, 2);
  const auto gate = pack(*backend, memory_weight(c.gate, c.out, c.in, gate_bytes));
  const auto up = pack(*backend, memory_weight(c.up, c.out, c.in, up_bytes));
  const auto x = random_floats(static_cast<size_t>(c.rows * c.in), 3);
  const auto bias = random_floats(static_cast<size_t>(2 * c.out), 4);
  REQUIRE(same_bits(run_gated(*backend, c, *gate, *up, x, bias, Activation::kGeluTanh),
                    run_apart(*backend, c, *gate, *up, x, bias, Activation::kGeluTanh)));
}

TEST_CASE("a gated product of no rows writes nothing") {
  const auto backend = cpu_backend(available_isas().back(), 2);
  const Case c{DType::kF32, DType::kF32, 0, 16, 5, false};
  const auto bytes = weight_bytes(c.gate, c, 1);
  const auto weight = pack(*backend, memory_weight(c.gate, c.out, c.in, bytes));
  CHECK(run_gated(*backend, c, *weight, *weight, {}, {}, Activation::kSilu).empty());
}

}  // namespace headrace::test
