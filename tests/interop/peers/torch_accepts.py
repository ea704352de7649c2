#!/usr/bin/env python3
"""A run of train_gpt, converted, is loaded by the real libraries, and every element has the bits of the native checkpoint
(which stock HDF5 read).

  torch_accepts.py BUILD [--world-sizes 2 3]

  torch.load    a training state in one .pt file and a model in .bin shards: weights_only=True, and again with mmap=True
  safetensors   a training state in one file, a model in shards
  dcp.load      without ranks; and into an FSDP2 model and AdamW on every world size, through set_state_dict()
Exit status: 0 all equal, 1 something differs, 77 something is not installed.
"""
import argparse
import json
import os
import pathlib
import sys
import tempfile
import warnings

import processes
import truth

MOMENTS = ("exp_avg", "exp_avg_sq")


class Judge:
    """Compares named tensors with a native checkpoint and prints one row per loader."""

    def __init__(self, native):
        self.tensors, self.manifest = truth.read(native)
        self.aliases = {alias["fqn"]: alias["target"] for alias in self.manifest.get("aliases", [])}
        self.dtype = "bf16" if ("wte.weight", "weights") in self.tensors else "fp32"
        self.model_state = "weights" if self.dtype == "bf16" else "fp32"
        self.failed = 0

    def row(self, loader, found):
        """found: {(fqn, state): tensor}. Every stored state has to be there once, or as often as it has names."""
        wrong, seen = [], set()
        for (name, state), tensor in found.items():
            key = (self.aliases.get(name, name), state)
            seen.add(key)
            if key not in self.tensors or not truth.same_bits(tensor, self.tensors[key]):
                wrong.append(f"{name}|{state}")
        states = {state for _, state in found}
        missing = [f"{n}|{s}" for n, s in self.tensors if s in states and (n, s) not in seen]
        good = bool(found) and not wrong and not missing
        self.failed += not good
        print(f"{self.dtype:5} {loader:58} {len(found) - len(wrong):>4} of {len(found):<4} "
              f"{'accepted' if good else 'DIFFERS ' + ', '.join((wrong + missing)[:4])}", flush=True)


def training_state(judge, loaded):
    """{(fqn, state)} of an object {"model", "optimizer": {"state", "param_groups"}}."""
    found = {(name, judge.model_state): tensor for name, tensor in loaded["model"].items()}
    for name, states in loaded["optimizer"]["state"].items():
        for state, tensor in states.items():
            if state == "step":
                assert float(tensor) == judge.manifest["step"], f"step {tensor}"
            else:
                found[name, "fp32" if state == "fp32_master" else state] = tensor
    rates = [group["lr"] for group in loaded["optimizer"]["param_groups"]]
    assert rates == [group["lr"] for group in judge.manifest["groups"]], f"learning rates {rates}"
    return found


def flat_state(judge, name):
    """(fqn, state) of a name such as "optimizer.state.<fqn>.exp_avg"."""
    if not name.startswith("optimizer.state."):
        return name, judge.model_state
    fqn, state = name[len("optimizer.state."):].rsplit(".", 1)
    return fqn, "fp32" if state == "fp32_master" else state


def files(judge, build, native, scratch):
    import torch
    from safetensors.torch import load_file
    unishard = build / "bin/unishard"
    truth.run(unishard, "convert", native, scratch / "state.pt", "--to", "torch")
    truth.run(unishard, "convert", native, scratch / "state.safetensors", "--to", "safetensors")
    truth.run(unishard, "convert", native, scratch / "bin", "--to", "torch", "--weights-only", "--max-shard-size", "40KB")
    truth.run(unishard, "convert", native, scratch / "hf", "--to", "safetensors", "--weights-only", "--max-shard-size", "40KB")
    for mmap in (False, True):
        loaded = torch.load(scratch / "state.pt", weights_only=True, mmap=mmap)
        judge.row(f"torch.load(training state, weights_only=True, mmap={mmap})", training_state(judge, loaded))
        index = json.loads((scratch / "bin/pytorch_model.bin.index.json").read_text())["weight_map"]
        shards = {name: torch.load(scratch / "bin" / name, weights_only=True, mmap=mmap) for name in set(index.values())}
        judge.row(f"torch.load({len(shards)} shards by index, weights_only=True, mmap={mmap})",
                  {(name, "fp32"): shards[file][name] for name, file in index.items()})
    whole = load_file(scratch / "state.safetensors")
    judge.row("safetensors load_file(training state)", {flat_state(judge, name): tensor for name, tensor in whole.items()})
    index = json.loads((scratch / "hf/model.safetensors.index.json").read_text())["weight_map"]
    shards = {name: load_file(scratch / "hf" / name) for name in set(index.values())}
    judge.row(f"safetensors load_file({len(shards)} shards by index)", {(name, "fp32"): shards[file][name] for name, file in index.items()})


def dcp_without_ranks(judge, folder):
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint import FileSystemReader
    warnings.filterwarnings("ignore", message="torch.distributed is disabled")
    metadata = FileSystemReader(folder).read_metadata().state_dict_metadata
    state = {key: torch.empty(m.size, dtype=m.properties.dtype) for key, m in metadata.items() if hasattr(m, "chunks")}
    dcp.load(state, checkpoint_id=folder, no_dist=True)
    found = {}
    for key, tensor in state.items():
        if key.startswith("model."):  # here the masters, also of a bf16 run: FSDP2 keeps them in the model
            found[key[len("model."):], "fp32"] = tensor
        elif key.startswith("optim.state.") and not key.endswith(".step"):
            name, state_name = key[len("optim.state."):].rsplit(".", 1)
            found[name, "weights" if state_name == "weights_16bit" else state_name] = tensor
    judge.row("dcp.load without ranks", found)


def module_of(judge):
    """A module tree with the parameters of the checkpoint, tied where it ties them."""
    import torch
    root = torch.nn.Module()
    names = {n: judge.tensors[n, s].shape for n, s in judge.tensors if s == "fp32"}

    def set_at(name, parameter):
        *parents, leaf = name.split(".")
        at = root
        for part in parents:
            if part not in at._modules:
                at.add_module(part, torch.nn.Module())
            at = at._modules[part]
        at.register_parameter(leaf, parameter)
        return parameter

    made = {name: set_at(name, torch.nn.Parameter(torch.full(shape, 7.0))) for name, shape in names.items()}
    for name, target in judge.aliases.items():
        set_at(name, made[target])
    return root


def work(job_file):
    """One rank: dcp.load into FSDP2 and AdamW."""
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    dist.init_process_group("gloo")
    job = json.loads(pathlib.Path(job_file).read_text())
    judge = Judge(job["native"])
    model = module_of(judge)
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    group_of = {t["fqn"]: t["group"] for t in judge.manifest["tensors"] if t["state"] == "fp32"}
    groups = [{"params": [p for n, p in model.named_parameters() if group_of[n] == g]} for g in range(len(judge.manifest["groups"]))]
    optimizer = torch.optim.AdamW(groups, lr=7.0)
    model_state, optimizer_state = get_state_dict(model, optimizer)
    state = {"model": model_state, "optim": optimizer_state}
    dcp.load(state, checkpoint_id=job["folder"])
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"])
    found = {}
    for name, parameter in model.named_parameters():
        found[name, "fp32"] = parameter.full_tensor()
        for moment in MOMENTS:
            found[name, moment] = optimizer.state[parameter][moment].full_tensor()
        assert float(optimizer.state[parameter]["step"]) == judge.manifest["step"]
    for group, saved in zip(optimizer.param_groups, judge.manifest["groups"]):
        assert (group["lr"], group["weight_decay"]) == (saved["lr"], saved["weight_decay"]), group
    if dist.get_rank() == 0:
        judge.row(f"dcp.load into FSDP2 + AdamW on {dist.get_world_size()} ranks", found)
    dist.barrier()  # a rank that leaves early takes the others' connections with it
    dist.destroy_process_group()
    if judge.failed:
        raise SystemExit("not accepted")


def fsdp2(build, native, scratch, world_size):
    """Returns whether the load on `world_size` ranks failed; its row is printed."""
    folder = scratch / f"dcp{world_size}"
    truth.run(build / "bin/unishard", "convert", native, folder, "--to", "dcp", "-w", world_size + 1)
    job = scratch / "job.json"
    job.write_text(json.dumps({"native": str(native), "folder": str(folder)}))
    ended, _ = truth.launch(work, job, world_size, modules=processes.TORCH)
    output = ended[0][1]
    rows = [line for line in output.splitlines() if line.startswith(("fp32 ", "bf16 "))]
    print("\n".join(rows) if rows else output[-3000:], flush=True)
    failed = [(rank, *end) for rank, end in enumerate(ended) if end[0] != 0]
    for rank, status, said in failed:
        print(f"rank {rank} of {world_size} ended with status {status}:\n{said[-2000:]}", flush=True)
    return bool(failed)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--world-sizes", type=int, nargs="+", default=[2, 3])
    args = parser.parse_args()
    truth.require("safetensors", "torch")
    build, failed = args.build.resolve(), 0
    with tempfile.TemporaryDirectory() as scratch:
        for dtype in ("fp32", "bf16"):
            folder = pathlib.Path(scratch) / dtype
            truth.train(build, folder, 3, dtype)
            native = next((folder / "run").glob("global_step*"))
            judge = Judge(native)
            files(judge, build, native, folder)
            truth.run(build / "bin/unishard", "convert", native, folder / "dcp", "--to", "dcp")
            dcp_without_ranks(judge, folder / "dcp")
            failed += judge.failed
            failed += sum(fsdp2(build, native, folder, world_size) for world_size in args.world_sizes)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
