#!/usr/bin/env python3
"""Saving and loading one rank's state beside torch.save, safetensors and DCP, in turns, in one run.

    beside_torch.py DATA_PLANE [--size MIB] [--repeats N] [--folder FOLDER]

DATA_PLANE is build/<preset>/tests/data_plane, which saves and loads with UniShard's format, checksums on. The peers get as many
fp32 bytes in tensors of 64 MiB, and an fsync as ours has. The page cache is dropped before each load where that is allowed.
Needs torch and safetensors; prints seconds (median, minimum to maximum) and how many times faster ours is.
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time
import warnings

import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp

import page_cache

warnings.filterwarnings("ignore", "torch.distributed is disabled")


def sync_tree(path):
    for folder, _, names in os.walk(path):
        for name in names:
            descriptor = os.open(os.path.join(folder, name), os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)


def clock(job):
    started = time.monotonic()
    job()
    return time.monotonic() - started


def peers(state, folder):
    """name: (save, load into memory that is there or is made)."""
    into = {name: torch.empty_like(tensor) for name, tensor in state.items()}

    def load_torch():
        for name, tensor in torch.load(os.path.join(folder, "torch", "x.pt"), weights_only=True).items():
            into[name] = tensor

    def load_safetensors():
        # load_file() maps the file; a copy reads it.
        for name, tensor in safetensors.torch.load_file(os.path.join(folder, "safetensors", "x.safetensors")).items():
            into[name] = tensor.clone()

    return {
        "torch.save": (lambda to: torch.save(state, os.path.join(to, "x.pt")), load_torch),
        "safetensors": (lambda to: safetensors.torch.save_file(state, os.path.join(to, "x.safetensors")), load_safetensors),
        "DCP": (lambda to: dcp.save(state, checkpoint_id=to, no_dist=True),
                lambda: dcp.load(into, checkpoint_id=os.path.join(folder, "DCP"), no_dist=True)),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data_plane")
    parser.add_argument("--size", type=int, default=1024, help="MiB")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", default=None)
    arguments = parser.parse_args()
    folder = tempfile.mkdtemp(dir=arguments.folder or "/var/tmp")
    count = max(1, arguments.size * 3 // 4 // 64)  # what data_plane makes of --size
    state = {f"layer.{i}": torch.randn(16 << 20) * 0.02 for i in range(count)}
    times = {}
    try:
        for _ in range(arguments.repeats):
            page_cache.drop()
            ours = json.loads(subprocess.run(
                [arguments.data_plane, os.path.join(folder, "ours"), "--size", str(arguments.size), "--world-size", "1",
                 "--repeats", "1", "--json"], capture_output=True, check=True).stdout)
            rows = {row["job"]: row["seconds"] for row in ours["rows"]}
            times.setdefault("UniShard", []).append((rows["save"], rows["load, same world size and stage"]))
            shutil.rmtree(os.path.join(folder, "ours"))
            for name, (save, load) in peers(state, folder).items():
                to = os.path.join(folder, name.split(".")[0])
                os.mkdir(to)
                saved = clock(lambda: (save(to), sync_tree(to)))
                page_cache.drop()
                times.setdefault(name, []).append((saved, clock(load)))
                shutil.rmtree(to)
    finally:
        shutil.rmtree(folder)
    print(f"{count * 64} MiB of fp32 (ours: {ours['bytes'] >> 20} MiB), one process, {torch.__version__}")
    middle = {name: [statistics.median(column) for column in zip(*rows)] for name, rows in times.items()}
    for name, rows in times.items():
        for job, index in (("save", 0), ("load", 1)):
            column = [row[index] for row in rows]
            print(f"{name:12} {job} {middle[name][index]:6.2f} s ({min(column):.2f} to {max(column):.2f})   "
                  f"UniShard is {middle[name][index] / middle['UniShard'][index]:.2f} times as fast")


if __name__ == "__main__":
    main()
