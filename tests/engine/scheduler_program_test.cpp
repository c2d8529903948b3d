// Random programs of a scheduler; the fuzzer of the same (tests/fuzz/scheduler_fuzz.cpp) looks for worse ones.
#include "engine/scheduler_program.h"

#include <catch2/catch.hpp>

#include <random>

using namespace headrace::engine::toy;

TEST_CASE("1500 random programs of 1500 bytes hold every law after each step") {
  std::mt19937_64 random(2024);
  uint64_t preemptions = 0, prefix_waits = 0, failed = 0, cancelled = 0, reused = 0, refused = 0, ended = 0;
  uint64_t accepted = 0;
  uint64_t disk_tokens = 0;
  headrace::KvDiskStats disk;
  for (int round = 0; round < 1500; ++round) {
    std::vector<uint8_t> bytes(1500);
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
    SchedulerProgram program(bytes.data(), bytes.size());
    const auto metrics = program.run();
    accepted += program.num_accepted();
    disk_tokens += metrics.disk_tokens;
    disk.written_files += program.disk().written_files;
    disk.evicted_files += program.disk().evicted_files;
    disk.dropped_writes += program.disk().dropped_writes;
    disk.failed_writes += program.disk().failed_writes;
    disk.missing_files += program.disk().missing_files;
    disk.unreadable_files += program.disk().unreadable_files;
    disk.truncated_files += program.disk().truncated_files;
    disk.damaged_files += program.disk().damaged_files;
    disk.foreign_files += program.disk().foreign_files;
    preemptions += metrics.preemptions;
    prefix_waits += metrics.prefix_waits;
    failed += metrics.failed_requests;
    cancelled += metrics.cancelled_samples;
    reused += metrics.reused_tokens;
    refused += metrics.refused_requests;
    ended += metrics.length_samples;
  }
  // What the laws are about did happen.
  CHECK(preemptions > 100);
  CHECK(prefix_waits > 100);
  CHECK(failed > 100);
  CHECK(cancelled > 100);
  CHECK(reused > 100);
  CHECK(refused > 100);
  CHECK(ended > 10000);
  CHECK(accepted > 10000);
  CHECK(disk_tokens > 10000);
  CHECK(disk.written_files > 10000);
  CHECK(disk.evicted_files > 100);
  CHECK(disk.dropped_writes > 100);
  CHECK(disk.failed_writes > 100);
  CHECK(disk.missing_files > 10);
  CHECK(disk.unreadable_files > 10);
  CHECK(disk.truncated_files > 10);
  CHECK(disk.damaged_files > 10);
  CHECK(disk.foreign_files > 10);
}
