#!/usr/bin/env python3
"""How the tools' cost grows: with bytes, with shards, with tensors.

    growth.py BIN_FOLDER WORK_FOLDER [--gib 1,4,16] [--shards 1,8,64,512] [--tensors 10,1000,20000] [--memory-limit 64MiB] [--repeats 3]

BIN_FOLDER is build/<preset>. For every point an example checkpoint is made; zero_to_fp32, reshard, verify --deep and inspect run on it in
turns, and `cat` of the shards for comparison. A row shows, for each, the median seconds (minimum to maximum), those against the first row's (in the first sweep of one GiB: 1.00 is
linear) and the peak resident memory in MiB. The page cache is dropped before each command where that is allowed. WORK_FOLDER needs twice the largest size.
"""
import argparse
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import time

import page_cache


def timed(command):
    page_cache.drop()
    start = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"growth: {' '.join(command)} ended with {process.returncode}")
    return time.monotonic() - start, usage.ru_maxrss / 1024


def jobs(program, folder, out, limit):
    bounded = ["--quiet", "--memory-limit", limit]
    return {"zero_to_fp32": [program, "zero_to_fp32", folder, out + ".safetensors", *bounded],
            "reshard": [program, "reshard", folder, out, "--world-size", "3", "--stage", "3", *bounded],
            "verify --deep": [program, "verify", folder, "--deep", *bounded],
            "inspect": [program, "inspect", folder],
            "cat": ["sh", "-c", f"cat {shlex.quote(folder)}/*/shard-* > /dev/null"]}


def measure(arguments, make):
    """{job: ([seconds], peak MiB)} of one checkpoint."""
    folder, out = os.path.join(arguments.work, "in"), os.path.join(arguments.work, "out")
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([os.path.join(arguments.build, "tests", "make_example"), folder, *map(str, make)], check=True, stdout=subprocess.DEVNULL)
    times = {}
    for _ in range(arguments.repeats):
        for name, command in jobs(os.path.join(arguments.build, "bin", "unishard"), folder, out, arguments.limit).items():
            seconds, peak = timed(command)
            known, most = times.get(name, ([], 0))
            times[name] = known + [seconds], max(most, peak)
            shutil.rmtree(out, ignore_errors=True)
            if os.path.exists(out + ".safetensors"):
                os.remove(out + ".safetensors")
    shutil.rmtree(folder)
    return times


def sweep(arguments, title, points, make, unit=lambda point: 1):
    first = None
    for point in points:
        times = measure(arguments, make(point))
        row = {name: (statistics.median(seconds), min(seconds), max(seconds), peak) for name, (seconds, peak) in times.items()}
        first = first or (point, row)
        cells = [f"{name} {value[0]:.2f} s ({value[1]:.2f} to {value[2]:.2f}) x{value[0] / unit(point) / (first[1][name][0] / unit(first[0])):.2f} {value[3]:.0f} MiB"
                 for name, value in row.items()]
        print(f"{title} {point}: " + "; ".join(cells), flush=True)


def numbers(text):
    return [int(item) for item in text.split(",") if item]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("work")
    parser.add_argument("--gib", type=numbers, default=numbers("1,4,16"))
    parser.add_argument("--shards", type=numbers, default=numbers("1,8,64,512"))
    parser.add_argument("--tensors", type=numbers, default=numbers("10,1000,20000"))
    parser.add_argument("--memory-limit", dest="limit", default="64MiB")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    os.makedirs(arguments.work, exist_ok=True)
    sweep(arguments, "GiB", arguments.gib, lambda gib: ["-w", 4, "--scale", 11000 * gib], lambda gib: gib)
    sweep(arguments, "shards (1 GiB)", arguments.shards, lambda count: ["-w", count, "--scale", 11000])

    def tensors(count):  # 256 MiB of layers with 9 tensors each, and 6 tensors beside them
        layers = max(1, (count - 6) // 9)
        return ["-w", 4, "--layers", layers, "--scale", max(1, 22000 // 3 // (layers + 1))]
    sweep(arguments, "tensors (256 MiB)", arguments.tensors, tensors)


if __name__ == "__main__":
    sys.exit(main())
