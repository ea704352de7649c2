#!/usr/bin/env python3
"""Stock h5py, with a plug-in for filter 32015 (HDF5_PLUGIN_PATH), reads compressed checkpoints of many chunks.

    compressed.py UNISHARD=FOLDER_OF_PLUGINS

Makes arrays like trained weights, converts them to a native checkpoint with and without --compress, and reads both with
read_with_h5py.py. Prints "equal" and the sizes and exits 0, or says what is wrong and exits 1.
"""
import os
import subprocess
import sys
import tempfile

import h5py
import numpy as np


def check(condition, problem):
    if not condition:
        raise SystemExit(f"compressed: {problem}")


def run(*command, **environment):
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})
    return done.returncode, done.stdout + done.stderr


def main():
    program, plugins = sys.argv[1].split("=", 1)
    reader = os.path.join(os.path.dirname(os.path.abspath(__file__)), "read_with_h5py.py")
    random = np.random.default_rng(1)
    with tempfile.TemporaryDirectory() as folder:
        source = os.path.join(folder, "model.h5")
        with h5py.File(source, "w") as file:
            file["a.weight"] = random.normal(0, 0.02, (700, 1000)).astype("<f4")
            file["b.weight"] = random.normal(0, 0.02, 300_001).astype("<f8")
            file["c.half"] = random.normal(0, 1, (3, 5)).astype("<f2")
            file["d.steps"] = np.arange(1000)
        printed, sizes = {}, {}
        for mode in ("none", "zstd", "zstd:9"):
            out = os.path.join(folder, mode)
            status, text = run(program, "convert", source, out, "--to", "native", "-w", "2", "--compress", mode)
            check(status == 0, f"convert --compress {mode}: {text}")
            tag = os.path.join(out, open(os.path.join(out, "latest")).read().strip())
            sizes[mode] = sum(entry.stat().st_size for entry in os.scandir(tag))
            status, printed[mode] = run(sys.executable, reader, tag, HDF5_PLUGIN_PATH=plugins)
            check(status == 0, f"h5py on --compress {mode}: {printed[mode]}")
            if mode == "zstd":
                status, text = run(sys.executable, reader, tag, HDF5_PLUGIN_PATH=folder)
                check(status != 0, "h5py read compressed data without the plug-in")
        check(len(set(printed.values())) == 1, f"the checkpoints differ: {printed}")
        check(sizes["zstd"] < 0.9 * sizes["none"], f"nothing was compressed: {sizes}")
        print("equal", sizes)


if __name__ == "__main__":
    sys.exit(main())
