#!/usr/bin/env python3
"""UniShard's tools beside DeepSpeed's own on one DeepSpeed checkpoint, in one run.

  beside_deepspeed.py FOLDER [--build build/release] [--world-size W-1] [--memory-limit 64MiB] [--repeats 3]

FOLDER holds `latest`. Run it with a Python that has deepspeed. Jobs take turns; each row is the median of the repeats with
min and max, the peak resident memory, and how many times faster ours is; the page cache is warm (all files were read before).
The merged values are compared bit by bit.
"""
import argparse
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ZERO_TO_FP32 = """
import sys
from deepspeed.utils.zero_to_fp32 import convert_zero_checkpoint_to_fp32_state_dict as convert
convert(sys.argv[1], sys.argv[2])   # as its script does: pytorch_model.bin (its safetensors fail on tied weights)
"""
DS_TO_UNIVERSAL = """
import sys
from deepspeed.checkpoint import ds_to_universal
sys.argv = ["ds_to_universal", "--input_folder", sys.argv[1], "--output_folder", sys.argv[2], "--inject_missing_state"]
ds_to_universal.main(ds_to_universal.parse_arguments())
"""


def measure(command):
    """(seconds, peak MiB) of a process and its children, its files on disk."""
    env = dict(os.environ, DS_ACCELERATOR="cpu", OMP_NUM_THREADS=str(os.cpu_count()))
    started = time.monotonic()
    with tempfile.TemporaryFile() as log:
        child = subprocess.Popen([str(part) for part in command], env=env, stdout=log, stderr=log)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode != 0:
            log.seek(0)
            raise SystemExit(f"{' '.join(map(str, command))}\n{log.read().decode()[-3000:]}")
    os.sync()
    return time.monotonic() - started, usage.ru_maxrss / 1024


def same_values(ours, theirs):
    """(tensors equal bit for bit, tensors); a tied tensor, which theirs has under two names and ours under one, is compared once."""
    import torch
    mine, other = torch.load(ours, weights_only=True), torch.load(theirs, weights_only=True)
    places = {other[name].data_ptr() for name in mine if name in other}
    names = [name for name in other if name in mine or other[name].data_ptr() not in places]
    equal = sum(name in mine and mine[name].dtype == other[name].dtype and torch.equal(mine[name].view(-1).view(torch.uint8), other[name].view(-1).view(torch.uint8))
                for name in names)
    return equal, len(names)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build/release"))
    parser.add_argument("--world-size", type=int)
    parser.add_argument("--memory-limit", default="64MiB")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    tag = (args.folder / "latest").read_text().strip()
    ranks = len(list((args.folder / tag).glob("*_optim_states.pt")))
    world_size = args.world_size or max(1, ranks - 1)
    unishard = args.build / "bin" / "unishard"
    limit = ["--memory-limit", args.memory_limit, "--quiet"]
    with tempfile.TemporaryDirectory(dir=args.folder.parent) as scratch:
        out = pathlib.Path(scratch)
        jobs = {  # name: command, what it makes
            "zero_to_fp32": ([unishard, "zero_to_fp32", args.folder, out / "a.bin", *limit], out / "a.bin"),
            "DeepSpeed's zero_to_fp32": ([sys.executable, "-c", ZERO_TO_FP32, args.folder, out / "b"], out / "b"),
            f"reshard {ranks} -> {world_size}": ([unishard, "reshard", args.folder, out / "c", "-w", world_size, *limit], out / "c"),
            "the same, --no-check": ([unishard, "reshard", args.folder, out / "f", "-w", world_size, "--no-check", *limit], out / "f"),
            "DeepSpeed's ds_to_universal": ([sys.executable, "-c", DS_TO_UNIVERSAL, args.folder / tag, out / "d"], out / "d"),
            "cp -r": (["cp", "-r", args.folder, out / "e"], out / "e"),
        }
        runs = {name: [] for name in jobs}
        for file in (args.folder / tag).iterdir():
            subprocess.run(["cat", str(file)], stdout=subprocess.DEVNULL, check=True)  # warm
        for _ in range(args.repeats):
            for name, (command, made) in jobs.items():
                runs[name].append(measure(command))
                if made.is_dir() and made.name != "b":
                    shutil.rmtree(made)  # not the next job's business
            if len(runs["cp -r"]) < args.repeats:
                (out / "a.bin").unlink()
                shutil.rmtree(out / "b")
        equal, count = same_values(out / "a.bin", out / "b" / "pytorch_model.bin")
    size = sum(file.stat().st_size for file in (args.folder / tag).iterdir())
    print(f"{args.folder}: {size >> 20} MiB of {ranks} ranks; page cache warm, files synced; {args.repeats} repeats")
    median = {name: statistics.median(seconds for seconds, _ in done) for name, done in runs.items()}
    against = {"zero_to_fp32": "DeepSpeed's zero_to_fp32"}
    against |= dict.fromkeys([f"reshard {ranks} -> {world_size}", "the same, --no-check"], "DeepSpeed's ds_to_universal")
    for name, done in runs.items():
        seconds = [one for one, _ in done]
        ratio = f"{median[against[name]] / median[name]:6.1f} times faster" if name in against else ""
        print(f"{name:28} {median[name]:6.2f} s ({min(seconds):.2f} to {max(seconds):.2f})  peak {max(m for _, m in done):7.0f} MiB  {ratio}")
    print(f"merged tensors equal bit for bit: {equal} of {count}")
    sys.exit(0 if equal == count else 1)


if __name__ == "__main__":
    main()
