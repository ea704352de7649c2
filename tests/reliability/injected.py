#!/usr/bin/env python3
"""Faults from outside: the finished programs run under strace, which lets the n-th system call of a
kind fail.

    injected.py --bin BUILD/bin [--long] [--seed N]

The program must end by itself with a documented status and a sentence, its input must be as it was,
and its result absent or whole; the next run, without a fault, must succeed. Status 1: a finding.
"""
import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from kills import Finding, Job, Tools, check, make_inputs, remove, same_files

CALLS = ("pwrite64", "fsync", "fallocate", "ftruncate", "rename", "renameat2", "mkdir", "unlink", "unlinkat", "flock",
         "pread64", "write", "close")
ERRORS = ("EIO", "ENOSPC", "EDQUOT", "EINTR", "EACCES")


def traced(log, call, error, at, command):
    """Runs the command; returns its result, and whether the fault has struck."""
    result = subprocess.run(["strace", "-f", "-o", log, "-e", f"trace={call}", "-e",
                             f"inject={call}:error={error}:when={at}", *command], capture_output=True, text=True)
    return result, "(INJECTED)" in Path(log).read_text(errors="replace")


def strace_works(log):
    try:
        return traced(log, "close", "EIO", 1, ["true"])[0].returncode == 0
    except FileNotFoundError:
        return False


def try_fault(job, log, call, error, at):
    """One fault; returns whether it has struck."""
    if job.output.exists():
        remove(job.output)
    result, struck = traced(log, call, error, at, [job.tools.unishard, *map(str, job.command(job.output))])
    what = f"{job.name}: {error} of {call} {at}"
    if "while loading shared libraries" in result.stderr:
        return True  # the program has not begun
    check(result.returncode in (0, 1, 3, 4), f"{what}: status {result.returncode}: {result.stderr[-300:]}")
    check(result.returncode == 0 or result.stderr.strip() or call == "write", f"{what}: it fails without a word")
    if result.returncode == 0:
        check(job.published(), f"{what}: it says it is done, and nothing is there")
    try:
        job.check()
    except Finding as finding:
        raise Finding(f"{what}: {finding}") from None
    if not job.published():
        again = job.tools.run(*job.command(job.output))
        check(again.returncode == 0, f"{what}: the next run ends with {again.returncode}: {again.stderr[-300:]}")
        job.check()
    return struck


def try_all(job, log, chance, is_long, findings):
    """All faults of a job, or a few of them; returns how many struck."""
    tried = 0
    for call in CALLS:
        for at in range(1, 40):
            any_struck = False
            for error in ERRORS:
                if not is_long and chance.random() > 1 / 32:
                    any_struck = True  # not tried: go on
                    continue
                try:
                    struck = try_fault(job, log, call, error, at)
                except Finding as finding:
                    struck = True
                    findings.append(str(finding))
                    print("FINDING", finding, flush=True)
                any_struck |= struck
                tried += struck
            if not any_struck:
                break
    return tried


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--long", action="store_true")
    options = parser.parse_args()
    chance = random.Random(options.seed)
    tools = Tools(options.bin)
    golden = Path(__file__).resolve().parent.parent / "golden/v1"
    findings, total = [], 0
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
        root = Path(folder)
        log = root / "strace.log"
        if not strace_works(log):
            print("faults from outside: strace does not work here; nothing was tried")
            return 0
        source, _ = make_inputs(tools, root, golden)
        kept = root / "kept"
        subprocess.run(["cp", "-r", source, kept], check=True)
        jobs = [Job(tools, root, source, *row) for row in (
            ("reshard", ["reshard", "IN", "OUT", "-w", "3"], "out", True),
            ("convert", ["convert", "IN", "OUT", "--to", "dcp"], "dcp", False),
            ("zero_to_fp32", ["zero_to_fp32", "IN", "OUT"], "model.safetensors", False))]
        for job in jobs:
            started, before = time.monotonic(), len(findings)
            tried = try_all(job, log, chance, options.long, findings)
            check(same_files(kept, source), f"{job.name} has changed its input")
            total += tried
            print(f"{'injected: ' + job.name:<34} | {tried:>9} {'failing calls':<22} | {len(findings) - before:>3} "
                  f"findings | {time.monotonic() - started:>7.1f} s | seed {options.seed}", flush=True)
    print(f"{'injected: all':<34} | {total:>9} {'failing calls':<22} | {len(findings):>3} findings | seed {options.seed}")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
