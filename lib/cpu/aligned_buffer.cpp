#include "cpu/aligned_buffer.h"

#include <sys/mman.h>

#include <cstdlib>
#include <memory>
#include <new>

#include "base/checked.h"

namespace headrace {
namespace {

constexpr uint64_t kLine = 64;
constexpr uint64_t kHugePage = uint64_t{2} << 20;

}  // namespace

AlignedBuffer::~AlignedBuffer() { std::free(data_); }

bool AlignedBuffer::replace(uint64_t bytes) {
  std::free(data_);
  data_ = nullptr;
  bytes_ = 0;
  const uint64_t alignment = bytes >= kHugePage ? kHugePage : kLine;
  const auto size = checked_align<uint64_t>(bytes == 0 ? 1 : bytes, kLine);
  if (!size || *size > PTRDIFF_MAX) return false;
  void* memory = nullptr;
  if (posix_memalign(&memory, alignment, *size) != 0) return false;
  data_ = static_cast<std::byte*>(memory);
  // Fewer address translations for weights that are streamed once per token; only a hint. What does not fill a huge page
  // stays in small ones.
  if (alignment == kHugePage) static_cast<void>(::madvise(data_, *size, MADV_HUGEPAGE));
  bytes_ = bytes;
  return true;
}

Result<AlignedBuffer> AlignedBuffer::allocate(uint64_t bytes, const std::string& what) {
  AlignedBuffer buffer;
  if (!buffer.replace(bytes)) return out_of_memory(what, "{} bytes could not be allocated", bytes);
  return buffer;
}

SharedBytes AlignedBuffer::share() && {
  const auto owner = std::make_shared<const AlignedBuffer>(std::move(*this));
  return SharedBytes(owner, owner->data(), owner->size());
}

void AlignedBuffer::reserve(uint64_t bytes) {
  if (bytes <= bytes_) return;
  if (!replace(bytes)) throw std::bad_alloc();
}

}  // namespace headrace
