#!/usr/bin/env bash
# The whole product on real input, on a fresh Debian or Ubuntu machine: examples/quickstart.sh [--cuda] [WORK_FOLDER [TEXT]]
# --cuda trains on the GPUs: it takes the PyTorch of the active environment, or installs one into build/cuda/python, and needs the CUDA
# toolkit (nvcc) and a driver. Ranks that have no GPU of their own share one.
# Installs what is missing (see examples/install_packages.sh; as root or through sudo), builds, then
#   1. trains a GPT on 4 ranks, ZeRO stage 2, to the end: the reference
#   2. trains it again, is killed with SIGKILL in the middle, and goes on on 3 ranks, stage 3
#   3. shows that the losses are equal bit for bit, and so are the final checkpoints
#   4. merges the shards into one fp32 file, inspects, verifies and compares
set -euo pipefail
cd "$(dirname "$0")/.."
started=$(date +%s)
build=build/release device=cpu
if [ "${1:-}" = --cuda ]; then
  build=build/cuda device=cuda
  shift
  for needed in nvcc nvidia-smi; do
    command -v $needed >/dev/null || { echo "quickstart: --cuda needs the CUDA toolkit and a driver: there is no $needed" >&2; exit 3; }
  done
fi
. examples/install_packages.sh
configure() { [ -f "$build/build.ninja" ] || cmake -S . -B "$build" "$@" -DUNISHARD_BUILD_TESTS=OFF -DCMAKE_UNITY_BUILD=ON >/dev/null; }
if [ $device = cuda ]; then
  torch_of() { "$1" -c 'import torch; assert torch.version.cuda; print(torch.utils.cmake_prefix_path)' 2>/dev/null; }
  if ! torch=$(torch_of python3) && ! torch=$(torch_of "$build/python/bin/python"); then
    echo "the active environment has no PyTorch for CUDA: installing it into $build/python"
    [ "$(id -u)" != 0 ] || apt-get install -y -qq --no-install-recommends python3-venv >/dev/null
    python3 -m venv "$build/python"
    "$build/python/bin/pip" install -q torch numpy
    torch=$(torch_of "$build/python/bin/python")
  fi
  configure -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_PREFIX_PATH="$torch" -DUNISHARD_BUILD_TRAINER=ON
else
  configure --preset release
fi
cmake --build $build --target unishard train_gpt
built=$(date +%s)

export PATH="$PWD/$build/bin:$PATH"
work=${1:-$(mktemp -d)}
mkdir -p "$work"
text=${2:-$work/corpus.txt}
[ -n "${2:-}" ] || cat README.md format/*.md $(git ls-files '*.cpp' '*.hpp') > "$text"   # a megabyte of real text
train="train_gpt --config examples/train_gpt/ds_config.json --data $text --model tiny --steps 60 --device $device"

say() { printf '\n== %s\n' "$*"; }

say "1. reference: 4 ranks, stage 2, 60 steps without interruption"
unishard launch --nproc-per-node 4 -- $train --save "$work/reference" --losses "$work/reference.jsonl"

say "2. the same run, saved every 10 steps and killed with SIGKILL after step 34"
unishard launch --nproc-per-node 4 -- $train --save "$work/run" --save-interval 10 --losses "$work/run.jsonl" &
launcher=$!
until [ "$(cat "$work/run.jsonl" 2>/dev/null | wc -l)" -ge 34 ]; do sleep 0.05; kill -0 $launcher; done
victims=$(pgrep -P $launcher)
kill -9 $victims
wait $launcher && { echo "the killed run ended well?"; exit 1; } || echo "the run is dead (status $?); latest is $(cat "$work/run/latest")"

say "   resumed on 3 ranks, stage 3"
unishard launch --nproc-per-node 3 -- $train --stage 3 --resume --save "$work/run" --save-interval 10 --losses "$work/resumed.jsonl"

say "3. losses of the resumed run against the reference, bit for bit"
exact() { sed 's/.*"step":\([0-9]*\).*/\1 &/; s/ .*"loss":"\([^"]*\)".*/ \1/' "$1"; }   # "step loss", the loss to the last bit
exact "$work/resumed.jsonl" > "$work/resumed.txt"
first=$(head -n 1 "$work/resumed.txt" | cut -d' ' -f1)
exact "$work/reference.jsonl" | tail -n "+$first" > "$work/expected.txt"
diff "$work/resumed.txt" "$work/expected.txt"
echo "steps $first to 60: $(wc -l < "$work/expected.txt") losses are equal"

say "4. diff: 4 ranks stage 2 without interruption against 3 ranks stage 3 after SIGKILL"
unishard diff "$work/reference" "$work/run"
say "   verify --deep"
unishard verify "$work/run" --deep
say "   inspect"
unishard inspect "$work/run" --stats > "$work/inspect.txt"
head -n 40 "$work/inspect.txt"
say "   zero_to_fp32"
unishard zero_to_fp32 "$work/run" "$work/model.safetensors"
ls -l "$work/model.safetensors"
say "   reshard to 8 ranks, stage 1, and compare"
unishard reshard "$work/run" "$work/resharded" --world-size 8 --stage 1
unishard diff "$work/run" "$work/resharded"

printf '\nquickstart: done; setup and build %d s, main job %d s; files are in %s\n' $((built - started)) $(($(date +%s) - built)) "$work"
