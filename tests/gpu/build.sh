#!/usr/bin/env bash
# build.sh [--build] [BUILD]: builds the trainer, train_gpt and the tests of devices against LibTorch 2.x for CUDA, with the CUDA toolkit and NCCL,
# into BUILD (default build/torch2), and runs what needs no GPU: the tests on the guarded device, with LibTorch 2.x's own interfaces, and
# those of the code for NCCL, with a stand-in for the library. --build only builds.
# LibTorch is the one that tests/interop/peers/run.sh --setup installs from PyPI.
# Exit 77: it cannot run here, for the reason that it prints.
set -euo pipefail
cd "$(dirname "$0")/../.."
only_build=
if [ "${1:-}" = --build ]; then only_build=1; shift; fi
build=${1:-build/torch2}
skip() { echo "torch 2 for CUDA: skipped: $*"; exit 77; }

torch=$(echo build/peers/lib/python3.*/site-packages/torch)
[ -d "$torch" ] || skip "no torch in build/peers (tests/interop/peers/run.sh --setup installs it)"
[ -f "$torch/lib/libtorch_cuda.so" ] || skip "the torch of build/peers is not for CUDA"
command -v nvcc >/dev/null || skip "no CUDA toolkit (nvcc)"

begin=$SECONDS
log=$(mktemp)
trap 'rm -f "$log"' EXIT
cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_PREFIX_PATH="$PWD/$torch" -DUNISHARD_WARNINGS_AS_ERRORS=ON \
      -DUNISHARD_BUILD_TRAINER=ON -DUNISHARD_BUILD_PYTHON=OFF -DCMAKE_UNITY_BUILD=ON >"$log" 2>&1 || { cat "$log"; exit 1; }
cmake --build "$build" --target train_gpt matrix_driver trainer_guarded_device_test trainer_nccl_test >"$log" 2>&1 || { tail -n 60 "$log"; exit 1; }
libraries=$(ldd "$build/bin/train_gpt")
for needed in libtorch_cuda.so libnccl.so; do
  [[ $libraries == *"$needed"* ]] || { echo "torch 2 for CUDA: train_gpt does not link $needed"; exit 1; }
done
echo "torch 2 for CUDA: built in $((SECONDS - begin)) s"
[ -z "$only_build" ] || exit 0
begin=$SECONDS
"$build/tests/trainer_guarded_device_test" --gtest_brief=1
"$build/tests/trainer_nccl_test" --gtest_brief=1
echo "torch 2 for CUDA: guarded device in $((SECONDS - begin)) s"
