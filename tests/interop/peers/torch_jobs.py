#!/usr/bin/env python3
"""Real jobs of torch (plain, DDP, FSDP2, HSDP, FSDP2 with tensor parallelism) save and load with unishard.torch.

A job resumes with the bits of its undisturbed run; any kind loads any other's checkpoint, bit by bit what torch's own full state
dict has; jobs that are killed at random moments lose nothing; a rank that fails ends the save on all, and leaves nothing.

  torch_jobs.py BUILD

Exit status: 0 all equal, 1 something differs, 77 something is not installed.
"""
import copy
import faulthandler
import json
import os
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

import processes
from free_port import free_port

STEPS, SAVED = 4, 2
LONGEST = 600  # seconds that a rank may take: DeepSpeed waits in loops, which is slow on shared cores
LAUNCHES = {4: ("fsdp", "hsdp", "tp", "ddp"), 3: ("fsdp", "ddp"), 1: ("plain",)}


# A rank of a job.

def make_model(kind):
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    class Model(torch.nn.Module):
        """With tied weights, a frozen bias, buffers and a size that no world size divides."""

        def __init__(self):
            super().__init__()
            self.embed, self.up, self.down = torch.nn.Embedding(51, 24), torch.nn.Linear(24, 66), torch.nn.Linear(66, 24)
            self.norm, self.head = torch.nn.LayerNorm(24), torch.nn.Linear(24, 51, bias=False)
            self.scale = torch.nn.Parameter(torch.full((1,), 1.5))
            self.head.weight = self.embed.weight
            for name in ("count", "seen", "mean"):
                self.register_buffer(name, torch.tensor([3, 4]))
            self.up.bias.requires_grad_(False)

        def forward(self, tokens):
            hidden = self.embed(tokens)
            return self.head(self.norm(hidden + self.down(torch.relu(self.up(hidden))) * self.scale))

    torch.manual_seed(1)
    model, ranks = Model(), torch.distributed.get_world_size() if kind != "plain" else 1
    if kind == "fsdp":
        fully_shard(model, mesh=init_device_mesh("cpu", (ranks,)))
    elif kind == "hsdp":
        fully_shard(model, mesh=init_device_mesh("cpu", (2, ranks // 2), mesh_dim_names=("replicas", "shards")))
    elif kind == "tp":
        mesh = init_device_mesh("cpu", (ranks // 2, 2), mesh_dim_names=("data", "tensor"))
        parallelize_module(model, mesh["tensor"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        fully_shard(model, mesh=mesh["data"])
    elif kind == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(model)
    decayed = [one for one in model.parameters() if one.ndim > 1]
    others = [one for one in model.parameters() if one.ndim <= 1]
    return model, torch.optim.AdamW([{"params": decayed}, {"params": others, "weight_decay": 0.0}], lr=1e-2)


def train(model, optimizer, first, last):
    import torch
    losses = []
    for step in range(first, last):
        tokens = torch.randint(0, 51, (8, 7), generator=torch.Generator().manual_seed(step))
        loss = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item().hex())
    return losses


def start_rank(backend="gloo"):
    import torch
    faulthandler.dump_traceback_later(LONGEST - 20, exit=True)  # says where a rank hangs
    ranks = int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    if ranks > 1:
        torch.distributed.init_process_group(backend)
    return int(os.environ["RANK"]), ranks


def rank_of_kinds(folder):
    """Trains, saves, resumes; then loads what the jobs before have saved, and saves it again."""
    import torch
    import unishard.torch
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict
    rank, ranks = start_rank()
    for kind in LAUNCHES[ranks]:
        name, before = f"{kind}-{ranks}", sorted(path.name for path in (folder / "saved").glob("*"))
        model, optimizer = make_model(kind)
        train(model, optimizer, 0, SAVED)
        for buffer in model.buffers():  # as those of BatchNorm differ: rank 0's are meant
            buffer.add_(rank)
        unishard.torch.save(folder / "saved" / name, model, optimizer, step=SAVED, client_state={"epoch": 3},
                            compress="zstd" if kind == "hsdp" else "none")
        full = copy.deepcopy(get_state_dict(model, optimizer, options=StateDictOptions(full_state_dict=True, cpu_offload=True)))
        losses = train(model, optimizer, SAVED, STEPS)
        model, optimizer = make_model(kind)
        loaded = unishard.torch.load(folder / "saved" / name, model, optimizer)
        report = {"resumes": losses == train(model, optimizer, loaded.step, STEPS), "client_state": loaded.client_state == {"epoch": 3}}
        for other in before:
            model, optimizer = make_model(kind)
            unishard.torch.load(folder / "saved" / other, model, optimizer)
            unishard.torch.save(folder / "again" / f"{name}-of-{other}", model, optimizer, step=SAVED, client_state={"epoch": 3})
        if rank == 0:
            torch.save(full, folder / f"{name}.pt")
            (folder / f"{name}.json").write_text(json.dumps(report))
        if ranks > 1:
            torch.distributed.barrier()


def has_checkpoint(run):
    """Returns whether a save was completed. A kill can leave a whole staging folder, `<tag>.partial-<id>`, which is no checkpoint."""
    return any(".partial-" not in path.parent.name for path in run.glob("*/manifest.json"))


def rank_until_killed(folder, steps):
    """Saves at every step and goes on from the newest checkpoint."""
    import unishard.torch
    rank, _ = start_rank()
    model, optimizer = make_model("fsdp")
    run, first = folder / "run", 0
    if has_checkpoint(run):
        first = unishard.torch.load(run, model, optimizer).step
    for step in range(first, int(steps)):
        losses = train(model, optimizer, step, step + 1)
        if rank == 0:  # before the save: a kill behind it must not lose the line
            with open(folder / "losses", "a") as file:
                file.write(f"{step} {losses[0]}\n")
        unishard.torch.save(run, model, optimizer, step=step + 1, keep_last=2)


def rank_that_fails(folder):
    """One rank cannot say what it has; all must hear of it, and nothing may stay."""
    import torch
    import unishard
    import unishard.torch
    rank, _ = start_rank()
    model, optimizer = make_model("fsdp")
    codes = {}

    def expect(what, action):
        try:
            action()
            codes[what] = "nothing"
        except unishard.Error as error:
            codes[what] = error.code

    expect("client_state", lambda: unishard.torch.save(folder / "bad", model, optimizer, step=1, client_state={"x": object()}))
    expect("other steps", lambda: unishard.torch.save(folder / "bad", model, optimizer, step=1 + rank))
    optimizer.param_groups[0]["odd"] = object() if rank == 1 else 1
    expect("one rank", lambda: unishard.torch.save(folder / "bad", model, optimizer, step=1))
    del optimizer.param_groups[0]["odd"]
    unishard.torch.save(folder / "good", model, optimizer, step=1)
    expect("same tag", lambda: unishard.torch.save(folder / "good", model, optimizer, step=1, replace=False))
    expect("nothing there", lambda: unishard.torch.load(folder / "none", model, optimizer))
    other = torch.nn.Linear(3, 3)
    expect("another model", lambda: unishard.torch.load(folder / "good", other, torch.optim.AdamW(other.parameters())))
    (folder / f"codes-{rank}").write_text(json.dumps(codes))


# The parent: starts ranks and judges.

class Judge:
    def __init__(self):
        self.failed = 0

    def row(self, what, is_good):
        print(f"{what:70} {'equal' if is_good else 'DIFFERENT'}", flush=True)
        self.failed += not is_good


def begin(words):
    sys.argv[1:] = words
    sys.modules["__main__"].main()


def launch(mode, folder, world_size, *words, modules=processes.TORCH, is_copy=True):
    """Starts `--rank mode folder words` on every rank, as copies of one process, or in interpreters of their own, whose sets have
    other orders."""
    job = {**os.environ, "WORLD_SIZE": str(world_size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    return [processes.start(begin, [["--rank", mode, str(folder), *words]], {**job, "RANK": str(rank)}, modules, is_copy=is_copy)
            for rank in range(world_size)]


def finish(started, what):
    for rank in started:
        rank.join(LONGEST)
    statuses = [rank.exitcode for rank in started]
    if any(status != 0 for status in statuses):
        raise SystemExit(f"{what}: the ranks ended with {statuses}")


def judge_kinds(judge, folder):
    import torch
    import unishard
    for world_size in sorted(LAUNCHES, reverse=True):
        finish(launch("kinds", folder, world_size, is_copy=world_size != 3), f"{world_size} ranks")
    for path in sorted(folder.glob("*.json")):
        report = json.loads(path.read_text())
        judge.row(f"{path.stem}: resumes with the losses of the undisturbed run", report["resumes"] and report["client_state"])
        saved = folder / "saved" / path.stem
        judge.row(f"{path.stem}: verify --deep", unishard.verify(saved, deep=True)["ok"])
        judge.row(f"{path.stem}: what torch's full state dict has", is_full(saved, torch.load(folder / f"{path.stem}.pt")))
    for again in sorted((folder / "again").glob("*")):
        of = again.name.split("-of-")[1]
        judge.row(f"{again.name}: saved again", unishard.diff(again, folder / "saved" / of)["equal"] and
                  unishard.inspect(again)["identity"] == unishard.inspect(folder / "saved" / of)["identity"])
    shards = json.loads(next((folder / "saved" / "tp-4").glob("*/manifest.json")).read_text())["shards"]
    judge.row("tp-4: parts that are no ranges are stored as boxes", all("boxes_bytes" in shard for shard in shards))
    for to in ("deepspeed", "dcp"):
        made = folder / f"made-{to}"
        unishard.convert(folder / "saved" / "tp-4", made, to=to)
        judge.row(f"tp-4: as {to}", unishard.diff(folder / "saved" / "tp-4", made, states=["fp32", "exp_avg", "exp_avg_sq"])["equal"])


def is_full(saved, full):
    import torch
    import unishard
    weights, states = full
    with unishard.open(saved) as checkpoint:
        good = all(torch.equal(value, checkpoint[name].torch()) for name, value in weights.items())
        for name, moments in states["state"].items():
            good &= all(torch.equal(value, checkpoint[name, state].torch()) for state, value in moments.items() if state != "step")
        return good and {name for name, _ in checkpoint.tensors} | set(checkpoint.aliases) == set(weights)


def judge_kills(judge, folder, kills=5, steps=60):
    finish(launch("until_killed", folder / "calm", 2, str(steps)), "the undisturbed run")
    rough = folder / "rough"
    for _ in range(kills):
        started = launch("until_killed", rough, 2, str(steps))
        deadline = time.monotonic() + 60
        before = (rough / "losses").stat().st_size if (rough / "losses").exists() else 0
        while time.monotonic() < deadline and not ((rough / "losses").exists() and (rough / "losses").stat().st_size > before):
            time.sleep(0.01)
        time.sleep(random.uniform(0, 0.3))
        for rank in started:
            rank.kill()
            rank.join()
    finish(launch("until_killed", rough, 2, str(steps)), "the run after the kills")
    calm = dict(line.split() for line in (folder / "calm" / "losses").read_text().splitlines())
    lines = [line.split() for line in (rough / "losses").read_text().splitlines()]
    judge.row(f"{kills} kills: every loss is that of the undisturbed run", len(calm) == steps and dict(lines) == calm and
              all(calm[step] == loss for step, loss in lines))
    judge.row(f"{kills} kills: nothing but two checkpoints is left", len([p for p in (rough / "run").iterdir() if p.is_dir()]) == 2)


def judge_failures(judge, folder):
    finish(launch("that_fails", folder, 2), "the failing saves")
    codes = [json.loads((folder / f"codes-{rank}").read_text()) for rank in range(2)]
    expected = [{"client_state": "invalid argument", "other steps": "mismatch", "one rank": "unsupported", "same tag": "already exists",
                 "nothing there": "not found", "another model": "mismatch"}] * 2
    if codes != expected:
        print(codes)
    judge.row("failures have the same outcome on all ranks", codes == expected)
    judge.row("failures leave nothing", not (folder / "bad").exists() or not list((folder / "bad").iterdir()))


def run(modes, parts):
    """Is a rank of a job, or the parent, which judges. modes: functions of a rank by name; parts: functions of the parent by name."""
    if sys.argv[1] == "--rank":
        modes[sys.argv[2]](Path(sys.argv[3]), *sys.argv[4:])
        sys.stdout.flush()
        os._exit(0)  # Gloo's threads can abort Python's own end: https://github.com/pytorch/pytorch/pull/179291
    build = Path(sys.argv[1]).resolve()
    os.environ.update(UNISHARD_LIBRARY_DIR=str(build / "bin"), PYTHONDONTWRITEBYTECODE="1",
                      PYTHONPATH=str(Path(__file__).resolve().parents[3] / "tools" / "python"))
    sys.path.insert(0, os.environ["PYTHONPATH"])
    judge, folder = Judge(), Path(tempfile.mkdtemp(prefix="unishard-jobs-"))
    try:
        for name, part in parts.items():
            for sub in ("", "calm", "rough"):
                (folder / name / sub).mkdir(parents=True, exist_ok=True)
            part(judge, folder / name)
    finally:
        shutil.rmtree(folder)
    return 1 if judge.failed else 0


def main():
    return run({"kinds": rank_of_kinds, "until_killed": rank_until_killed, "that_fails": rank_that_fails},
               {"kinds": judge_kinds, "kills": judge_kills, "failures": judge_failures})


if __name__ == "__main__":
    sys.exit(main())
