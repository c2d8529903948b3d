// The ops of a device against the scalar reference, and how long they take: what tests/gpu/check.sh runs.
//
//   op_check DEVICE [--bench]    one JSON object on a line for each case; exit status 1 where one fails
//
// With --bench each case runs at sizes of a model of eight billion weights. On emulated-cuda the time says nothing.
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "engine/device_backend.h"
#include "ops/backend.h"
#include "tensor/block_formats.h"
#include "tensor/half.h"

namespace headrace {
namespace {

std::vector<float> random_floats(size_t count, uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> out(count);
  for (float& x : out) x = normal(generator);
  return out;
}

// Values in device memory.
class OnDevice {
 public:
  OnDevice(Backend& backend, const void* values, size_t bytes) : memory_(backend.memory()), bytes_(bytes) {
    data_ = memory_->allocate(bytes);
    if (data_ != nullptr && values != nullptr) memory_->write(values, data_, bytes);
  }
  OnDevice(Backend& backend, const std::vector<float>& values) : OnDevice(backend, values.data(), values.size() * 4) {}
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  ~OnDevice() {
    if (data_ != nullptr) memory_->free(data_);
  }
  float* floats() const { return reinterpret_cast<float*>(data_); }
  std::byte* data() const { return data_; }
  std::vector<float> read() const {
    std::vector<float> out(bytes_ / 4);
    memory_->read(data_, out.data(), bytes_);
    return out;
  }

 private:
  std::shared_ptr<DeviceMemory> memory_;
  std::byte* data_ = nullptr;
  size_t bytes_;
};

std::vector<std::byte> weight_bytes(DType dtype, int64_t rows, int64_t cols) {
  std::vector<std::byte> out;
  const auto append = [&](const auto& value) {
    const auto* bytes = reinterpret_cast<const std::byte*>(&value);
    out.insert(out.end(), bytes, bytes + sizeof value);
  };
  if (dtype == DType::kQ8_0) {
    std::mt19937 random(3);
    for (int64_t i = 0; i < rows * cols / 32; ++i) {
      BlockQ8_0 block;
      block.d = float_to_half(0.01f);
      for (int8_t& q : block.qs) q = static_cast<int8_t>(static_cast<int>(random() % 255) - 127);
      append(block);
    }
    return out;
  }
  for (const float value : random_floats(static_cast<size_t>(rows * cols), 3)) {
    if (dtype == DType::kF32) append(value);
    if (dtype == DType::kF16) append(float_to_half(value));
    if (dtype == DType::kBF16) append(float_to_bfloat16(value));
  }
  return out;
}

std::unique_ptr<PackedWeight> pack(Backend& backend, DType dtype, int64_t rows, int64_t cols) {
  const std::vector<std::byte> bytes = weight_bytes(dtype, rows, cols);
  WeightSource source{"weight", dtype, rows, cols, [&](uint64_t offset, std::span<std::byte> to) {
                        std::memcpy(to.data(), bytes.data() + offset, to.size());
                        return Status();
                      }};
  auto out = backend.pack(source, {});
  return out.ok() ? out.take() : nullptr;
}

class Check {
 public:
  Check(Backend& device, bool bench) : device_(device), reference_(make_reference_backend()), bench_(bench) {}
  bool failed() const { return failed_; }

  void linear(DType dtype, int64_t tokens) {
    const int64_t rows = bench_ ? 4096 : 96, cols = bench_ ? 4096 : 192;
    const std::string name = "linear " + std::string(dtype_name(dtype));
    const auto weight = pack(device_, dtype, rows, cols);
    if (weight == nullptr) return report(name, tokens, INFINITY, 0, 0);
    const std::vector<float> x = random_floats(static_cast<size_t>(tokens * cols), 1);
    OnDevice in(device_, x), out(device_, nullptr, static_cast<size_t>(tokens * rows) * 4);
    const LinearOutput outputs[] = {{weight.get(), nullptr, out.floats(), rows, false}};
    const double seconds = time([&] { device_.linear({in.floats(), tokens, cols, outputs}); });
    double error = 0;
    if (!bench_) {
      const auto exact = pack(*reference_, dtype, rows, cols);
      std::vector<float> wanted(static_cast<size_t>(tokens * rows));
      const LinearOutput wanted_outputs[] = {{exact.get(), nullptr, wanted.data(), rows, false}};
      reference_->linear({x.data(), tokens, cols, wanted_outputs});
      // Inputs and weights of unit size, so that a sum's magnitude is about sqrt(cols); each input is rounded by 2^-9 at
      // most, in bfloat16.
      error =
          worst(out.read(), wanted, dtype == DType::kF32 ? 1e-4 : 0x1p-9 * 6 * std::sqrt(static_cast<double>(cols)));
    }
    report(name, tokens, error, seconds,
           static_cast<double>(weight->bytes()) + 4.0 * static_cast<double>(tokens * (rows + cols)));
  }

  void norm(int64_t tokens) {
    const int64_t size = bench_ ? 4096 : 192;
    const std::vector<float> x = random_floats(static_cast<size_t>(tokens * size), 1),
                             weight = random_floats(static_cast<size_t>(size), 2);
    OnDevice in(device_, x), out(device_, nullptr, x.size() * 4);
    const double seconds = time([&] {
      device_.rms_norm({in.floats(), weight.data(), tokens, size, 1e-5f, 0.0f, out.floats()});
    });
    std::vector<float> wanted(x.size());
    reference_->rms_norm({x.data(), weight.data(), tokens, size, 1e-5f, 0.0f, wanted.data()});
    report("rms_norm", tokens, worst(out.read(), wanted, 1e-4), seconds, 8.0 * static_cast<double>(x.size()));
  }

  void attention(KvDType dtype, int32_t tokens, int32_t length) {
    const KvLayout layout{dtype, bench_ ? 8 : 2, 128, 16};
    const int32_t heads = bench_ ? 32 : 4, blocks = (length + 15) / 16;
    const std::string name = "attention " + std::string(kv_dtype_name(dtype));
    const auto keys = static_cast<size_t>(length) * static_cast<size_t>(layout.num_kv_heads) * 128;
    std::vector<float> k = random_floats(keys, 4), v = random_floats(keys, 5),
                       q = random_floats(static_cast<size_t>(tokens * heads) * 128, 6);
    std::vector<int32_t> table, all, positions;
    std::vector<int64_t> slots;
    for (int32_t i = 0; i < blocks; ++i) table.push_back(i);
    for (int32_t at = 0; at < length; ++at) {
      all.push_back(at);
      slots.push_back(at);
    }
    for (int32_t at = length - tokens; at < length; ++at) positions.push_back(at);
    std::vector<std::byte> cache(static_cast<size_t>(blocks) * layout.block_bytes());
    RopeStoreParams store;
    store.k = k.data();
    store.v = v.data();
    store.num_tokens = length;
    store.positions = all.data();
    store.layout = layout;
    store.cache = cache.data();
    store.slots = slots.data();
    reference_->rope_and_store_kv(store);
    OnDevice device_cache(device_, cache.data(), cache.size()), in(device_, q), out(device_, nullptr, q.size() * 4);
    const int32_t starts[] = {0, tokens};
    const int32_t* tables[] = {table.data()};
    PagedAttentionParams p;
    p.q = in.floats();
    p.out = out.floats();
    p.num_heads = heads;
    p.num_seqs = 1;
    p.query_start = starts;
    p.block_tables = tables;
    p.positions = positions.data();
    p.layout = layout;
    p.cache = device_cache.data();
    p.scale = 1.0f / std::sqrt(128.0f);
    const double seconds = time([&] { device_.paged_attention(p); });
    double error = 0;
    if (!bench_) {
      std::vector<float> wanted(q.size());
      p.q = q.data();
      p.out = wanted.data();
      p.cache = cache.data();
      reference_->paged_attention(p);
      // Queries and weights are rounded to float16: scores below 6 err by 6 * 2^-11 sqrt(128) / sqrt(128).
      error = worst(out.read(), wanted, dtype == KvDType::kF16 ? 0.02 : 1e-4);
    }
    report(name, tokens, error, seconds, static_cast<double>(cache.size()) + 8.0 * static_cast<double>(q.size()));
  }

 private:
  // Of the largest difference in what is allowed.
  static double worst(const std::vector<float>& out, const std::vector<float>& wanted, double allowed) {
    double most = 0;
    for (size_t i = 0; i < out.size(); ++i) {
      const double share = std::fabs(static_cast<double>(out[i]) - static_cast<double>(wanted[i])) / allowed;
      most = share <= most ? most : share;  // NaN wins
    }
    return most;
  }

  // Seconds of one run: the mean of many, after one that is not counted.
  double time(const std::function<void()>& run) {
    run();
    note(device_.finish());
    if (!bench_) return 0;
    constexpr int kRuns = 50;
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kRuns; ++i) run();
    note(device_.finish());
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / kRuns;
  }

  void note(const Status& status) {
    if (status.ok()) return;
    std::fprintf(stderr, "%s\n", status.to_string().c_str());
    failed_ = true;
  }

  void report(const std::string& name, int64_t tokens, double error, double seconds, double bytes) {
    if (!(error <= 1.0)) failed_ = true;
    std::printf("{\"op\": \"%s\", \"rows\": %lld, \"error_of_allowed\": %.3g, \"seconds\": %.3g, \"bytes\": %.0f}\n",
                name.c_str(), static_cast<long long>(tokens), error <= 1e30 ? error : 1e30, seconds, bytes);
    std::fflush(stdout);
  }

  Backend& device_;
  std::unique_ptr<Backend> reference_;
  bool bench_, failed_ = false;
};

int run(const std::string& device, bool bench) {
  auto backend = engine::open_device_backend(device);
  if (!backend.ok()) {
    std::fprintf(stderr, "%s\n", backend.status().to_string().c_str());
    return 1;
  }
  Check check(**backend, bench);
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0}) {
    for (const int64_t tokens : bench ? std::vector<int64_t>{1, 16, 512} : std::vector<int64_t>{1, 9, 33}) {
      check.linear(dtype, tokens);
    }
  }
  check.norm(bench ? 512 : 3);
  for (const KvDType dtype : {KvDType::kF16, KvDType::kF32}) {
    check.attention(dtype, 1, bench ? 8192 : 200);
    check.attention(dtype, bench ? 128 : 5, bench ? 2048 : 70);
  }
  return check.failed() ? 1 : 0;
}

}  // namespace
}  // namespace headrace

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  return headrace::run(argv[1], argc > 2 && std::string(argv[2]) == "--bench");
}
