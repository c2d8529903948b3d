#!/usr/bin/env bash
# Builds and runs every test this machine can run, or the named suites.
#   bash tests/run.sh [--data DIR] [suite ...]
# Suites: unit ops emulator golden engine capi abi install python cli server structure fuzz asan. With no name: all of them. By name
# only: gcc, which compiles the library with g++ and its warnings as errors; tsan, which runs tests of several threads under
# ThreadSanitizer; aarch64, which cross-compiles and emulates; cuda-static, which compiles the CUDA kernels with nvcc where
# there is one.
# DIR holds the larger test data (goldens/, cases/); ../shared is taken where it is there. Ends with ctest's summary; what
# was skipped is listed with its reason.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source tests/dependencies.sh

data=${HEADRACE_TEST_DATA:-}
[ -z "$data" ] && [ -d ../shared/goldens ] && data=$(cd ../shared && pwd)
if [ "${1:-}" = --data ]; then
  data=$(cd "$2" && pwd)
  shift 2
fi
suites=("$@")
known=(unit ops emulator golden engine capi abi install python cli server structure fuzz asan gcc tsan aarch64 cuda-static)
for suite in "${suites[@]}"; do
  if [[ " ${known[*]} " != *" $suite "* ]]; then
    echo "tests/run.sh: there is no suite '$suite'; the suites: ${known[*]}" >&2
    exit 2
  fi
done
wants() { [ ${#suites[@]} -eq 0 ] || [[ " ${suites[*]} " == *" $1 "* ]]; }

headrace_need "${headrace_build_packages[@]}" "${headrace_server_packages[@]}" "${headrace_test_packages[@]}"
# For the server's page. Not every distribution has it as a package, and without it the test is skipped.
if wants server; then headrace_need chromium-headless-shell || echo "The page is not tested in a browser."; fi
python=/usr/bin/python3
log=build/test-logs
mkdir -p "$log"

echo "== default model"
model_note=
if ! $python tests/models/fetch.py smollm2-135m --dest build/models >"$log/fetch.log" 2>&1; then
  model_note="SKIPPED: tests of a real model: the default model could not be fetched (see $log/fetch.log)"
fi
options=(-DHEADRACE_TEST_DATA="$data" -DHEADRACE_MODELS_DIR="$PWD/build/models" -DPython3_EXECUTABLE=$python)

# Both sanitized suites share one build: ASan, UBSan and the fuzzer's coverage counters.
if wants fuzz || wants asan; then
  echo "== sanitized build"
  targets=()
  cmake --preset fuzz "${options[@]}" >"$log/fuzz-configure.log"
  fuzzers=$(cd tests/fuzz && ls *_fuzz.cpp | sed 's/\.cpp$//')
  if wants fuzz; then targets+=($fuzzers); fi
  if wants asan; then targets+=(headrace_sanitized_tests); fi
  cmake --build --preset fuzz --target "${targets[@]}" >"$log/fuzz-build.log" 2>&1 || { tail -50 "$log/fuzz-build.log"; exit 1; }
fi

if wants fuzz; then
  echo "== fuzz: 30 seconds from the seeds, each; a minute of the scheduler's"
  run_fuzzer() {
    local scratch seconds=30
    if [ "$1" = scheduler_fuzz ]; then seconds=60; fi
    scratch=$(mktemp -d)
    cp -r tests/fuzz/corpus/"${1%_fuzz}"/. "$scratch"
    if build/fuzz/bin/"$1" -max_total_time=$seconds -rss_limit_mb=4096 -timeout=25 -print_final_stats=1 \
      -artifact_prefix="$log/$1-" "$scratch" >"$log/$1.log" 2>&1; then
      echo "   $1: $(grep -o 'stat::number_of_executed_units: .*' "$log/$1.log" | grep -o '[0-9]*') inputs, no finding"
    else
      tail -40 "$log/$1.log"
      return 1
    fi
    rm -rf "$scratch"
  }
  export -f run_fuzzer
  export log
  printf '%s\n' $fuzzers | xargs -P "$(nproc)" -I{} bash -c 'run_fuzzer {}'
fi

if wants asan; then
  echo "== asan: unit, op, engine and C ABI tests with AddressSanitizer and UndefinedBehaviorSanitizer"
  ctest --test-dir build/fuzz -R "$(cat build/fuzz/sanitized_tests.txt)" --output-on-failure -j "$(nproc)"
fi

if wants aarch64 && [ ${#suites[@]} -ne 0 ]; then
  bash tests/aarch64.sh "$data"
fi

if [ ${#suites[@]} -gt 0 ] && wants gcc; then
  echo "== gcc: the library without a warning"
  cmake -S . -B build/gcc -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_C_COMPILER=gcc -DCMAKE_CXX_COMPILER=g++ \
    -DHEADRACE_BUILD_TESTS=OFF -DHEADRACE_BUILD_EXAMPLES=OFF >"$log/gcc-configure.log"
  cmake --build build/gcc --target headrace >"$log/gcc-build.log" 2>&1 || { tail -50 "$log/gcc-build.log"; exit 1; }
fi

if [ ${#suites[@]} -gt 0 ] && wants tsan; then
  echo "== tsan: tests of several threads with ThreadSanitizer, a minute of them at random"
  cmake --preset tsan "${options[@]}" >"$log/tsan-configure.log"
  cmake --build --preset tsan --target headrace_threaded_tests >"$log/tsan-build.log" 2>&1 || { tail -50 "$log/tsan-build.log"; exit 1; }
  HEADRACE_STORM_SECONDS=60 ctest --test-dir build/tsan -R "$(cat build/tsan/threaded_tests.txt)" --output-on-failure
fi

if [ ${#suites[@]} -gt 0 ] && wants cuda-static; then
  echo "== cuda-static: the CUDA kernels for every architecture, without a warning"
  $python cuda/compile_kernels.py .
fi

labels=()
for suite in unit ops emulator golden engine capi abi install python cli server structure; do
  if wants "$suite"; then labels+=("$suite"); fi
done
[ ${#labels[@]} -eq 0 ] && exit 0
echo "== release: build and test"
cmake --preset release "${options[@]}" >"$log/configure.log"
cmake --build --preset release >"$log/build.log" 2>&1 || { tail -50 "$log/build.log"; exit 1; }
pattern=$(IFS='|'; echo "^(${labels[*]})\$")
status=0
ctest --test-dir build/release -L "$pattern" --output-on-failure -j "$(nproc)" >"$log/ctest.log" 2>&1 || status=$?
echo "== skipped"
{ grep -h -o 'SKIPPED:.*' build/release/Testing/Temporary/LastTest.log || true; echo "$model_note"; } | sort -u | sed '/^$/d; s/^/   /'
echo "== result"
cat "$log/ctest.log"
exit $status
