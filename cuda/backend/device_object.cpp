#include "ops/device_object.h"

#include "backend/cuda_backend.h"

extern "C" __attribute__((visibility("default"))) const headrace::DeviceObject* headrace_device_object() {
  static const headrace::DeviceObject object{headrace::kDeviceObjectInterface, HEADRACE_VERSION,
                                             headrace::cuda::make_cuda_backend};
  return &object;
}
