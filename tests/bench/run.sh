#!/usr/bin/env bash
# Whole jobs against `cat` and `cp` of the same bytes, saving and loading against raw I/O, planning and opening at scale, in one run:
#   tests/bench/run.sh [--peers] [PRESET] [SCALE] [REPEATS] [FOLDER]
# --peers: also beside torch.save, safetensors, DCP and DeepSpeed's own tools, of the Python in build/peers (tests/run.sh --peers makes it).
# How cost grows with bytes, shards and tensors: tests/bench/growth.py; what every byte passes through: build/PRESET/tests/functions.
# Each row: median seconds (min to max) of the repeats, the ratio reference/ours (above 1: ours is faster), peak resident memory. The page cache
# is dropped before each timed command where that is allowed (root); the first line says which.
set -euo pipefail
cd "$(dirname "$0")/../.."
peers=no
[ "${1:-}" != --peers ] || { peers=yes; shift; }
preset=${1:-release} scale=${2:-8000} repeats=${3:-3} work=${4:-$(mktemp -d -p "${TMPDIR:-/var/tmp}")}
bin=build/$preset/bin make=build/$preset/tests/make_example
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"
if { echo 3 > /proc/sys/vm/drop_caches; } 2>/dev/null; then cold=yes; else cold=no; fi
"$make" "$work/in" -w 4 --scale "$scale"
bytes=$(du -sb "$work/in" | cut -f1)
echo "checkpoint: $((bytes >> 20)) MiB in 4 shards; page cache dropped before each command: $cold"

# measure NAME COMMAND: appends "seconds rss_kib" to $work/NAME.times; $work/out is not there before.
measure() {
  local name=$1; shift
  rm -rf "$work/out" "$work/out.safetensors"; sync
  [ $cold = no ] || echo 3 > /proc/sys/vm/drop_caches
  "$bin/unishard" --version >/dev/null   # the checkpoint is what is cold, not the programs: theirs are 0.1 s from this disk
  python3 - "$work/$name.times" "$@" <<'P'
import resource, subprocess, sys, time
start = time.monotonic()
status = subprocess.run(sys.argv[2:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode
seconds = time.monotonic() - start
open(sys.argv[1], "a").write(f"{seconds:.3f} {resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss}\n")
sys.exit(status)
P
}

# row TITLE NAME REFERENCE
row() {
  python3 - "$1" "$work/$2.times" "$work/$3.times" <<'P'
import statistics, sys
read = lambda path: [tuple(map(float, line.split())) for line in open(path)]
ours, reference = read(sys.argv[2]), read(sys.argv[3])
seconds = [row[0] for row in ours]
median, base = statistics.median(seconds), statistics.median(row[0] for row in reference)
print(f"{sys.argv[1]:<44} {median:6.2f} s ({min(seconds):.2f} to {max(seconds):.2f})  ratio {base / median:5.2f}  peak {max(row[1] for row in ours) / 1024:6.1f} MiB")
P
}

"$bin/unishard" zero_to_fp32 "$work/in" "$work/weights.safetensors" --quiet
"$bin/unishard" convert "$work/in" "$work/deepspeed" --to deepspeed --no-check --quiet
# Commands take turns, so that a slow minute of the machine meets all of them.
for _ in $(seq "$repeats"); do
  measure cat sh -c "cat $work/weights.safetensors > $work/out && sync $work/out"
  measure cp sh -c "cp -r $work/in $work/out && sync -f $work/out"
  measure read sh -c "cat $work/in/*/shard-* > /dev/null"
  for limit in 64MiB 1GiB; do
    measure "zero_$limit" "$bin/unishard" zero_to_fp32 "$work/in" "$work/out.safetensors" --quiet --memory-limit "$limit"
    measure "reshard_$limit" "$bin/unishard" reshard "$work/in" "$work/out" --world-size 3 --stage 3 --quiet --memory-limit "$limit"
    measure "verify_$limit" "$bin/unishard" verify "$work/in" --deep --quiet --memory-limit "$limit"
  done
  measure inspect "$bin/unishard" inspect "$work/in"
  for check in "" --no-check-input; do   # what comparing the input's checksums costs
    # shellcheck disable=SC2086
    measure "from_deepspeed$check" "$bin/unishard" zero_to_fp32 "$work/deepspeed" "$work/out.safetensors" --quiet $check
    # shellcheck disable=SC2086
    measure "to_native$check" "$bin/unishard" convert "$work/deepspeed" "$work/out" --to native --quiet --no-check $check
  done
done
row "cat of the fp32 bytes to one file, fsync" cat cat
row "cp -r of the checkpoint, sync" cp cp
row "cat of the shards to /dev/null" read read
for limit in 64MiB 1GiB; do
  row "zero_to_fp32, $limit, against cat" "zero_$limit" cat
  row "reshard 4 -> 3, stage 2 -> 3, $limit, against cp" "reshard_$limit" cp
  row "verify --deep, $limit, against reading" "verify_$limit" read
done
row "inspect, against reading" inspect read
row "zero_to_fp32 of DeepSpeed, against unchecked" from_deepspeed from_deepspeed--no-check-input
row "convert DeepSpeed, against unchecked" to_native to_native--no-check-input
rm -rf "$work/deepspeed"
"build/$preset/tests/data_plane" "$work/data_plane" --size $((scale / 8)) --repeats "$repeats"   # saving, loading
rm -rf "$work/data_plane"
"build/$preset/tests/scale" "$work/scale" --gib 10   # planning, opening
[ $peers = yes ] || exit 0
python=build/peers/bin/python
"$python" tests/bench/beside_torch.py "build/$preset/tests/data_plane" --size $((scale / 8)) --repeats "$repeats" --folder "$work"
# A GPT of 85 million parameters: DeepSpeed's tools cannot take the example, which has a parameter without dimensions.
echo '{"train_batch_size": 4, "optimizer": {"type": "AdamW"}, "bf16": {"enabled": true}}' > "$work/config.json"
"$bin/unishard" launch --nproc-per-node 4 -- "$bin/train_gpt" --config "$work/config.json" --data format/SPEC.md --layers 12 --width 768 --heads 12 \
  --context 64 --stage 2 --steps 1 --no-async-save --save "$work/gpt" >/dev/null
"$bin/unishard" convert "$work/gpt" "$work/deepspeed" --to deepspeed --quiet
"$python" tests/bench/beside_deepspeed.py "$work/deepspeed" --build "build/$preset" --repeats "$repeats"
