#!/usr/bin/env bash
# pack.sh TORCH_VERSION [OUTPUT]: one archive (default build/gpu/unishard-gpu-TORCH_VERSION.tar.xz, at most 30 MB) that runs on a machine
# with an NVIDIA driver and PyTorch TORCH_VERSION from PyPI, and nothing else:
#   tar xf unishard-gpu-TORCH_VERSION.tar.xz && unishard-gpu/run.sh
# It holds the programs, the tests of devices, the Python package, run.sh with its scripts, and the libraries of this system that they
# need. The machine needs a glibc that is not older than this system's. LibTorch and NCCL come from PyPI into build/gpu/torch-TORCH_VERSION,
# to be linked with; they are not packed.
# Exit 77: it cannot be made here, for the reason that it prints.
set -euo pipefail
cd "$(dirname "$0")/../.."
version=${1:?pack.sh TORCH_VERSION [OUTPUT]}
output=${2:-build/gpu/unishard-gpu-$version.tar.xz}
limit=30000000
site=build/gpu/torch-$version build=build/gpu/build-$version pack=build/gpu/unishard-gpu
skip() { echo "pack.sh: skipped: $*"; exit 77; }
command -v nvcc >/dev/null || skip "no CUDA toolkit (nvcc)"

# The newest Python that the wheel is made for; only its libraries and headers are used.
from_pypi() {
  python3 -m pip install -q --no-deps --only-binary=:all: --python-version 3.12 --implementation cp --platform manylinux_2_28_x86_64 \
    --platform manylinux_2_18_x86_64 --platform manylinux2014_x86_64 --upgrade --target "$site" "$@"
}
if [ ! -d "$site/torch" ] || [ ! -d "$site/nvidia/nccl" ]; then
  from_pypi "torch==$version" || skip "PyPI has no torch $version for CUDA"
  nccl=$(sed -n 's/^Requires-Dist: \(nvidia-nccl-[a-z0-9]*==[0-9.]*\).*/\1/p' "$site"/torch-*.dist-info/METADATA | head -n 1)
  [ -n "$nccl" ] || skip "torch $version names no NCCL"
  from_pypi "$nccl"
fi
[ -f "$site/torch/lib/libtorch_cuda.so" ] || skip "torch $version is not for CUDA"

# LibTorch's own needs (cuBLAS, cuDNN, ...) are there where the archive is unpacked.
cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_PREFIX_PATH="$PWD/$site/torch" -DUNISHARD_WARNINGS_AS_ERRORS=ON \
  -DUNISHARD_BUILD_TRAINER=ON -DUNISHARD_BUILD_PYTHON=ON -DCMAKE_UNITY_BUILD=ON -DCMAKE_EXE_LINKER_FLAGS=-Wl,--allow-shlib-undefined \
  -DCMAKE_GTEST_DISCOVER_TESTS_DISCOVERY_MODE=PRE_TEST >/dev/null
cmake --build "$build" --target train_gpt unishard unishard_c matrix_driver trainer_engine_test trainer_guarded_device_test

rm -rf "$pack"
mkdir -p "$pack/bin" "$pack/lib" "$pack/python"
cp "$build"/bin/{train_gpt,unishard,libunishard_c.so} "$build"/tests/{matrix_driver,trainer_engine_test,trainer_guarded_device_test} "$pack/bin"
strip "$pack"/bin/*
cp -r tools/python/unishard "$pack/python/"
find "$pack/python" -name __pycache__ -prune -exec rm -r {} +
cp tests/gpu/{run.sh,measure.py,torch_step.py} "$pack"

# What the programs need of this system, but for the C and C++ libraries, LibTorch's own and the driver.
ldd "$pack"/bin/* | sed -n 's/.* => \(\/[^ ]*\) .*/\1/p' | sort -u |
  grep -v -e "/$site/" -e nvidia -e cuda -e '/lib\(c\|m\|dl\|rt\|pthread\|gcc_s\|stdc++\)\.so' |
  while read -r library; do cp -L "$library" "$pack/lib/"; done

XZ_OPT=-T0 tar -C "$(dirname "$pack")" -cJf "$output" "$(basename "$pack")"
size=$(stat -c %s "$output")
echo "$output: $size bytes"
[ "$size" -le "$limit" ] || { echo "pack.sh: $output is larger than $limit bytes"; exit 1; }
