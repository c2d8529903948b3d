#include "capi/failing_allocations.h"

#include <cstdlib>
#include <new>

namespace capi_test {

thread_local FailingAllocations failing_allocations;

namespace {

bool fails() {
  FailingAllocations& state = failing_allocations;
  if (state.left < 0) return false;
  if (state.left > 0) {
    --state.left;
    return false;
  }
  state.failed = true;
  if (!state.and_all) state.left = -1;
  return true;
}

void* allocate(std::size_t size, std::size_t alignment) {
  void* memory = nullptr;
  if (!fails()) {
    if (size == 0) size = 1;
    memory = alignment <= alignof(std::max_align_t)
                 ? std::malloc(size)
                 : std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
  }
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace
}  // namespace capi_test

// The array and nothrow forms of the standard library call these.
void* operator new(std::size_t size) { return capi_test::allocate(size, 1); }
void* operator new(std::size_t size, std::align_val_t alignment) {
  return capi_test::allocate(size, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
