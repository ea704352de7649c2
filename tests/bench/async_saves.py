#!/usr/bin/env python3
"""Measures how long the training stands still for a save: save() and async_save() of unishard.torch, and those of DCP, in turns.

  UNISHARD_LIBRARY_DIR=BUILD/bin PYTHONPATH=tools/python async_saves.py FOLDER [--layers N] [--repeats N]

A layer has 2048 x 2048 parameters in fp32 and two moments, 50 MB. Prints seconds (median, minimum to maximum). Each asynchronous save has
ended before the next one begins, and DCP writes without fsync. `first` is the first asynchronous save, which gets its memory.
"""
import argparse
import logging
import os
import shutil
import statistics
import time
import warnings

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict import get_state_dict

import unishard.torch

warnings.simplefilter("ignore")
logging.disable()


def make_job(layers):
    model = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048) for _ in range(layers)])
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(4, 2048)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    return model, optimizer


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    folder, (model, optimizer) = arguments.folder, make_job(arguments.layers)
    stager = DefaultStager(StagingOptions(False, False, False, False))  # keeps its memory, unlike the one that DCP makes
    step = 0

    def state():
        weights, moments = get_state_dict(model, optimizer)
        return {"model": weights, "optim": moments}

    def dcp_async(**options):
        return dcp.async_save(state(), checkpoint_id=f"{folder}/dcp{step}", no_dist=True, **options)

    ways = {"unishard.torch.save": lambda: unishard.torch.save(f"{folder}/ours", model, optimizer, step=step, keep_last=1),
            "unishard.torch.async_save": lambda: unishard.torch.async_save(f"{folder}/ours", model, optimizer, step=step, keep_last=1),
            "dcp.save": lambda: dcp.save(state(), checkpoint_id=f"{folder}/dcp{step}", no_dist=True),
            "dcp.async_save": dcp_async,
            "dcp.async_save, memory kept": lambda: dcp_async(async_stager=stager)}
    stalls, ends = {name: [] for name in ways}, {name: [] for name in ways}
    for _ in range(arguments.repeats):
        for name, save in ways.items():
            step += 1
            shutil.rmtree(f"{folder}/dcp{step - 1}", ignore_errors=True)
            os.sync()
            begin = time.monotonic()
            saving = save()
            stalls[name].append(time.monotonic() - begin)
            if hasattr(saving, "result"):
                saving.result()
            ends[name].append(time.monotonic() - begin)
    for name in ways:
        first, *others = stalls[name]
        print(f"{name:28} stall {statistics.median(others):.3f} s ({min(others):.3f} to {max(others):.3f}), first {first:.3f} s; "
              f"complete after {statistics.median(ends[name][1:]):.2f} s")
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
