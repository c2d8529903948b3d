// How the library meets the shared object of a kind of device, which it opens at run time: both are built from one source.
#pragma once

#include <cstdint>
#include <memory>

#include "base/status.h"
#include "ops/backend.h"

namespace headrace {

struct DeviceObject {
  // Raised with every change of what the two sides share: Backend, its parameters, Status.
  uint32_t interface = 0;
  const char* version = nullptr;  // of the library that it was built with
  // The backend of the device of this number. kUnsupported where there is no driver or device, or one that the object was
  // not made for.
  Result<std::unique_ptr<Backend>> (*open)(int number) = nullptr;
};
inline constexpr uint32_t kDeviceObjectInterface = 1;

// The one function that such an object exports.
inline constexpr const char* kDeviceObjectEntry = "headrace_device_object";
using DeviceObjectEntry = const DeviceObject* (*)();

}  // namespace headrace
