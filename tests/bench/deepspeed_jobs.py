#!/usr/bin/env python3
"""Measures unishard.deepspeed beside engine.save_checkpoint() and load_checkpoint() on one bf16 engine, in one run.

  UNISHARD_LIBRARY_DIR=BUILD/bin PYTHONPATH=tools/python DS_ACCELERATOR=cpu torchrun --nproc-per-node 2 tests/bench/deepspeed_jobs.py \
      FOLDER [STAGE [LAYERS]]

A layer has 2048 x 2048 parameters with a master and two moments, 50 MB, and 8 MB of weights that DeepSpeed stores too below stage 3.
The page cache is emptied before each load, which needs root; DeepSpeed's files are synced within its time, as UniShard syncs its own.
Memory is the most that rank 0 has above what it had when the operation began.
"""
import logging
import os
import shutil
import statistics
import sys

import deepspeed
import torch
import torch.distributed as dist

import unishard.deepspeed
from job_times import seconds

ROUNDS = 5


def resident(key):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith(key + ":"))


def measured(work, is_load):
    """Returns seconds and MiB of the operation."""
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak begins anew
    before = resident("VmRSS")
    taken = seconds(work, is_load)
    return taken, resident("VmHWM") - before


def main():
    folder, stage, layers = sys.argv[1], int((sys.argv[2:] or ["2"])[0]), int((sys.argv[3:] or ["40"])[0])
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    deepspeed.init_distributed("gloo")
    model = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048) for _ in range(layers)])
    config = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}, "zero_optimization": {"stage": stage},
              "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}}}
    engine = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)[0]
    engine.backward(engine(torch.randn(4, 2048, dtype=torch.bfloat16)).float().sum())
    engine.step()
    first = dist.get_rank() == 0

    def save_theirs():
        engine.save_checkpoint(f"{folder}/theirs")
        os.sync()

    works = {"save": (lambda: unishard.deepspeed.save(engine, f"{folder}/ours"), save_theirs),
             "load": (lambda: unishard.deepspeed.load(engine, f"{folder}/ours"), lambda: engine.load_checkpoint(f"{folder}/theirs"))}
    seen = {name: ([], []) for name in works}
    for _ in range(ROUNDS):
        if first:
            shutil.rmtree(folder, ignore_errors=True)
            os.makedirs(folder)
        dist.barrier()
        for name, both in works.items():
            for work, results in zip(both, seen[name]):
                results.append(measured(work, name == "load"))
    for name, (ours, theirs) in seen.items() if first else ():
        (mine, memory), (other, other_memory) = ([statistics.median(one) for one in zip(*results)] for results in (ours, theirs))
        print(f"stage {stage}, {name}: {mine:.2f} s ({min(ours)[0]:.2f} to {max(ours)[0]:.2f}), {memory:.0f} MiB;  DeepSpeed {other:.2f} s "
              f"({min(theirs)[0]:.2f} to {max(theirs)[0]:.2f}), {other_memory:.0f} MiB;  {other / mine:.1f} times as fast", flush=True)
    if first:
        shutil.rmtree(folder)
    dist.barrier()
    os._exit(0)  # Gloo's threads can abort Python's own end: https://github.com/pytorch/pytorch/pull/179291


if __name__ == "__main__":
    main()
