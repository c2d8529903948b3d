#!/usr/bin/env bash
# Checks and times the CUDA backend on a machine with a GPU: builds it, compares ops and golden models with their references,
# runs the ops under compute-sanitizer, and measures them beside PyTorch's.
#
#   bash tests/gpu/check.sh [JSON]                    with nvcc (CUDA_HOME or PATH) and a driver; under 9 minutes on 16 cores
#   bash tests/gpu/check.sh --rehearse BUILD [JSON]   the same steps on emulated-cuda, with what BUILD has; times say nothing
#
# Prints one table, writes JSON (default: gpu-check.json in the build folder); exit status 1 where a check fails.
set -uo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
if [ "${1:-}" = --rehearse ]; then
  build=$2 json=${3:-$2/gpu-check.json} device=emulated-cuda
else
  build=$root/build/gpu json=${1:-$root/build/gpu/gpu-check.json} device=cuda
  nvcc=${CUDA_HOME:+$CUDA_HOME/bin/nvcc}
  nvcc=${nvcc:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}
  cmake -S "$root" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DHEADRACE_BUILD_CUDA=ON -DCMAKE_CUDA_COMPILER="$nvcc" &&
    timeout 360 cmake --build "$build" --target headrace_cli op_check headrace-cuda || exit 1
fi
lines=$(mktemp -d)
trap 'rm -rf "$lines"' EXIT
failed=0

run() {  # NAME TIMEOUT COMMAND...: output in $lines/NAME
  local name=$1 limit=$2 code=0
  shift 2
  timeout "$limit" "$@" > "$lines/$name" 2> "$lines/$name.err" || code=$?
  [ $code = 0 ] || { failed=1; echo "$name fails (status $code)"; tail -n 5 "$lines/$name.err"; }
  echo "$code" > "$lines/$name.status"
}

run ops 120 "$build/bin/op_check" $device
if [ $device = emulated-cuda ] && [ -x "$build/bin/headrace" ]; then
  run goldens 240 "$build/bin/headrace" conformance "$root/tests/data/goldens" --device $device --only llama/model.gguf --set model.exact=true
fi
if [ $device = cuda ]; then
  for model in llama qwen3 gemma3; do
    run "goldens_$model" 60 "$build/bin/headrace" conformance "$root/tests/data/goldens" --device $device --only $model --set model.exact=true
  done
  if command -v compute-sanitizer > /dev/null; then
    for tool in memcheck racecheck initcheck; do
      run "sanitizer_$tool" 90 compute-sanitizer --tool $tool --error-exitcode 3 "$build/bin/op_check" $device
    done
  fi
  run bench 60 "$build/bin/op_check" $device --bench
  run torch 60 python3 "$root/tests/gpu/torch_bench.py"
fi
python3 "$root/tests/gpu/report.py" "$lines" "$json" $device || failed=1
exit $failed
