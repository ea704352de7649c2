#!/usr/bin/env python3
"""Measures unishard.torch beside torch.distributed.checkpoint on one FSDP2 job, in one run, with an empty page cache before each load.

  UNISHARD_LIBRARY_DIR=BUILD/bin PYTHONPATH=tools/python torchrun --nproc-per-node 2 tests/bench/torch_jobs.py FOLDER [LAYERS]

A layer has 2048 x 2048 parameters and two moments, 50 MB. Emptying the cache needs root.
"""
import os
import shutil
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

import unishard.torch
from job_times import seconds


def main():
    folder, layers = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 60
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    model = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048) for _ in range(layers)])
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(4, 2048)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    first = dist.get_rank() == 0

    def state():
        weights, moments = get_state_dict(model, optimizer)
        return {"model": weights, "optim": moments}

    def load_dcp():
        values = state()
        dcp.load(values, checkpoint_id=f"{folder}/dcp")
        set_state_dict(model, optimizer, model_state_dict=values["model"], optim_state_dict=values["optim"])

    for _ in range(3):
        if first:
            shutil.rmtree(folder, ignore_errors=True)
            os.makedirs(folder)
        ours = seconds(lambda: unishard.torch.save(f"{folder}/unishard", model, optimizer, step=1), False)
        theirs = seconds(lambda: dcp.save(state(), checkpoint_id=f"{folder}/dcp"), False)
        ours_load = seconds(lambda: unishard.torch.load(f"{folder}/unishard", model, optimizer), True)
        theirs_load = seconds(load_dcp, True)
        if first:
            print(f"save {ours:.2f} s, DCP {theirs:.2f} s ({theirs / ours:.1f} times)   load {ours_load:.2f} s, DCP {theirs_load:.2f} s "
                  f"({theirs_load / ours_load:.1f} times)", flush=True)
    if first:
        shutil.rmtree(folder)
    dist.barrier()
    os._exit(0)  # Gloo's threads can abort Python's own end: https://github.com/pytorch/pytorch/pull/179291


if __name__ == "__main__":
    main()
