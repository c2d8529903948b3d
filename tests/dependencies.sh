# The Debian packages a build needs, and how they get there. Sourced by examples/quickstart.sh and tests/run.sh.

headrace_build_packages=(
  clang cmake ninja-build pkg-config libfmt-dev nlohmann-json3-dev libsimdjson-dev libpcre2-dev libutf8proc-dev
  libxxhash-dev libzstd-dev zlib1g-dev libcli11-dev catch2 pybind11-dev python3-dev python3-numpy python3-pip
)
# What `headrace serve` needs besides; without Boost it is left out, without the others it reads no images.
headrace_server_packages=(libboost1.81-dev libpng-dev libturbojpeg0-dev)
# Boost.Context has the threads of the CUDA emulator.
headrace_test_packages=(libclang-rt-dev abigail-tools clang-format g++ binutils libboost-context1.81-dev)

# headrace_need PACKAGE...: installs what is missing when root, else prints the one line that does and fails.
headrace_need() {
  local missing=() package
  for package in "$@"; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && return 0
  if [ "$(id -u)" -ne 0 ]; then
    printf 'Missing packages. Install them with\n  sudo apt-get install %s\n' "${missing[*]}" >&2
    return 1
  fi
  echo "Installing ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq && apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}
