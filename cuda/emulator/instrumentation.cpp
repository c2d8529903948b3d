// Where kernels' own loads and stores arrive. Kernels are compiled with -fsanitize=thread and linked without its
// library: the functions it would call are these.
#include <cstring>

#include "emulator/memory_access.h"
#include "emulator/race_detector.h"
#include "emulator/threads.h"

using headrace::emulator::access;
using headrace::emulator::kReadAccess;
using headrace::emulator::kWriteAccess;

#define HEADRACE_CALLER __builtin_return_address(0)
#define HEADRACE_TSAN_ACCESSES(size)                                                                    \
  void __tsan_read##size(void* p) { access(p, size, kReadAccess, HEADRACE_CALLER); }                    \
  void __tsan_write##size(void* p) { access(p, size, kWriteAccess, HEADRACE_CALLER); }                  \
  void __tsan_unaligned_read##size(void* p) { access(p, size, kReadAccess, HEADRACE_CALLER); }          \
  void __tsan_unaligned_write##size(void* p) { access(p, size, kWriteAccess, HEADRACE_CALLER); }        \
  void __tsan_volatile_read##size(void* p) { access(p, size, kReadAccess, HEADRACE_CALLER); }           \
  void __tsan_volatile_write##size(void* p) { access(p, size, kWriteAccess, HEADRACE_CALLER); }         \
  void __tsan_unaligned_volatile_read##size(void* p) { access(p, size, kReadAccess, HEADRACE_CALLER); } \
  void __tsan_unaligned_volatile_write##size(void* p) { access(p, size, kWriteAccess, HEADRACE_CALLER); }

extern "C" {

HEADRACE_TSAN_ACCESSES(1)
HEADRACE_TSAN_ACCESSES(2)
HEADRACE_TSAN_ACCESSES(4)
HEADRACE_TSAN_ACCESSES(8)
HEADRACE_TSAN_ACCESSES(16)

void __tsan_read_range(void* p, unsigned long size) { access(p, size, kReadAccess, HEADRACE_CALLER); }
void __tsan_write_range(void* p, unsigned long size) { access(p, size, kWriteAccess, HEADRACE_CALLER); }

// What device.h puts in the place of memcpy, memmove and memset: an access of the whole size.
void* headrace_emulated_memcpy(void* to, const void* from, size_t size) {
  access(from, size, kReadAccess, HEADRACE_CALLER);
  access(to, size, kWriteAccess, HEADRACE_CALLER);
  return std::memcpy(to, from, size);
}
void* headrace_emulated_memmove(void* to, const void* from, size_t size) {
  access(from, size, kReadAccess, HEADRACE_CALLER);
  access(to, size, kWriteAccess, HEADRACE_CALLER);
  return std::memmove(to, from, size);
}
void* headrace_emulated_memset(void* to, int value, size_t size) {
  access(to, size, kWriteAccess, HEADRACE_CALLER);
  return std::memset(to, value, size);
}

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}

}  // extern "C"
