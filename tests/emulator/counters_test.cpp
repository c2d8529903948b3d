// What is counted of kernels whose traffic is known.
#include "emulated.h"
#include "emulator/roofline.h"
#include "probes.h"

namespace headrace::emulator {
namespace {

Counters counted() {
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  const std::vector<Counters> all = take_counters();
  REQUIRE(all.size() == 1);
  REQUIRE(take_findings().empty());
  return all[0];
}

}  // namespace

TEST_CASE("Sectors and bank conflicts of strided access") {
  for (const int stride : {1, 2, 3, 4, 8, 17, 32}) {
    DeviceArray<float> in(std::vector<float>(32 * 32, 1.0f)), out(32);
    REQUIRE(probe_strided(in.get(), out.get(), stride) == cudaSuccess);
    const Counters c = counted();
    INFO("stride " << stride << "\n" << to_string(c));
    CHECK(c.global_loads.requests == 1);
    CHECK(c.global_loads.bytes == 128);
    CHECK(c.global_loads.ideal_sectors == 4);
    const uint64_t sectors = stride >= 8 ? 32 : static_cast<uint64_t>(31 * stride) / 8 + 1;
    CHECK(c.global_loads.sectors == sectors);
    CHECK(c.bytes_read == sectors * 32);
    CHECK(c.global_stores.sectors == 4);
    CHECK(c.bytes_written == 128);
    // Lanes on one bank: the greatest common divisor of the stride and 32.
    const uint64_t on_one_bank = stride % 32 == 0  ? 32
                                 : stride % 8 == 0 ? 8
                                 : stride % 4 == 0 ? 4
                                 : stride % 2 == 0 ? 2
                                                   : 1;
    CHECK(c.shared_stores.wavefronts == on_one_bank);
    CHECK(c.shared_loads.conflicts == on_one_bank - 1);
    CHECK(c.conflicts_at.empty() == (on_one_bank == 1));
  }
}

TEST_CASE("Copies of sixteen bytes are counted as they are asked for, in any order of threads") {
  for (const Options& one : schedules(4)) {
    options() = one;
    DeviceArray<uint4> in(std::vector<uint4>(8 * 128, uint4{1, 2, 3, 4})), out(8 * 128);
    REQUIRE(probe_pipeline(in.get(), out.get(), 8, Fault::kNone) == cudaSuccess);
    const Counters c = counted();
    INFO(to_string(c));
    CHECK(c.bytes_read == 8 * 128 * 16);
    CHECK(c.bytes_written == 8 * 128 * 16);
    CHECK(c.global_loads.sectors == c.global_loads.ideal_sectors);
    CHECK(c.global_stores.sectors == c.global_stores.ideal_sectors);
    CHECK(c.shared_loads.wavefronts == 8 * 128 * 16 / 128);
    CHECK(c.conflicts() == 0);
    CHECK(c[Instruction::kAsyncCopy] == 8 * 128);
    CHECK(c[Instruction::kBarrier] == 8 * 128);
    const Roofline bound = roofline(c, kH200);
    CHECK(bound.limit == std::string("memory"));
    CHECK(bound.seconds == Approx(2 * 8 * 128 * 16 / 4.8e12));
    CHECK(roofline(c, kB200).seconds < bound.seconds);
  }
  options() = Options{};
}

TEST_CASE("Matrix instructions and their operations") {
  DeviceArray<uint8_t> a(std::vector<uint8_t>(512)), b(std::vector<uint8_t>(256));
  DeviceArray<uint32_t> d(128);
  for (const int type : {0, 1, 2}) {
    REQUIRE(probe_mma(type, a.get(), b.get(), d.get()) == cudaSuccess);
    const Counters c = counted();
    CHECK(c[Instruction::kMmaF16] == (type == 0));
    CHECK(c[Instruction::kMmaBf16] == (type == 1));
    CHECK(c[Instruction::kMmaS8] == (type == 2));
    CHECK(c.mma_f16_flops == (type == 2 ? 0 : 2 * 16 * 8 * 16));
    CHECK(c.mma_s8_ops == (type == 2 ? 2 * 16 * 8 * 32 : 0));
    CHECK(c[Instruction::kMatrixLoad] == 32);
  }
}

}  // namespace headrace::emulator
