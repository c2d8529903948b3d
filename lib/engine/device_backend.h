// Backends of devices, from shared objects that are opened when a model asks for them.
#pragma once

#include <memory>
#include <string_view>

#include "base/status.h"
#include "ops/backend.h"

namespace headrace::engine {

// "cpu", "cuda", "cuda:N" or "emulated-cuda".
bool is_device_name(std::string_view device);

// The backend of a device other than "cpu". kUnsupported with "model.device" as place where the object (libheadrace-cuda.so,
// beside this library or where the loader looks) is missing or of another version, and what DeviceObject::open says. Objects
// stay open to the end of the process.
Result<std::unique_ptr<Backend>> open_device_backend(std::string_view device);

}  // namespace headrace::engine
