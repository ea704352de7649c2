#!/usr/bin/env bash
# Sets up everything and passes the tests: tests/run.sh [--preset release] [--no-install] [--peers [--all]]
# Installs (Debian or Ubuntu, as root or through sudo): compiler, CMake, Ninja, HDF5, ISA-L, fmt, nlohmann-json, CLI11, LibTorch, Gloo,
# OpenBLAS, GoogleTest, rapidcheck, h5py, fusepy, clang 16 and its tools. Nothing is installed outside the system's packages, but --peers
# puts the real torch, safetensors, transformers and DeepSpeed into build/peers and asks them (tests/interop/peers/run.sh), and
# installs the .deb in a fresh system (tests/interop/fresh_system.sh) and the wheel in a fresh environment (tests/python/wheel_test.sh).
set -euo pipefail
cd "$(dirname "$0")/.."
preset=release
install=yes
peers=
while [ $# -gt 0 ]; do
  case "$1" in
    --preset) preset=$2; shift 2 ;;
    --no-install) install=no; shift ;;
    --peers) peers=few; shift ;;
    --all) peers=all; shift ;;
    *) sed -n '2,6p' "$0"; exit 2 ;;
  esac
done
started=$(date +%s)
[ "$install" = no ] || . examples/install_packages.sh tests ${peers:+peers}
if [ -n "$peers" ]; then tests/interop/peers/run.sh --setup & fi   # downloads while the build runs
# Several sources at a time in a fresh tree: half the processor time. Where one is being worked in, a file at a time is less.
unity=
[ -f "build/$preset/build.ninja" ] || unity=-DCMAKE_UNITY_BUILD=ON
cmake --preset "$preset" -DUNISHARD_BUILD_TESTS=ON $unity >/tmp/unishard-configure.$$ 2>&1 || { cat /tmp/unishard-configure.$$; exit 1; }
tail -n 3 /tmp/unishard-configure.$$; rm -f /tmp/unishard-configure.$$
cmake --build --preset "$preset"
built=$(date +%s)
ctest --preset "$preset"
echo "build $((built - started)) s, tests $(($(date +%s) - built)) s, preset $preset"
wait
[ -n "$peers" ] || exit 0
status=0
if [ "$peers" = all ]; then all=--all; else all=; fi
tests/interop/peers/run.sh $all "build/$preset" || status=$?
[ $status != 77 ] || status=0   # said so itself
fresh=0
tests/interop/fresh_system.sh "build/$preset" || fresh=$?
[ $fresh = 0 ] || [ $fresh = 77 ] || status=1
wheel=0
tests/python/wheel_test.sh || wheel=$?
[ $wheel = 0 ] || [ $wheel = 77 ] || status=1
exit $status
