#include "backend/op_buffers.h"

#include <cstring>
#include <utility>

namespace headrace::cuda {
namespace {

constexpr size_t kAlignment = 256, kSmallestArena = size_t{1} << 20;

}  // namespace

void OpBuffers::begin() {
  if (arenas_.size() > 1) arenas_.erase(arenas_.begin(), arenas_.end() - 1);  // the last is in use
  used_ = 0;
  outputs_.clear();
  if (constants_.size() >= kMostConstants) constants_.clear();
  device_->select();
}

void OpBuffers::end() {
  for (const Output& output : outputs_) device_->read(output.device, output.host, output.bytes);
  outputs_.clear();
}

std::byte* OpBuffers::scratch(size_t bytes) {
  bytes = (std::max<size_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
  const size_t room = arenas_.empty() ? 0 : arenas_.back().size();
  if (used_ + bytes > room) {
    DeviceBytes arena(device_, std::max({kSmallestArena, 2 * room, bytes}));
    if (arena.data() == nullptr) arena = DeviceBytes(device_, bytes);
    if (arena.data() == nullptr) {
      device_->note(out_of_memory("workspace", "the device has no {} bytes left for an op", bytes));
      return nullptr;
    }
    arenas_.push_back(std::move(arena));
    used_ = 0;
  }
  return arenas_.back().data() + std::exchange(used_, used_ + bytes);
}

const float* OpBuffers::input(const float* values, int64_t count) {
  if (values == nullptr || device_->owns(values)) return values;
  float* const place = scratch<float>(count);
  if (place != nullptr) device_->write(values, place, static_cast<size_t>(count) * sizeof(float));
  return place;
}

float* OpBuffers::output(float* values, int64_t count, bool keep) {
  if (values == nullptr || device_->owns(values)) return values;
  const size_t bytes = static_cast<size_t>(count) * sizeof(float);
  float* const place = scratch<float>(count);
  if (place == nullptr) return nullptr;
  if (keep) device_->write(values, place, bytes);
  outputs_.push_back({values, reinterpret_cast<const std::byte*>(place), bytes});
  return place;
}

const float* OpBuffers::constant(const float* values, int64_t count) {
  if (values == nullptr || device_->owns(values)) return values;
  return static_cast<const float*>(kept(constants_[values], values, static_cast<size_t>(count) * sizeof(float)));
}

const void* OpBuffers::kept(Kept& place, const void* values, size_t bytes) {
  if (place.bytes.size() == bytes && std::memcmp(place.bytes.data(), values, bytes) == 0) return place.device.data();
  place.bytes.clear();
  if (!reserve(place.device, bytes)) return nullptr;
  const auto* from = static_cast<const std::byte*>(values);
  place.bytes.assign(from, from + bytes);
  device_->write(values, place.device.data(), bytes);
  return place.device.data();
}

bool OpBuffers::reserve(DeviceBytes& place, size_t bytes) {
  if (place.size() >= bytes) return true;
  place = DeviceBytes();
  place = DeviceBytes(device_, std::max(2 * bytes, kAlignment));
  if (place.data() == nullptr) device_->note(out_of_memory("workspace", "the device has no {} bytes left", bytes));
  return place.data() != nullptr;
}

}  // namespace headrace::cuda
