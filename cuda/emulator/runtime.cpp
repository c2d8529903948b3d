// Devices, memory, streams, events and graphs. A stream is a queue of functions that run when somebody waits for them;
// meanwhile other streams advance at random. So what does not wait for what it needs, reads what is not there yet.
#include "emulator/runtime.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "emulator/memory.h"

namespace headrace::emulator {
namespace {

// A place in a stream: everything enqueued up to it.
struct Point {
  EmulatedStream* stream = nullptr;
  uint64_t position = 0;
};

struct Operation {
  std::function<cudaError_t()> run;
  std::vector<Point> after;
};

struct Capture {
  EmulatedStream* origin;
  std::vector<std::function<cudaError_t()>> operations;  // in the order of the calls, which is one they may run in
};

}  // namespace
}  // namespace headrace::emulator

using namespace headrace::emulator;

struct EmulatedStream {
  bool blocking = true;  // waits for the default stream and the other way round
  std::deque<Operation> queue;
  uint64_t enqueued = 0, done = 0;
  std::shared_ptr<Capture> capture;
};
struct EmulatedEvent {
  Point point;  // of the last record; no stream: none yet, or destroyed
  std::shared_ptr<Capture> capture;
};
struct EmulatedGraph {
  std::vector<std::function<cudaError_t()>> operations;
};
struct EmulatedGraphExec {
  std::vector<std::function<cudaError_t()>> operations;
};

namespace headrace::emulator {
namespace {

struct Device {
  EmulatedStream default_stream;
  std::vector<std::unique_ptr<EmulatedStream>> streams;  // destroyed ones stay: events may point into them
  std::vector<EmulatedStream*> live{&default_stream};
  std::map<char*, size_t> pinned;
  std::map<const void*, int> dynamic_shared_limit;
  cudaError_t last_error = cudaSuccess;
  cudaError_t fault = cudaSuccess;  // of a kernel that was given up; the next synchronisation returns it
  Random random;
};

Device& device() {
  static Device value;
  return value;
}

cudaError_t returned(cudaError_t error) {
  if (error != cudaSuccess) device().last_error = error;
  return error;
}

EmulatedStream* stream_of(cudaStream_t stream) { return stream == nullptr ? &device().default_stream : stream; }

bool is_capturing() {
  return std::any_of(device().live.begin(), device().live.end(), [](auto* s) { return s->capture != nullptr; });
}

void enqueue(EmulatedStream* stream, std::function<cudaError_t()> run, std::vector<Point> after = {}) {
  if (stream->capture != nullptr) {
    if (run) stream->capture->operations.push_back(std::move(run));
    return;
  }
  EmulatedStream* standard = &device().default_stream;
  for (EmulatedStream* other : device().live) {
    const bool ordered = stream == standard ? other->blocking : stream->blocking && other == standard;
    if (other != stream && ordered) after.push_back({other, other->enqueued});
  }
  stream->queue.push_back({std::move(run), std::move(after)});
  ++stream->enqueued;
}

// Runs the stream's next operation if what it waits for is done.
bool advance(EmulatedStream* stream) {
  if (stream->queue.empty()) return false;
  for (const Point& point : stream->queue.front().after) {
    if (point.stream->done < point.position) return false;
  }
  const Operation operation = std::move(stream->queue.front());
  stream->queue.pop_front();
  if (operation.run) {
    if (const cudaError_t error = operation.run(); error != cudaSuccess) device().fault = error;
  }
  ++stream->done;
  return true;
}

void run_until(const Point& point) {
  Device& d = device();
  while (point.stream->done < point.position) {
    EmulatedStream* chosen =
        d.random.below(2) == 0 ? point.stream : d.live[d.random.below(static_cast<uint32_t>(d.live.size()))];
    if (advance(chosen)) continue;
    // What stands in front of it is in another stream. Events are recorded before they are waited for, so one can go on.
    if (!advance(point.stream)) {
      for (EmulatedStream* other : d.live) advance(other);
    }
  }
}

cudaError_t wait_for(const Point& point) {
  run_until(point);
  return returned(std::exchange(device().fault, cudaSuccess));
}

bool is_pinned(const void* address, size_t size) {
  auto next = device().pinned.upper_bound(const_cast<char*>(static_cast<const char*>(address)));
  if (next == device().pinned.begin()) return false;
  const auto [begin, bytes] = *std::prev(next);
  const auto offset = static_cast<size_t>(static_cast<const char*>(address) - begin);
  return offset <= bytes && size <= bytes - offset;
}

bool fits(const void* to, const void* from, size_t size, cudaMemcpyKind kind) {
  const bool to_device = is_device_memory(to, size), from_device = is_device_memory(from, size);
  switch (kind) {
    case cudaMemcpyHostToHost: return !to_device && !from_device;
    case cudaMemcpyHostToDevice: return to_device && !from_device;
    case cudaMemcpyDeviceToHost: return !to_device && from_device;
    case cudaMemcpyDeviceToDevice: return to_device && from_device;
    case cudaMemcpyDefault: break;
  }
  return true;
}

void copy_bytes(void* to, const void* from, size_t size) {
  std::memmove(to, from, size);
  if (is_device_memory(to, size)) mark_written(to, size);
}

}  // namespace

DeviceSettings& device_settings() {
  static DeviceSettings value;
  return value;
}

cudaError_t enqueue_launch(cudaStream_t stream, Launch launch) {
  const auto limit = device().dynamic_shared_limit.find(launch.kernel);
  const size_t allowed =
      limit == device().dynamic_shared_limit.end() ? kDefaultSharedBytes : static_cast<size_t>(limit->second);
  if (launch.shared_bytes > allowed) return returned(cudaErrorInvalidValue);
  enqueue(stream_of(stream),
          [launch = std::move(launch)] { return run(launch) ? cudaSuccess : cudaErrorLaunchFailure; });
  return cudaSuccess;
}

}  // namespace headrace::emulator

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "cudaSuccess";
    case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidConfiguration: return "cudaErrorInvalidConfiguration";
    case cudaErrorInvalidDevice: return "cudaErrorInvalidDevice";
    case cudaErrorInvalidResourceHandle: return "cudaErrorInvalidResourceHandle";
    case cudaErrorNotReady: return "cudaErrorNotReady";
    case cudaErrorLaunchFailure: return "cudaErrorLaunchFailure";
    case cudaErrorCooperativeLaunchTooLarge: return "cudaErrorCooperativeLaunchTooLarge";
    case cudaErrorStreamCaptureUnsupported: return "cudaErrorStreamCaptureUnsupported";
  }
  return "unrecognized error code";
}
const char* cudaGetErrorString(cudaError_t error) { return cudaGetErrorName(error); }
cudaError_t cudaGetLastError() { return std::exchange(device().last_error, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return device().last_error; }

cudaError_t cudaGetDeviceCount(int* count) { return *count = 1, cudaSuccess; }
cudaError_t cudaGetDevice(int* current_device) { return *current_device = 0, cudaSuccess; }
cudaError_t cudaSetDevice(int number) { return number == 0 ? cudaSuccess : returned(cudaErrorInvalidDevice); }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int number) {
  if (number != 0) return returned(cudaErrorInvalidDevice);
  const DeviceSettings& settings = device_settings();
  *properties = {};
  std::strcpy(properties->name, "Headrace's CUDA emulator");
  properties->totalGlobalMem = settings.memory_bytes;
  properties->sharedMemPerBlock = kDefaultSharedBytes;
  properties->sharedMemPerBlockOptin = kMaxSharedBytes;
  properties->major = settings.compute_major;
  properties->minor = settings.compute_minor;
  properties->multiProcessorCount = settings.multiprocessors;
  properties->maxThreadsPerBlock = 1024;
  properties->warpSize = 32;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) { return *version = 13000, cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int* version) { return *version = 13000, cudaSuccess; }

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *total = device_settings().memory_bytes;
  *free = *total - std::min(*total, device_bytes_in_use());
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** pointer, size_t size) {
  if (is_capturing()) return returned(cudaErrorStreamCaptureUnsupported);
  DeviceSettings& settings = device_settings();
  *pointer = nullptr;
  if (size == 0) return cudaSuccess;
  const bool fails = settings.failing_allocation > 0 && --settings.failing_allocation == 0;
  const size_t room = settings.memory_bytes - std::min(settings.memory_bytes, device_bytes_in_use());
  if (!fails && size <= room) *pointer = device_allocate(size);
  return *pointer == nullptr ? returned(cudaErrorMemoryAllocation) : cudaSuccess;
}
cudaError_t cudaFree(void* pointer) {
  if (pointer == nullptr) return cudaSuccess;
  const cudaError_t error = cudaDeviceSynchronize();
  return device_free(pointer) ? error : returned(cudaErrorInvalidValue);
}
cudaError_t cudaMallocHost(void** pointer, size_t size) {
  *pointer = new char[size];
  device().pinned[static_cast<char*>(*pointer)] = size;
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* pointer) {
  if (pointer == nullptr) return cudaSuccess;
  if (device().pinned.erase(static_cast<char*>(pointer)) == 0) return returned(cudaErrorInvalidValue);
  delete[] static_cast<char*>(pointer);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size, cudaMemcpyKind kind, cudaStream_t stream) {
  if (!fits(to, from, size, kind)) return returned(cudaErrorInvalidValue);
  EmulatedStream* s = stream_of(stream);
  const bool pageable_source = !is_device_memory(from, size) && !is_pinned(from, size);
  const bool pageable_target = !is_device_memory(to, size) && !is_pinned(to, size);
  if ((pageable_source || pageable_target) && s->capture != nullptr) return returned(cudaErrorStreamCaptureUnsupported);
  if (pageable_source) {  // is read before the call returns
    const char* bytes = static_cast<const char*>(from);
    enqueue(s, [to, staged = std::vector<char>(bytes, bytes + size)] {
      copy_bytes(to, staged.data(), staged.size());
      return cudaSuccess;
    });
  } else {
    enqueue(s, [=] {
      copy_bytes(to, from, size);
      return cudaSuccess;
    });
  }
  return pageable_target ? wait_for({s, s->enqueued}) : cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t size, cudaMemcpyKind kind) {
  if (is_capturing()) return returned(cudaErrorStreamCaptureUnsupported);
  if (const cudaError_t error = cudaMemcpyAsync(to, from, size, kind, nullptr); error != cudaSuccess) return error;
  return cudaStreamSynchronize(nullptr);
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t size, cudaStream_t stream) {
  if (!is_device_memory(to, size)) return returned(cudaErrorInvalidValue);
  enqueue(stream_of(stream), [=] {
    std::memset(to, value, size);
    mark_written(to, size);
    return cudaSuccess;
  });
  return cudaSuccess;
}
cudaError_t cudaMemset(void* to, int value, size_t size) { return cudaMemsetAsync(to, value, size, nullptr); }

cudaError_t cudaStreamCreate(cudaStream_t* stream) { return cudaStreamCreateWithFlags(stream, cudaStreamDefault); }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  device().streams.push_back(std::make_unique<EmulatedStream>());
  *stream = device().streams.back().get();
  (*stream)->blocking = flags != cudaStreamNonBlocking;
  device().live.push_back(*stream);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  auto& live = device().live;
  const auto found = std::find(live.begin() + 1, live.end(), stream);
  if (found == live.end()) return returned(cudaErrorInvalidResourceHandle);
  run_until({stream, stream->enqueued});
  live.erase(found);
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  EmulatedStream* s = stream_of(stream);
  if (s->capture != nullptr) return returned(cudaErrorStreamCaptureUnsupported);
  return wait_for({s, s->enqueued});
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  EmulatedStream* s = stream_of(stream);
  if (s->capture != nullptr) return returned(cudaErrorStreamCaptureUnsupported);
  advance(s);
  return s->done == s->enqueued ? returned(std::exchange(device().fault, cudaSuccess)) : cudaErrorNotReady;
}
cudaError_t cudaDeviceSynchronize() {
  if (is_capturing()) return returned(cudaErrorStreamCaptureUnsupported);
  for (EmulatedStream* stream : std::vector<EmulatedStream*>(device().live)) run_until({stream, stream->enqueued});
  return returned(std::exchange(device().fault, cudaSuccess));
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, void (*function)(void* user), void* user) {
  enqueue(stream_of(stream), [=] {
    function(user);
    return cudaSuccess;
  });
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) { return *event = new EmulatedEvent, cudaSuccess; }
cudaError_t cudaEventDestroy(cudaEvent_t event) { return delete event, cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  EmulatedStream* s = stream_of(stream);
  event->capture = s->capture;
  enqueue(s, nullptr);
  event->point = {s, s->enqueued};
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (event->capture != nullptr) return returned(cudaErrorStreamCaptureUnsupported);
  return event->point.stream == nullptr ? cudaSuccess : wait_for(event->point);
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (event->capture != nullptr) return returned(cudaErrorStreamCaptureUnsupported);
  if (event->point.stream == nullptr || event->point.stream->done >= event->point.position) return cudaSuccess;
  advance(event->point.stream);
  return event->point.stream->done >= event->point.position ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  EmulatedStream* s = stream_of(stream);
  if (event->capture != nullptr) {  // the stream joins the capture
    if (s->capture != nullptr && s->capture != event->capture) return returned(cudaErrorStreamCaptureUnsupported);
    s->capture = event->capture;
  } else if (event->point.stream != nullptr) {
    enqueue(s, nullptr, {event->point});
  }
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  if (stream == nullptr || stream->capture != nullptr) return returned(cudaErrorStreamCaptureUnsupported);
  stream->capture = std::make_shared<Capture>(Capture{stream, {}});
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  if (stream == nullptr || stream->capture == nullptr || stream->capture->origin != stream) {
    return returned(cudaErrorInvalidValue);
  }
  const std::shared_ptr<Capture> capture = stream->capture;
  for (EmulatedStream* other : device().live) {
    if (other->capture == capture) other->capture = nullptr;
  }
  *graph = new EmulatedGraph{capture->operations};
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  return *executable = new EmulatedGraphExec{graph->operations}, cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  for (const auto& operation : executable->operations) enqueue(stream_of(stream), operation);
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return delete graph, cudaSuccess; }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) { return delete executable, cudaSuccess; }

cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute, int value) {
  if (value < 0 || static_cast<size_t>(value) > kMaxSharedBytes) return returned(cudaErrorInvalidValue);
  device().dynamic_shared_limit[function] = value;
  return cudaSuccess;
}
