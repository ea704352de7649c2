#!/usr/bin/env bash
# What --compress makes of trained numbers: tests/bench/compression.sh [PRESET] [STEPS] [REPEATS]
# Trains a GPT of 3 million parameters on this project's own text, then stores its checkpoint, and its weights as bf16, in every way. For each:
# payload as stored against raw, by state; seconds of one thread to write and to read it from the page cache; zstd -1 of the same bytes beside it,
# and the entropy of the byte planes, which is the limit of what mode zstd does (shuffle and a code for each byte).
set -euo pipefail
cd "$(dirname "$0")/../.."
preset=${1:-release} steps=${2:-600} repeats=${3:-3}
bin=$PWD/build/$preset/bin work=$(mktemp -d -p "${TMPDIR:-/var/tmp}")
trap 'rm -rf "$work"' EXIT
git ls-files '*.cpp' '*.hpp' '*.md' | xargs cat > "$work/text"
echo '{"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}, "zero_optimization": {"stage": 1},
  "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 20}}}' > "$work/config.json"
"$bin/train_gpt" --config "$work/config.json" --data "$work/text" --layers 4 --width 256 --heads 4 --context 64 \
  --steps "$steps" --threads 2 --no-async-save --save "$work/run" | tail -n 2
"$bin/unishard" convert "$work/run" "$work/bf16" --to native --weights-only --dtype bf16 --quiet
python3 - "$bin/unishard" "$work" "$repeats" <<'P'
import collections, glob, json, math, os, statistics, struct, subprocess, sys, time

program, work, repeats = sys.argv[1], sys.argv[2], int(sys.argv[3])
WIDTH = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "int64": 8, "bool": 1}


def data_sets(folder):
    """Of all shards of the latest checkpoint: (file, data set, manifest)."""
    tag = os.path.join(folder, open(os.path.join(folder, "latest")).read().strip())
    manifest = json.load(open(os.path.join(tag, "manifest.json")))
    for shard in manifest["shards"]:
        with open(os.path.join(tag, shard["file"]), "rb") as file:
            for item in shard["data_sets"]:
                yield file, item, manifest


def tables(folder):
    """{state.dtype: [stored, raw]} bytes, from manifest and chunk tables."""
    sums = collections.defaultdict(lambda: [0, 0])
    for file, item, manifest in data_sets(folder):
        raw = -(-item["elements"] * WIDTH[item["dtype"]] // 4096) * 4096
        file.seek(item["chunks_offset"])
        rows = struct.iter_unpack("<QIIQ", file.read(24 * -(-raw // manifest["chunk_bytes"])))
        total = sums[f"{item['state']}.{item['dtype']}"]
        total[0] += sum(row[1] for row in rows)
        total[1] += raw
    return sums


def entropy(folder):
    """{state.dtype: bytes that byte planes need against raw} where each byte of a plane is coded by itself, with the plane's own frequencies."""
    sums = collections.defaultdict(lambda: [0.0, 0])
    for file, item, _ in data_sets(folder):
        width = WIDTH[item["dtype"]]
        file.seek(item["offset"])
        payload = file.read(item["elements"] * width)
        total = sums[f"{item['state']}.{item['dtype']}"]
        for plane in range(width):
            counts = collections.Counter(payload[plane::width]).values()
            total[0] += sum(count * math.log2(item["elements"] / count) for count in counts) / 8
        total[1] += len(payload)
    return sums


def seconds(*command):
    started = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.monotonic() - started


for kind in ("run", "bf16"):
    source, jobs = os.path.join(work, kind), {}
    for _ in range(repeats):  # in turns
        for mode in ("none", "auto", "zstd", "zstd:1", "zstd:3"):
            out = os.path.join(work, "out-" + mode)
            subprocess.run(["rm", "-rf", out], check=True)
            write = seconds(program, "reshard", source, out, "-w", "1", "--compress", mode, "--threads", "1", "-q")
            read = seconds(program, "verify", out, "--deep", "--threads", "1", "-q")
            jobs.setdefault(mode, []).append((write, read))
    print(f"\n{kind}: {sum(raw for _, raw in tables(source).values()) / 1e6:.0f} MB")
    for mode, times in jobs.items():
        sums = tables(os.path.join(work, "out-" + mode))
        parts = "  ".join(f"{name} {stored / raw:.3f}" for name, (stored, raw) in sorted(sums.items()) if raw > 1 << 20)
        write, read = (statistics.median(column) for column in zip(*times))
        print(f"{mode:8} write {write:.2f} s  verify --deep {read:.2f} s  stored/raw: {parts}")
    bounds = "  ".join(f"{name} {packed / raw:.3f}" for name, (packed, raw) in sorted(entropy(source).items()) if raw > 1 << 20)
    print(f"no code of single bytes of the planes can be smaller than: {bounds}")
    shards = glob.glob(os.path.join(source, "*", "shard-*"))
    packed = os.path.join(work, "packed")
    spent = statistics.median(seconds("sh", "-c", f"cat {' '.join(shards)} | zstd -1 -q -f -o {packed}") for _ in range(repeats))
    print(f"zstd -1  write {spent:.2f} s  stored/raw of all: {os.path.getsize(packed) / sum(map(os.path.getsize, shards)):.3f}")
P
