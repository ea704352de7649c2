#!/usr/bin/env python3
"""Real jobs of torch's FSDP1 save LOCAL_STATE_DICT in files of ranks, and unishard reads them with --like.

    fsdp1_local.py BUILD

Each model has units in units, tied weights, buffers and sizes that no number of ranks divides. The files are those of torch (sharded
tensors), of dinov2 (a training state in each file) and of fairscale (plain vectors that are filled up). Weights and moments must have
the bits of FULL_STATE_DICT of the same job. Exit status: 0 all equal, 1 something differs, 77 something is not installed.
"""
import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import processes
import truth
from free_port import free_port

truth.require("torch")
warnings.simplefilter("ignore")


def make_model():
    import torch

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.norm, self.down = torch.nn.Linear(11, 7), torch.nn.LayerNorm(7), torch.nn.Linear(7, 11, bias=False)
            self.scale = torch.nn.Parameter(torch.randn(3))

        def forward(self, x):
            return x + self.down(self.norm(self.up(x))) * self.scale.sum()

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = torch.nn.Embedding(13, 11)
            self.blocks = torch.nn.ModuleList(Block() for _ in range(12))
            self.norm, self.head = torch.nn.BatchNorm1d(11), torch.nn.Linear(11, 13, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, x):
            x = self.embed(x)
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x))

    torch.manual_seed(3)
    return Model(), Block


JOBS = ((False, "torch"), (True, "torch"), (False, "dinov2"), (True, "dinov2"), (False, "fairscale"))


def rank_main(rank, world, port, folder):
    import torch.distributed as dist
    warnings.simplefilter("ignore")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(world))
    dist.init_process_group("gloo", rank=rank, world_size=world)
    for number, (uses_orig, style) in enumerate(JOBS):
        (folder / str(number) / "run").mkdir(parents=True, exist_ok=True)
        save(rank, folder / str(number), uses_orig, style)
        dist.barrier()
    dist.destroy_process_group()


def save(rank, folder, uses_orig, style):
    import torch
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, FullStateDictConfig, StateDictType
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy
    plain, block = make_model()
    shapes = {name: tensor.shape for name, tensor in plain.state_dict().items()}
    if rank == 0:
        torch.save(plain.state_dict(), folder / "like.pt")
    model = FSDP(plain, auto_wrap_policy=ModuleWrapPolicy({block}), use_orig_params=uses_orig, device_id=torch.device("cpu"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(3):
        tokens = torch.randint(0, 13, (9,), generator=torch.Generator().manual_seed(step))
        torch.nn.functional.cross_entropy(model(tokens), tokens).backward()
        optimizer.step()
        optimizer.zero_grad()
    with FSDP.state_dict_type(model, StateDictType.LOCAL_STATE_DICT):
        local = dict(model.state_dict()) if style == "fairscale" else model.state_dict()
    if style == "fairscale":
        flat = {name: p.detach() for name, p in model.named_parameters()}
        flat = {name.replace("_fsdp_wrapped_module.", ""): p for name, p in flat.items()}
        local = {name.replace("_flat_param", "flat_param_0"): flat.get(name, tensor) for name, tensor in local.items()}
    end = f"rank_{rank}.pth"
    if style == "torch":
        torch.save(local, folder / "run" / f"model.{end}")
        torch.save(optimizer.state_dict(), folder / "run" / f"optim.{end}")
    else:
        torch.save({"model": local, "optimizer": optimizer.state_dict(), "iteration": 3}, folder / "run" / f"model_0000003.{end}")
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(rank0_only=True)):
        full = model.state_dict()
        state = gathered(model, optimizer, shapes) if uses_orig else FSDP.optim_state_dict(model, optimizer)["state"]
    if rank == 0:
        torch.save({"model": full, "state": state}, folder / "truth.pt")


def gathered(model, optimizer, shapes):
    """The whole states of parameters of which each rank has a piece. torch 2.15's optim_state_dict() gives both moments of a
    parameter the elements of the second when it gathers on CPUs with use_orig_params."""
    import torch
    import torch.distributed as dist
    own = {name.replace("_fsdp_wrapped_module.", ""): optimizer.state.get(parameter, {}) for name, parameter in model.named_parameters()}
    ranks = [None] * dist.get_world_size()
    dist.all_gather_object(ranks, own)
    states = {}
    for name in own:
        pieces = [rank[name] for rank in ranks if rank[name]]
        states[name] = {state: value if value.ndim == 0 else torch.cat([piece[state] for piece in pieces]).view(shapes[name])
                        for state, value in pieces[0].items()}
    return states


def differing(found, wanted):
    import torch
    names = [name for name in wanted if name not in found or not torch.equal(found[name], wanted[name]) or found[name].dtype != wanted[name].dtype]
    return names + [name for name in found if name not in wanted]


def check(unishard, folder, uses_orig):
    import torch
    wanted, like = torch.load(folder / "truth.pt", weights_only=False), ("--like", folder / "like.pt")
    truth.run(unishard, "zero_to_fp32", folder / "run", folder / "model.pt", *like)
    found = differing(torch.load(folder / "model.pt"), wanted["model"])
    truth.run(unishard, "convert", folder / "run", folder / "all.pt", "--assume-model-order", *like)
    training = torch.load(folder / "all.pt", weights_only=False)
    found += [f"optimizer: {name}" for name, state in wanted["state"].items()
              if differing(training["optimizer"]["state"].get(name, {}), state)]
    sorted_names = folder / "sorted.safetensors"
    truth.run(unishard, "convert", folder / "like.pt", sorted_names)
    refused = subprocess.run([unishard, "inspect", folder / "run", "--like", sorted_names], capture_output=True, text=True)
    if (refused.returncode == 0) != uses_orig:
        found.append("a model with sorted names: " + (refused.stderr.strip() or "accepted"))
    return found


def main():
    unishard, failed = Path(sys.argv[1]).resolve() / "bin" / "unishard", 0
    for world in (2, 4):
        with tempfile.TemporaryDirectory() as temporary:
            processes.spawn(rank_main, (world, free_port(), Path(temporary)), world, processes.TORCH)
            for number, (uses_orig, style) in enumerate(JOBS):
                found = check(unishard, Path(temporary) / str(number), uses_orig)
                failed += bool(found)
                said = f"DIFFERENT: {', '.join(found[:4])}" if found else "equal"
                print(f"{world} ranks, files as {style}'s{', use_orig_params' if uses_orig else ''}: {said}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
