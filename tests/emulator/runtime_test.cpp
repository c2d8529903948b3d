// The emulated runtime: streams run beside each other, in no order but the one asked for; graphs repeat what was captured.
#include <cstring>

#include "emulated.h"
#include "emulator/runtime.h"
#include "probes.h"

namespace headrace::emulator {

TEST_CASE("What a stream does waits for an event, and only then comes after it") {
  int right = 0, right_without = 0;
  for (int turn = 0; turn < 40; ++turn) {
    for (const bool waits : {true, false}) {
      cudaStream_t first = nullptr, second = nullptr;
      REQUIRE(cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking) == cudaSuccess);
      REQUIRE(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking) == cudaSuccess);
      cudaEvent_t event = nullptr;
      REQUIRE(cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == cudaSuccess);
      DeviceArray<int> values(std::vector<int>(32, 1)), copy(32);
      REQUIRE(probe_add(values.get(), 32, 1, first) == cudaSuccess);
      REQUIRE(cudaEventRecord(event, first) == cudaSuccess);
      if (waits) REQUIRE(cudaStreamWaitEvent(second, event) == cudaSuccess);
      REQUIRE(cudaMemcpyAsync(copy.get(), values.get(), 128, cudaMemcpyDeviceToDevice, second) == cudaSuccess);
      REQUIRE(cudaStreamSynchronize(second) == cudaSuccess);
      const bool is_right = copy.read() == std::vector<int>(32, 2);
      (waits ? right : right_without) += is_right;
      REQUIRE(cudaStreamSynchronize(first) == cudaSuccess);
      REQUIRE(cudaEventQuery(event) == cudaSuccess);
      REQUIRE(cudaEventDestroy(event) == cudaSuccess);
      REQUIRE(cudaStreamDestroy(first) == cudaSuccess);
      REQUIRE(cudaStreamDestroy(second) == cudaSuccess);
    }
  }
  CHECK(right == 40);
  CHECK(right_without < 40);
}

TEST_CASE("The default stream waits for blocking streams, and they for it") {
  for (int turn = 0; turn < 20; ++turn) {
    cudaStream_t stream = nullptr;
    REQUIRE(cudaStreamCreate(&stream) == cudaSuccess);
    DeviceArray<int> values(std::vector<int>(32, 1));
    REQUIRE(probe_add(values.get(), 32, 1, stream) == cudaSuccess);
    REQUIRE(cudaMemsetAsync(values.get(), 0, 64, nullptr) == cudaSuccess);
    REQUIRE(probe_add(values.get(), 32, 5, stream) == cudaSuccess);
    REQUIRE(cudaStreamSynchronize(stream) == cudaSuccess);
    std::vector<int> expected(32, 7);
    std::fill(expected.begin(), expected.begin() + 16, 5);
    CHECK(values.read() == expected);
    REQUIRE(cudaStreamDestroy(stream) == cudaSuccess);
  }
}

TEST_CASE("Pageable sources are read at once, pinned ones when the copy runs") {
  cudaStream_t stream = nullptr;
  REQUIRE(cudaStreamCreate(&stream) == cudaSuccess);
  int* pinned = nullptr;
  REQUIRE(cudaMallocHost(&pinned, 4) == cudaSuccess);
  int pageable = *pinned = 1;
  DeviceArray<int> from_pageable(1), from_pinned(1);
  REQUIRE(cudaMemcpyAsync(from_pageable.get(), &pageable, 4, cudaMemcpyHostToDevice, stream) == cudaSuccess);
  REQUIRE(cudaMemcpyAsync(from_pinned.get(), pinned, 4, cudaMemcpyHostToDevice, stream) == cudaSuccess);
  pageable = *pinned = 2;
  REQUIRE(cudaStreamSynchronize(stream) == cudaSuccess);
  CHECK(from_pageable.read()[0] == 1);
  CHECK(from_pinned.read()[0] == 2);
  REQUIRE(cudaFreeHost(pinned) == cudaSuccess);
  REQUIRE(cudaStreamDestroy(stream) == cudaSuccess);
}

TEST_CASE("A graph repeats captured launches and copies of two streams") {
  cudaStream_t stream = nullptr, side = nullptr;
  REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
  REQUIRE(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking) == cudaSuccess);
  cudaEvent_t fork = nullptr, join = nullptr;
  REQUIRE(cudaEventCreate(&fork) == cudaSuccess);
  REQUIRE(cudaEventCreate(&join) == cudaSuccess);
  DeviceArray<int> values(std::vector<int>(32, 0)), copy(std::vector<int>(32, 0));

  REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal) == cudaSuccess);
  REQUIRE(probe_add(values.get(), 32, 1, stream) == cudaSuccess);
  REQUIRE(cudaEventRecord(fork, stream) == cudaSuccess);
  REQUIRE(cudaStreamWaitEvent(side, fork) == cudaSuccess);
  REQUIRE(cudaMemcpyAsync(copy.get(), values.get(), 128, cudaMemcpyDeviceToDevice, side) == cudaSuccess);
  REQUIRE(cudaEventRecord(join, side) == cudaSuccess);
  REQUIRE(cudaStreamWaitEvent(stream, join) == cudaSuccess);
  CHECK(cudaStreamSynchronize(stream) == cudaErrorStreamCaptureUnsupported);
  void* none = nullptr;
  CHECK(cudaMalloc(&none, 16) == cudaErrorStreamCaptureUnsupported);
  cudaGraph_t graph = nullptr;
  REQUIRE(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
  CHECK(values.read() == std::vector<int>(32, 0));  // captured, not run

  cudaGraphExec_t executable = nullptr;
  REQUIRE(cudaGraphInstantiate(&executable, graph) == cudaSuccess);
  REQUIRE(cudaGraphDestroy(graph) == cudaSuccess);
  for (int turn = 0; turn < 3; ++turn) REQUIRE(cudaGraphLaunch(executable, stream) == cudaSuccess);
  REQUIRE(cudaStreamSynchronize(stream) == cudaSuccess);
  CHECK(copy.read() == std::vector<int>(32, 3));
  REQUIRE(cudaGraphExecDestroy(executable) == cudaSuccess);
  REQUIRE(cudaEventDestroy(fork) == cudaSuccess);
  REQUIRE(cudaEventDestroy(join) == cudaSuccess);
  REQUIRE(cudaStreamDestroy(side) == cudaSuccess);
  REQUIRE(cudaStreamDestroy(stream) == cudaSuccess);
  CHECK(take_findings().empty());
}

TEST_CASE("Memory runs out where it should, and copies must fit") {
  DeviceSettings& settings = device_settings();
  const DeviceSettings before = settings;
  void* pointer = nullptr;
  settings.memory_bytes = 1 << 20;
  CHECK(cudaMalloc(&pointer, (1 << 20) + 1) == cudaErrorMemoryAllocation);
  CHECK(pointer == nullptr);
  CHECK(cudaGetLastError() == cudaErrorMemoryAllocation);
  CHECK(cudaGetLastError() == cudaSuccess);
  settings = before;
  settings.failing_allocation = 2;
  CHECK(cudaMalloc(&pointer, 256) == cudaSuccess);
  void* second = nullptr;
  CHECK(cudaMalloc(&second, 256) == cudaErrorMemoryAllocation);
  CHECK(cudaMalloc(&second, 256) == cudaSuccess);
  size_t free = 0, total = 0;
  CHECK(cudaMemGetInfo(&free, &total) == cudaSuccess);
  CHECK(total - free == 512);
  char host[512] = {};
  CHECK(cudaMemcpy(pointer, host, 257, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
  CHECK(cudaMemcpy(host, host + 256, 16, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
  CHECK(cudaFree(static_cast<char*>(pointer) + 1) == cudaErrorInvalidValue);
  CHECK(cudaFree(pointer) == cudaSuccess);
  CHECK(cudaFree(second) == cudaSuccess);
  cudaDeviceProp properties;
  CHECK(cudaGetDeviceProperties(&properties, 0) == cudaSuccess);
  CHECK(properties.major == 9);
  CHECK(cudaGetDeviceProperties(&properties, 1) == cudaErrorInvalidDevice);
}

}  // namespace headrace::emulator
