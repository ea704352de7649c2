#!/usr/bin/env bash
# run.sh [BUILD]: what only a machine with a GPU can show, in less than ten minutes. It builds first (build.sh).
#   1  the kernels of the optimizers and the copies of saves, compared with the host bit by bit
#   2  the resume matrix over NCCL with one rank, and over Gloo with ranks that share the device (NCCL refuses two ranks per device)
#   3  compute-sanitizer over a short run
#   4  train_gpt: time of a step, and how much of the gathering and reducing its trace shows beside compute
# Exit 77: it cannot run here, for the reason that it prints.
set -euo pipefail
cd "$(dirname "$0")/../.."
build=${1:-build/torch2}
nvidia-smi -L >/dev/null 2>&1 || { echo "gpu: skipped: no device"; exit 77; }
nvidia-smi -L
tests/gpu/build.sh "$build"
cmake --build "$build" --target trainer_engine_test unishard >/dev/null
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

echo "-- kernels and copies"
"$build/tests/trainer_engine_test" --gtest_brief=1 --gtest_filter='CudaUpdate.*:CudaSquareSums.*:AsyncSave.*'

# matrix RANKS MODEL DTYPE STAGES WORLD_SIZES DEVICE
matrix() {
  mkdir "$work/matrix"
  echo "-- matrix: $2 $3, stages $4, world sizes $5, $6"
  "$build/bin/unishard" launch --nproc-per-node "$1" -- "$build/tests/matrix_driver" "$work/matrix" "$2" "$3" "$4" "$5" "$6"
  rm -r "$work/matrix"
}
matrix 1 gpt float32 0123 1 nccl
matrix 1 llama bfloat16 0123 1 nccl
matrix 4 gpt float32 03 124 cuda
matrix 2 llama bfloat16 0123 12 cuda
matrix 2 gpt float16 03 12 cuda

if command -v compute-sanitizer >/dev/null; then
  echo "-- compute-sanitizer"
  mkdir "$work/matrix"
  RANK=0 LOCAL_RANK=0 WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=29913 \
    compute-sanitizer --error-exitcode 9 "$build/tests/matrix_driver" "$work/matrix" gpt float32 3 1 nccl
  rm -r "$work/matrix"
fi

echo "-- steps"
tests/bench/train_bench.py --build "$build" --device cuda --model gpt2 --world-sizes 1 --dtypes float32,bfloat16
