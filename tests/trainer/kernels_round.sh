#!/usr/bin/env bash
# The CUDA kernels round every operation as the host does: nothing contracted, approximated or flushed to zero in their PTX.
#   tests/trainer/kernels_round.sh NVCC FLAGS...
set -euo pipefail
cd "$(dirname "$0")/../.."
ptx=$(mktemp)
one=$ptx.one
trap 'rm -f "$ptx" "$one"' EXIT
for kernels in optimizer/cuda_update runtime/cuda_gradients runtime/cuda_square_sums; do
  "$@" -Iformat/include -Itrainer/include -Itrainer/src -arch=compute_90 -ptx -o "$one" "trainer/src/$kernels.cu"
  cat "$one" >> "$ptx"
done
for needed in div.rn.f32 sqrt.rn.f32 mul.rn.f32 add.rn.f32 mul.rn.f64 add.rn.f64; do
  grep -qF "$needed" "$ptx" || { echo "no $needed: is this the kernels' PTX?"; exit 1; }
done
! grep -E '\b(fma|mad)\.[a-z.]*f(16|32|64)|\.ftz|\.approx|(div|sqrt)\.full' "$ptx"
