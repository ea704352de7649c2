#!/usr/bin/env python3
"""Writes runs of verl (FSDP2) for other numbers of ranks, and resumes from them.

    verl_resumes.py BUILD [RANKS..., default 1 2 4]

Where build/zoo/verl is installed (run.sh --setup --zoo), verl's own FSDPCheckpointManager saves and loads; elsewhere torch's calls that
it makes. Each resumed job must have the bits of the one that saved: weights, optimizer and schedule.
Exit status: 0 all equal, 1 something differs.
"""
import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import torch
import torch.distributed as dist

import processes
from free_port import free_port

HERE = Path(__file__).resolve()
MODULES = [*processes.TORCH, "transformers.models.llama.modeling_llama", "verl.utils.checkpoint.fsdp_checkpoint_manager"]
OVERLAY = HERE.parents[3] / "build" / "zoo" / "verl"
warnings.simplefilter("ignore")
if OVERLAY.is_dir():
    sys.path.append(str(OVERLAY))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(OVERLAY), os.environ.get("PYTHONPATH", "")])


class Torch:
    """The calls of verl's manager, by torch alone."""

    def __init__(self, model, optimizer, schedule):
        self.model, self.optimizer, self.schedule = model, optimizer, schedule

    def files(self, folder):
        end = f"world_size_{dist.get_world_size()}_rank_{dist.get_rank()}.pt"
        return [Path(folder) / f"{kind}_{end}" for kind in ("model", "optim", "extra_state")]

    def save_checkpoint(self, folder, global_step):
        del global_step
        Path(folder).mkdir(parents=True, exist_ok=True)
        extra = {"lr_scheduler": self.schedule.state_dict(), "rng": {"cpu": torch.get_rng_state()}}
        for path, content in zip(self.files(folder), (self.model.state_dict(), self.optimizer.state_dict(), extra)):
            torch.save(content, path)
        if dist.get_rank() == 0:
            (Path(folder) / "fsdp_config.json").write_text(f'{{"FSDP_version": 2, "world_size": {dist.get_world_size()}}}')

    def load_checkpoint(self, folder):
        model, optimizer, extra = (torch.load(path, weights_only=False) for path in self.files(folder))
        self.model.load_state_dict(model)
        self.optimizer.load_state_dict(optimizer)
        self.schedule.load_state_dict(extra["lr_scheduler"])


def manager(model, optimizer, schedule):
    if not OVERLAY.is_dir():
        return Torch(model, optimizer, schedule)
    from omegaconf import OmegaConf
    from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager

    class Tokenizer:
        def save_pretrained(self, folder):
            del folder

    contents = ["model", "optimizer", "extra"]
    return FSDPCheckpointManager(model=model, optimizer=optimizer, lr_scheduler=schedule, processing_class=Tokenizer(),
                                 checkpoint_config=OmegaConf.create({"save_contents": contents, "load_contents": contents}))


def job(tied, seed):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    model = LlamaForCausalLM(LlamaConfig(hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
                                         num_key_value_heads=2, vocab_size=61, tie_word_embeddings=tied))
    model.model.layers[1].mlp.up_proj.weight.requires_grad_(False)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("fsdp",))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    return model, optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 / (1 + step))


def train(model, optimizer, schedule):
    for step in range(3):
        tokens = torch.randint(0, 61, (2, 8), generator=torch.Generator().manual_seed(step))
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()


def whole(value):
    """Returns the value with whole tensors in the place of DTensors."""
    if isinstance(value, dict):
        return {key: whole(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [whole(one) for one in value]
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def equal(a, b):
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(one, b[key]) for key, one in a.items())
    if isinstance(a, list):
        return len(a) == len(b) and all(map(equal, a, b))
    return torch.equal(a, b) and a.dtype == b.dtype if isinstance(a, torch.Tensor) else a == b


def rank_main(rank, world, port, folder, truth, tied, saves):
    warnings.simplefilter("ignore")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank))
    dist.init_process_group("gloo", rank=rank, world_size=world)
    model, optimizer, schedule = job(tied, 7 if saves else 99)
    saver = manager(model, optimizer, schedule)
    if saves:
        train(model, optimizer, schedule)
        saver.save_checkpoint(folder, global_step=3)
    else:
        saver.load_checkpoint(folder)
    state = whole({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "schedule": schedule.state_dict()})
    if saves and rank == 0:
        torch.save(state, truth)
    if not saves and not equal(state, torch.load(truth, weights_only=False)):
        raise AssertionError(f"rank {rank}: the resumed state differs")
    dist.barrier()
    dist.destroy_process_group()


def spawn(world, *arguments):
    processes.spawn(rank_main, (world, free_port(), *arguments), world, MODULES)


def main():
    build = Path(sys.argv[1]).resolve()
    environment = {**os.environ, "UNISHARD_LIBRARY_DIR": str(build / "bin"), "PYTHONPATH": str(HERE.parents[3] / "tools" / "python")}
    print("verl itself saves and loads" if OVERLAY.is_dir() else "verl is not installed in build/zoo: torch makes its calls")
    failed = 0
    for tied, before in ((False, 2), (True, 3)):
        with tempfile.TemporaryDirectory() as temporary:
            run, truth = Path(temporary) / "run", str(Path(temporary) / "truth.pt")
            spawn(before, str(run / "global_step_3" / "actor"), truth, tied, True)
            (run / "latest_checkpointed_iteration.txt").write_text("3")
            for after in [int(ranks) for ranks in sys.argv[2:]] or [1, 2, 4]:
                out = Path(temporary) / f"out{after}"
                subprocess.run([sys.executable, "-m", "unishard.verl", run, out, "-w", str(after), "--device-type", "cpu"],
                               env=environment, check=True, stdout=subprocess.DEVNULL)
                try:
                    spawn(after, str(out / "global_step_3" / "actor"), truth, tied, False)
                    said = "equal"
                except Exception as error:  # what a rank raised
                    said, failed = f"DIFFERENT: {str(error).strip().splitlines()[-1]}", failed + 1
                print(f"{before} ranks -> {after} ranks, {'tied' if tied else 'untied'}, a frozen parameter: {said}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
