#!/usr/bin/env python3
"""AdamW on the CPU beside DeepSpeedCPUAdam and torch's fused AdamW, in turns, in one run.

    beside_cpu_adam.py OPTIMIZER_BENCH [--elements N] [--threads 1,2] [--turns N]

OPTIMIZER_BENCH is build/<preset>/tests/optimizer_bench. Each turn starts one process after the other, with OMP_NUM_THREADS set; a process updates
one fp32 tensor of N elements seven times, of which the first two do not count. DeepSpeed compiles its operator with -march=native on the first use
(ninja and a C++ compiler; TORCH_EXTENSIONS_DIR says where). Prints seconds (median, minimum to maximum) and ours / theirs: below 1, ours is faster.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys

PEER = """
import json, sys, time, torch
n, name = int(sys.argv[1]), sys.argv[2]
p = torch.nn.Parameter(torch.randn(n))
p.grad = torch.randn(n)
if name == "DeepSpeedCPUAdam":
    from deepspeed.ops.adam import DeepSpeedCPUAdam
    optimizer = DeepSpeedCPUAdam([p], lr=1e-3, weight_decay=0.1)
else:
    optimizer = torch.optim.AdamW([p], lr=1e-3, weight_decay=0.1, fused=True)
times = []
for _ in range(7):
    begin = time.perf_counter()
    optimizer.step()
    times.append(time.perf_counter() - begin)
print(json.dumps(times[2:]))
"""


def last_line(command, threads):
    environment = dict(os.environ, OMP_NUM_THREADS=str(threads))
    environment["PATH"] = os.path.dirname(sys.executable) + ":" + environment["PATH"]  # ninja
    return json.loads(subprocess.run(command, capture_output=True, check=True, text=True, env=environment).stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("optimizer_bench")
    parser.add_argument("--elements", type=int, default=100_000_000)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--turns", type=int, default=5)
    arguments = parser.parse_args()
    peers = ("DeepSpeedCPUAdam", "torch AdamW(fused=True)")
    for threads in map(int, arguments.threads.split(",")):
        times = {}
        for _ in range(arguments.turns):
            ours = last_line([arguments.optimizer_bench, "--elements", str(arguments.elements)], threads)
            assert ours.pop("threads") == threads, "LibTorch took another number of threads"
            for job, seconds in ours.items():
                times.setdefault(job, []).extend(seconds)
            for name in peers:
                times.setdefault(name, []).extend(last_line([sys.executable, "-c", PEER, str(arguments.elements), name], threads))
        middle = {name: statistics.median(seconds) for name, seconds in times.items()}
        print(f"AdamW, {arguments.elements} elements, {threads} threads")
        for name, seconds in times.items():
            ratio = f"   ours / theirs {middle['update'] / middle[name]:.2f}" if name in peers else ""
            print(f"  {name:24} {middle[name]:.4f} s ({min(seconds):.4f} to {max(seconds):.4f}){ratio}")


if __name__ == "__main__":
    main()
