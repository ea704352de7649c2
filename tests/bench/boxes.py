#!/usr/bin/env python3
"""Measures a save of tensor-parallel parts as boxes beside one range per row, in one run, with an empty page cache before each load.

  UNISHARD_LIBRARY_DIR=BUILD/bin PYTHONPATH=tools/python tests/bench/boxes.py FOLDER [TENSORS [RANKS]]

A tensor has 8192 x 4096 float32 elements, 128 MiB, cut into columns. Emptying the cache needs root.
"""
import json
import os
import shutil
import sys
import time
from pathlib import Path

import numpy as np

import unishard
from unishard import _native
from unishard._shards import Box, runs

SHAPE = (8192, 4096)


def main():
    folder, tensors, ranks = Path(sys.argv[1]), int((sys.argv[2:] or [4])[0]), int((sys.argv[3:] or [8])[0])
    values = np.random.default_rng(1).standard_normal(SHAPE, dtype=np.float32)
    identities = set()
    for _ in range(3):
        for kind in ("rows", "boxes"):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            saved = seconds(lambda: save(folder, kind, values, tensors, ranks))
            drop_cache()
            opened = seconds(lambda: unishard.open(folder / "t").close())
            drop_cache()
            loaded = seconds(lambda: load(folder, tensors, ranks // 2))
            drop_cache()
            before = bytes_read()
            whole = seconds(lambda: read_whole(folder, values))
            times = (bytes_read() - before) / (tensors * values.nbytes)
            manifest = json.loads((folder / "t" / "manifest.json").read_text())
            identities.add(manifest["identity"])
            tables = sum(shard["index_rows"] * 96 + shard.get("boxes_bytes", 0) for shard in manifest["shards"])
            print(f"{kind:6} tables {tables / 1024:9.1f} KiB   save {saved:.2f} s   open {opened:.3f} s   "
                  f"load into {ranks // 2} ranks {loaded:.2f} s   read whole {whole:.2f} s, {times:.2f} times the bytes", flush=True)
    assert len(identities) == 1
    shutil.rmtree(folder)


def columns(rank, ranks):
    width = SHAPE[1] // ranks
    return Box((0, rank * width), (SHAPE[0], width))


def save(folder, kind, values, tensors, ranks):
    catalog = {"tensors": [{"name": f"w{i}", "state": "weights", "dtype": "float32", "shape": list(SHAPE)} for i in range(tensors)],
               "step": 1, "world_size": ranks}
    transaction = _native.Save(os.fspath(folder), "t", catalog, {})
    entries = []
    for rank in range(ranks):
        box = columns(rank, ranks)
        part = np.ascontiguousarray(values[:, box.offset[1]:box.offset[1] + box.sizes[1]])
        rows = list(runs(box, SHAPE))
        fragments = [(i, *row) for i in range(tensors) for row in rows] if kind == "rows" else [(i, *box) for i in range(tensors)]
        shard = _native.Shard(transaction.place, catalog, rank, fragments, {})
        for number, fragment in enumerate(fragments):
            begin, end = _native.written_elements(fragment)
            at = number % len(rows) * (end - begin) if kind == "rows" else 0
            shard.write(number, begin, end, part.ctypes.data + 4 * at, 4 * (end - begin))
        entries.append(shard.finish())
        shard.close()
    transaction.publish(entries)
    transaction.close()


def load(folder, tensors, ranks):
    with unishard.open(folder / "t") as checkpoint:
        for rank in range(ranks):
            box = columns(rank, ranks)
            out = np.empty(box.sizes, dtype=np.float32)
            for i in range(tensors):
                checkpoint[f"w{i}"]._read_box_into(*box, out.ctypes.data)


def read_whole(folder, values):
    with unishard.open(folder / "t") as checkpoint:
        for name in checkpoint.names():
            assert np.array_equal(checkpoint[name].numpy()[-1], values[-1])


def bytes_read():
    return int(Path("/proc/self/io").read_text().split()[1])


def drop_cache():
    os.sync()
    with open("/proc/sys/vm/drop_caches", "w") as file:
        file.write("3")


def seconds(work):
    begin = time.monotonic()
    work()
    return time.monotonic() - begin


if __name__ == "__main__":
    main()
