#!/usr/bin/env bash
# Sets up everything and passes the tests: tests/run.sh [--preset release] [--no-install]
# Installs (Debian or Ubuntu, as root or through sudo): compiler, CMake, Ninja, HDF5, ISA-L, fmt, nlohmann-json, CLI11, LibTorch, Gloo,
# OpenBLAS, GoogleTest, rapidcheck, h5py and clang-format. Nothing is installed outside the system's packages.
set -euo pipefail
cd "$(dirname "$0")/.."
preset=release
install=yes
while [ $# -gt 0 ]; do
  case "$1" in
    --preset) preset=$2; shift 2 ;;
    --no-install) install=no; shift ;;
    *) sed -n '2,4p' "$0"; exit 2 ;;
  esac
done
started=$(date +%s)
[ "$install" = no ] || . examples/install_packages.sh tests
cmake --preset "$preset" -DUNISHARD_BUILD_TESTS=ON >/tmp/unishard-configure.$$ 2>&1 || { cat /tmp/unishard-configure.$$; exit 1; }
tail -n 3 /tmp/unishard-configure.$$; rm -f /tmp/unishard-configure.$$
cmake --build --preset "$preset"
built=$(date +%s)
ctest --preset "$preset"
echo "build $((built - started)) s, tests $(($(date +%s) - built)) s, preset $preset"
