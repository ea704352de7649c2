#!/usr/bin/env python3
"""Measures unishard.dcp beside DCP's own FileSystemWriter and FileSystemReader on one FSDP2 job, in one run: the same dcp.save() and
dcp.load() with either storage, with an empty page cache before each load.

  UNISHARD_LIBRARY_DIR=BUILD/bin PYTHONPATH=tools/python torchrun --nproc-per-node 2 tests/bench/dcp_jobs.py FOLDER [LAYERS]

A layer has 2048 x 2048 bfloat16 parameters and two float32 moments, 42 MB. DCP's files are synced, as UniShard's are. Emptying the cache
needs root.
"""
import os
import shutil
import statistics
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.device_mesh import init_device_mesh

from job_times import seconds
from unishard.dcp import Reader, Writer

ROUNDS = 5


def main():
    folder, layers = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 72
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    mesh, first = init_device_mesh("cpu", (dist.get_world_size(),)), dist.get_rank() == 0

    def values(dtype):
        return distribute_tensor(torch.randn(2048, 2048).to(dtype), mesh, [Shard(0)])

    names = [f"layers.{number}.weight" for number in range(layers)]
    states = {name: {"step": torch.tensor(1.0), "exp_avg": values(torch.float32), "exp_avg_sq": values(torch.float32)} for name in names}
    state = {"model": {name: values(torch.bfloat16) for name in names},
             "optim": {"state": states, "param_groups": [{"params": names, "lr": 1e-3, "betas": (0.9, 0.95)}]}}

    times = {}
    for number in range(ROUNDS):
        if first:
            shutil.rmtree(folder, ignore_errors=True)
            os.makedirs(folder)
        for what, work in (("save", lambda: dcp.save(state, storage_writer=Writer(f"{folder}/unishard", step=1))),
                           ("DCP's save", lambda: dcp.save(state, checkpoint_id=f"{folder}/dcp")),
                           ("load", lambda: dcp.load(state, storage_reader=Reader(f"{folder}/unishard"))),
                           ("DCP's load", lambda: dcp.load(state, checkpoint_id=f"{folder}/dcp"))):
            times.setdefault(what, []).append(seconds(work, "load" in what))
        if first:
            print("   ".join(f"{what} {measured[-1]:.2f} s" for what, measured in times.items()), flush=True)
    if first:
        for what, measured in times.items():
            print(f"{what}: median {statistics.median(measured):.2f} s ({min(measured):.2f} to {max(measured):.2f})")
        for what in ("save", "load"):
            ratio = statistics.median(times[f"DCP's {what}"]) / statistics.median(times[what])
            print(f"{what}: {ratio:.2f} times as fast as DCP's")
        shutil.rmtree(folder)
    dist.barrier()
    os._exit(0)  # Gloo's threads can abort Python's own end: https://github.com/pytorch/pytorch/pull/179291


if __name__ == "__main__":
    main()
