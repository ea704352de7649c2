#!/usr/bin/env python3
"""Stock h5py reads a checkpoint whose chunks lie in files of two saves, after the older one was deleted.

    shared.py MAKE_EXAMPLE=PARAMETER

Saves the tests' example twice, the second time with PARAMETER changed and everything else shared, and reads the second with
read_with_h5py.py. Prints "equal" and the sizes and exits 0, or says what is wrong and exits 1.
"""
import glob
import os
import shutil
import subprocess
import sys
import tempfile

import h5py


def check(condition, problem):
    if not condition:
        raise SystemExit(f"shared: {problem}")


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def main():
    program, changed = sys.argv[1].split("=", 1)
    reader = os.path.join(os.path.dirname(os.path.abspath(__file__)), "read_with_h5py.py")
    with tempfile.TemporaryDirectory() as folder:
        status, made = run(program, folder, "-w", "2", "--scale", "100", "--changed", changed)
        check(status == 0, made)
        first, second = (os.path.join(folder, f"global_step{step}") for step in (7, 8))
        own = [sum(os.path.getsize(path) for path in glob.glob(os.path.join(tag, "shard-*"))) for tag in (first, second)]
        check(own[1] < 0.6 * own[0], f"little was shared: {own}")
        shutil.rmtree(first)
        status, text = run(sys.executable, reader, second)
        check(status == 0, f"h5py: {text}")
        check(text.split()[0] == made.split()[0], f"h5py read {text}, saved was {made}")
        maps = []
        for shard in glob.glob(os.path.join(second, "shard-*")):
            with h5py.File(shard, "r") as file:
                maps += [len(data_set.virtual_sources()) for data_set in file["data"].values()]
        check(max(maps) > 1, f"no data set lies in several files: {maps}")
        os.remove(glob.glob(os.path.join(second, "base-*"))[0])
        check(run(sys.executable, reader, second)[0] != 0, "h5py read what is not there")
        print("equal", own, maps)


if __name__ == "__main__":
    sys.exit(main())
