#include "roofline.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include "roofline_kernels.h"

namespace cli {
namespace {

const RooflineKernels& kernels_of(const std::string& isa) {
#if defined(__aarch64__)
  return isa == "neon_dotprod" ? kRooflineNeonDotprod : kRooflineNeon;
#else
  if (isa == "avx512_vnni") return kRooflineAvx512Vnni;
  if (isa == "avx_vnni") return kRooflineAvxVnni;
  if (isa == "avx2") return kRooflineAvx2;
  return kRooflineBaseline;
#endif
}

// Memory as the library's weights have it: on huge pages where the system gives them.
class Buffer {
 public:
  explicit Buffer(size_t bytes) : bytes_(bytes), memory_(allocate(bytes)) {
    std::fill_n(static_cast<uint64_t*>(memory_), bytes / sizeof(uint64_t), uint64_t{1});
  }
  ~Buffer() { munmap(memory_, bytes_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  const void* data() const { return memory_; }

 private:
  static void* allocate(size_t bytes) {
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::runtime_error("not enough memory to measure the memory's speed");
    madvise(memory, bytes, MADV_HUGEPAGE);
    return memory;
  }
  const size_t bytes_;
  void* const memory_;
};

// Seconds from the moment that all threads are ready until all are done; task(thread) must not throw.
template <class Task>
double seconds_of(int num_threads, const Task& task) {
  std::atomic<int> ready{0};
  std::atomic<bool> go{false};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < num_threads; ++thread) {
    threads.emplace_back([&, thread] {
      ++ready;
      while (!go.load(std::memory_order_acquire)) {
      }
      task(thread);
    });
  }
  while (ready.load() < num_threads) std::this_thread::yield();
  const auto start = std::chrono::steady_clock::now();
  go.store(true, std::memory_order_release);
  for (std::thread& thread : threads) thread.join();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// multiply(rounds) on every thread; per second, all together.
template <class Multiply>
double multiply_rate(int num_threads, uint64_t per_round, const Multiply& multiply) {
  constexpr uint64_t kRounds = 2'000'000;
  constexpr int kPasses = 5;
  double best = 0;
  for (int pass = 0; pass < kPasses; ++pass) {
    const double seconds = seconds_of(num_threads, [&](int) { multiply(kRounds); });
    best = std::max(best, static_cast<double>(kRounds * per_round) * num_threads / seconds);
  }
  return best;
}

}  // namespace

struct ReadProbe::Impl {
  static constexpr size_t kBytes = size_t{256} << 20;  // of each thread
  const RooflineKernels& kernels;
  std::vector<std::unique_ptr<Buffer>> buffers;
};

ReadProbe::ReadProbe(const std::string& isa, int num_threads) : impl_(new Impl{kernels_of(isa), {}}) {
  for (int thread = 0; thread < num_threads; ++thread) {
    impl_->buffers.push_back(std::make_unique<Buffer>(Impl::kBytes));
  }
}

ReadProbe::~ReadProbe() = default;

double ReadProbe::pass() const {
  const int num_threads = static_cast<int>(impl_->buffers.size());
  std::atomic<bool> right{true};
  const double seconds = seconds_of(num_threads, [&](int thread) {
    // The sum is compared so that the reads cannot be left out.
    const uint64_t sum = impl_->kernels.read(impl_->buffers[static_cast<size_t>(thread)]->data(), Impl::kBytes);
    if (sum != Impl::kBytes / sizeof(uint64_t)) right = false;
  });
  return right ? static_cast<double>(Impl::kBytes) * num_threads / seconds : 0;
}

Roofline measure_roofline(const std::string& isa, int num_threads) {
  const RooflineKernels& kernels = kernels_of(isa);
  Roofline roofline;
  const ReadProbe probe(isa, num_threads);
  for (int pass = 0; pass < 7; ++pass) {
    roofline.read_bytes_per_second = std::max(roofline.read_bytes_per_second, probe.pass());
  }
  roofline.int8_multiply_adds_per_second =
      multiply_rate(num_threads, kernels.int8_multiply_adds, kernels.multiply_int8);
  roofline.float_multiply_adds_per_second =
      multiply_rate(num_threads, kernels.float_multiply_adds, kernels.multiply_float);
  return roofline;
}

}  // namespace cli
