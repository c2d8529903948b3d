#include "engine/device_backend.h"

#include <dlfcn.h>

#include <charconv>
#include <optional>
#include <string>
#include <vector>

#include "ops/device_object.h"

namespace headrace::engine {
namespace {

constexpr const char* kPlace = "model.device";
constexpr std::string_view kCuda = "cuda", kEmulated = "emulated-cuda";

// The number of "cuda" or "cuda:N".
std::optional<int> cuda_number(std::string_view device) {
  if (device == kCuda) return 0;
  if (!device.starts_with("cuda:")) return std::nullopt;
  device.remove_prefix(5);
  int number = 0;
  const auto [end, error] = std::from_chars(device.data(), device.data() + device.size(), number);
  if (error != std::errc() || end != device.data() + device.size() || number < 0) return std::nullopt;
  return number;
}

// The folder of the program or shared object that this code is in, and the one for libraries beside it.
std::vector<std::string> folders() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&is_device_name), &info) == 0 || info.dli_fname == nullptr) return {};
  const std::string path = info.dli_fname;
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return {};
  return {path.substr(0, slash + 1), path.substr(0, slash + 1) + "../lib/"};
}

Result<const DeviceObject*> open_object(const std::string& name) {
  std::vector<std::string> candidates = folders();
  for (std::string& folder : candidates) folder += name;
  candidates.push_back(name);
  std::string reason;
  for (const std::string& candidate : candidates) {
    void* const handle = dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (handle == nullptr) {
      const char* const error = dlerror();
      if (error != nullptr) reason += (reason.empty() ? "" : "; ") + std::string(error);
      continue;
    }
    const auto entry = reinterpret_cast<DeviceObjectEntry>(dlsym(handle, kDeviceObjectEntry));
    const DeviceObject* const object = entry == nullptr ? nullptr : entry();
    if (object == nullptr || object->interface != kDeviceObjectInterface ||
        std::string_view(object->version) != HEADRACE_VERSION) {
      return unsupported(kPlace, "{} is not of this library's version, {}", candidate, HEADRACE_VERSION);
    }
    return object;
  }
  return unsupported(kPlace, "{} cannot be opened: {}", name, reason);
}

}  // namespace

bool is_device_name(std::string_view device) {
  return device == "cpu" || device == kEmulated || cuda_number(device).has_value();
}

Result<std::unique_ptr<Backend>> open_device_backend(std::string_view device) {
  const bool emulated = device == kEmulated;
  const std::optional<int> number = emulated ? 0 : cuda_number(device);
  if (!number) return invalid_argument(kPlace, "there is no such device");
  HEADRACE_ASSIGN_OR_RETURN(const DeviceObject* const object,
                            open_object(emulated ? "libheadrace-emulated-cuda.so" : "libheadrace-cuda.so"));
  return object->open(*number);
}

}  // namespace headrace::engine
