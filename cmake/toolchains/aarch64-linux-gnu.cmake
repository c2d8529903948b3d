# Cross compilation for AArch64 Linux with Debian's g++-aarch64-linux-gnu. HEADRACE_SYSROOT is a folder into which the
# target's development packages were unpacked (tests/aarch64.sh makes one); tests run under qemu-user.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)

# Nothing of the build machine but programs: its headers and libraries are another architecture's.
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES HEADRACE_SYSROOT)
set(CMAKE_FIND_ROOT_PATH ${HEADRACE_SYSROOT} /usr/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${HEADRACE_SYSROOT})
set(ENV{PKG_CONFIG_LIBDIR} ${HEADRACE_SYSROOT}/usr/lib/aarch64-linux-gnu/pkgconfig)

set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L /usr/aarch64-linux-gnu)
