#!/usr/bin/env bash
# Cross-compiles the library for AArch64 and runs its tests under qemu-user: `bash tests/run.sh aarch64` calls it.
#   bash tests/aarch64.sh DATA_DIR [suite ...]
# Suites: ops unit golden; with no name, all three.
# Debian 12 on x86-64. The target's development packages are unpacked into build/aarch64-sysroot; nothing of the
# machine's own architecture is changed but for the compiler and the emulator, which are installed where missing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source tests/dependencies.sh

data=$1
shift
suites=("$@")
[ ${#suites[@]} -eq 0 ] && suites=(ops unit golden)
targets=()
for suite in "${suites[@]}"; do targets+=("tests/$suite/all"); done
headrace_need g++-aarch64-linux-gnu qemu-user dpkg-dev
sysroot=$PWD/build/aarch64-sysroot
log=build/test-logs
mkdir -p "$log"

if [ ! -e "$sysroot/complete" ]; then
  echo "== aarch64: development packages"
  state=$PWD/build/aarch64-apt
  mkdir -p "$sysroot" "$state/lists/partial" "$state/archives/partial"
  : >"$state/status"
  apt=(apt-get -o APT::Architecture=arm64 -o APT::Architectures::=arm64 -o APT::Sandbox::User=root
    -o Dir::State="$state" -o Dir::State::status="$state/status" -o Dir::Cache="$state")
  "${apt[@]}" update >"$log/aarch64-packages.log" 2>&1
  (cd "$state/archives" && "${apt[@]}" download libfmt-dev libfmt9 nlohmann-json3-dev libsimdjson-dev libsimdjson14 \
    libpcre2-dev libpcre2-8-0 libutf8proc-dev libutf8proc2 libxxhash-dev libcli11-dev catch2) \
    >>"$log/aarch64-packages.log" 2>&1
  for package in "$state"/archives/*.deb; do dpkg-deb -x "$package" "$sysroot"; done
  touch "$sysroot/complete"
fi

echo "== aarch64: build"
cmake -S . -B build/aarch64 -G Ninja -DCMAKE_BUILD_TYPE=Release -DHEADRACE_SYSROOT="$sysroot" \
  -DCMAKE_TOOLCHAIN_FILE="$PWD/cmake/toolchains/aarch64-linux-gnu.cmake" -DHEADRACE_TEST_DATA="$data" \
  >"$log/aarch64-configure.log"
cmake --build build/aarch64 --target "${targets[@]}" >"$log/aarch64-build.log" 2>&1 ||
  { tail -50 "$log/aarch64-build.log"; exit 1; }

echo "== aarch64: tests under qemu-user"
status=0
ctest --test-dir build/aarch64 -L "^($(IFS='|'; echo "${suites[*]}"))\$" --output-on-failure -j "$(nproc)" || status=$?
echo "== aarch64: skipped"
{ grep -h -o 'SKIPPED:.*' build/aarch64/Testing/Temporary/LastTest.log || true; } | sed 's/"$//; s/^/   /' | sort -u
exit $status
