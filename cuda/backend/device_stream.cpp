#include "backend/device_stream.h"

#include <cstring>
#include <utility>

#if defined(HEADRACE_CUDA_EMULATED)
#include "emulator/findings.h"
#endif

namespace headrace::cuda {
namespace {

constexpr const char* kPlace = "model.device";

using Lock = std::lock_guard<std::recursive_mutex>;

std::string version_text(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

// Kernels are made for sm_80, which runs on every 8.x, and for the newer ones' own features.
bool has_kernels(int major, int minor) {
  return major == 8 || (minor == 0 && (major == 9 || major == 10 || major == 12));
}

Status check_driver() {
  int driver = 0, runtime = 0;
  static_cast<void>(cudaDriverGetVersion(&driver));
  static_cast<void>(cudaRuntimeGetVersion(&runtime));
  if (driver == 0) return unsupported(kPlace, "there is no CUDA driver on this machine");
  if (driver / 1000 < runtime / 1000) {
    return unsupported(kPlace, "the driver is of CUDA {}, and CUDA {} is needed", version_text(driver),
                       version_text(runtime));
  }
  return Status();
}

}  // namespace

Result<std::shared_ptr<DeviceStream>> DeviceStream::open(int number) {
  HEADRACE_RETURN_IF_ERROR(check_driver());
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess) {
    return unsupported(kPlace, "no CUDA device can be used: {}", cudaGetErrorString(error));
  }
  if (number < 0 || number >= count) return unsupported(kPlace, "there are {} CUDA devices, and no {}", count, number);
  cudaDeviceProp properties{};
  cudaError_t error = cudaGetDeviceProperties(&properties, number);
  if (error == cudaSuccess && !has_kernels(properties.major, properties.minor)) {
    return unsupported(kPlace, "{} has compute capability {}.{}; there are kernels for 8.x, 9.0, 10.0 and 12.0",
                       properties.name, properties.major, properties.minor);
  }
  cudaStream_t stream = nullptr;
  if (error == cudaSuccess) error = cudaSetDevice(number);
  if (error == cudaSuccess) error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  if (error != cudaSuccess) {
    return unsupported(kPlace, "{} cannot be used: {}", properties.name, cudaGetErrorString(error));
  }
  return std::shared_ptr<DeviceStream>(new DeviceStream(number, properties.name, stream));
}

DeviceStream::~DeviceStream() {
  const Lock lock(mutex_);
  static_cast<void>(cudaSetDevice(number_));
  static_cast<void>(cudaStreamDestroy(stream_));
}

void DeviceStream::note(cudaError_t error, std::string_view what) {
  if (error == cudaSuccess) return;
  const auto code = error == cudaErrorMemoryAllocation ? StatusCode::kOutOfMemory : StatusCode::kInternal;
  note(Status(code, fmt::format("{}: {}", what, cudaGetErrorString(error)), device_name_));
}

void DeviceStream::note(Status failure) {
  const Lock lock(mutex_);
  if (failure_.ok()) failure_ = std::move(failure);
}

Status DeviceStream::take_failure() {
  const Lock lock(mutex_);
  select();
  note(cudaStreamSynchronize(stream_), "the step");
#if defined(HEADRACE_CUDA_EMULATED)
  if (emulator::has_findings()) {
    note(internal_error(device_name_, "the emulator found: {}", emulator::to_string(emulator::take_findings())));
  }
#endif
  return std::exchange(failure_, Status());
}

bool DeviceStream::owns(const void* pointer) const {
  const Lock lock(mutex_);
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  const auto next = allocations_.upper_bound(address);
  if (next == allocations_.begin()) return false;
  const auto& [begin, size] = *std::prev(next);
  return address - begin < size;
}

std::byte* DeviceStream::allocate(size_t bytes) {
  const Lock lock(mutex_);
  select();
  void* data = nullptr;
  if (bytes == 0 || cudaMalloc(&data, bytes) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());  // no room is no failure of the device
    return nullptr;
  }
  allocations_[reinterpret_cast<uintptr_t>(data)] = bytes;
  note(cudaMemsetAsync(data, 0, bytes, stream_), "clearing memory");
  return static_cast<std::byte*>(data);
}

void DeviceStream::free(std::byte* data) {
  const Lock lock(mutex_);
  select();
  allocations_.erase(reinterpret_cast<uintptr_t>(data));
  note(cudaStreamSynchronize(stream_), "the step");
  note(cudaFree(data), "freeing memory");
}

void DeviceStream::copy(const void* from, void* to, size_t bytes) {
  const Lock lock(mutex_);
  select();
  if (bytes > 0) note(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_), "a copy on the device");
}

void DeviceStream::clear(void* data, size_t bytes) {
  const Lock lock(mutex_);
  select();
  if (bytes > 0) note(cudaMemsetAsync(data, 0, bytes, stream_), "clearing memory");
}

void DeviceStream::read(const void* from, void* to, size_t bytes) {
  const Lock lock(mutex_);
  if (bytes == 0) return;
  select();
  cudaError_t error = cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream_);
  if (error == cudaSuccess) error = cudaStreamSynchronize(stream_);
  if (error == cudaSuccess) return;
  std::memset(to, 0, bytes);
  note(error, "a copy from the device");
}

void DeviceStream::write(const void* from, void* to, size_t bytes) {
  const Lock lock(mutex_);
  select();
  // Of memory that is not pinned, the source may be used again when the call returns.
  if (bytes > 0) note(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream_), "a copy to the device");
}

}  // namespace headrace::cuda
