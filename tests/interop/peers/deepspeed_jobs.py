#!/usr/bin/env python3
"""Real DeepSpeed engines (stages 0 to 3, fp32, bf16, fp16, offload) save and load with unishard.deepspeed.

What is saved equals what engine.save_checkpoint writes at the same moment; a job resumes with the bits of its undisturbed run; at
another world size and stage it has the losses of an engine that DeepSpeed itself loads there; folders of other formats load too; jobs
that are killed at random moments lose nothing; a rank that fails ends the save on all.

  deepspeed_jobs.py BUILD

Exit status: 0 all equal, 1 something differs, 77 something is not installed.
"""
import contextlib
import datetime
import faulthandler
import functools
import glob
import json
import logging
import os
import shutil
import sys
import tempfile
from pathlib import Path

import processes
import torch_jobs
from torch_jobs import LONGEST, Judge, finish, judge_kills, launch

STEPS, SAVED, BATCH = 2, 2, 12
TORCH, CPU = {"torch_adam": True}, {"device": "cpu"}
# name: stage, precision, settings of zero_optimization, other settings of the configuration, settings of the optimizer
KINDS = {f"stage{stage}-{precision}": (stage, precision, {}, {}, TORCH) for stage in range(4) for precision in ("fp32", "bf16", "fp16")}
KINDS.update({
    "stage0-fp16-fused": (0, "fp16", {}, {}, {}), "stage0-bf16-fused": (0, "bf16", {}, {}, {}),
    "stage2-fp16-fused": (2, "fp16", {}, {}, {}),
    "stage1-bf16-class": (1, "bf16", {}, {"data_types": {"grad_accum_dtype": "fp32"}}, TORCH),
    "stage2-bf16-round-robin": (2, "bf16", {"round_robin_gradients": True}, {}, TORCH),
    "stage2-fp32-aligned": (2, "fp32", {"parameter_alignment": True}, {}, TORCH),
    "stage2-fp32-offload": (2, "fp32", {"offload_optimizer": CPU}, {}, {}),
    "stage3-bf16-offload": (3, "bf16", {"offload_optimizer": CPU, "offload_param": CPU}, {}, {})})
# A job on 2 ranks goes on with each of these on 3.
CROSSINGS = [("stage2-fp32", "stage3-fp32"), ("stage3-fp32", "stage1-fp32"), ("stage0-fp32", "stage2-fp32"),
             ("stage3-bf16", "stage2-bf16"), ("stage2-bf16", "stage3-bf16"), ("stage2-fp16", "stage3-fp16"),
             ("stage3-bf16-offload", "stage1-bf16-class"), ("stage2-fp32-offload", "stage0-fp32"), ("stage2-fp16", "stage0-fp16"),
             ("stage2-bf16-round-robin", "stage2-bf16-round-robin"), ("stage2-fp32-aligned", "stage2-fp32-aligned")]
CLIENT = {"epoch": 3, "betas": (0.5, 1), "when": datetime.datetime(2024, 5, 6, 7, 8), "names": {"a"},
          "odd": {7: b"\0\xff", "inf": float("inf")}}


# A rank of a job.

def make_model():
    """The model of torch_jobs.py (tied weights, a frozen bias, sizes that no world size divides) with a buffer that changes."""
    import torch
    model, _ = torch_jobs.make_model("plain")
    model.register_buffer("seen", torch.tensor([0, 4]))
    model.register_buffer("unsaved", torch.ones(2), persistent=False)

    def count(module, inputs):
        module.seen += 1

    model.register_forward_pre_hook(count)
    return model


def make_engine(kind):
    import deepspeed
    stage, precision, zero, others, optimizer = KINDS[kind]
    config = {"train_batch_size": BATCH, "steps_per_print": 10**9, "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, **optimizer}},
              "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 0.02, "warmup_num_steps": 10}},
              "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 100, **zero}, **others}
    if stage == 3:
        config["zero_optimization"]["sub_group_size"] = 1500
    if precision == "fp16":  # the scale grows in the first steps
        config["fp16"] = {"enabled": True, "initial_scale_power": 8, "loss_scale_window": 1}
    elif precision == "bf16":
        config["bf16"] = {"enabled": True}
    model = make_model()
    trained = [one for one in model.parameters() if one.requires_grad]
    groups = [{"params": [one for one in trained if one.ndim > 1]},
              {"params": [one for one in trained if one.ndim <= 1], "weight_decay": 0.0}]
    return deepspeed.initialize(model=model, model_parameters=groups, config=config)[0]


def train(engine, last):
    import torch
    losses, share = [], BATCH // int(os.environ["WORLD_SIZE"])
    first = int(os.environ["RANK"]) * share
    while engine.global_steps < last:
        tokens = torch.randint(0, 51, (BATCH, 7), generator=torch.Generator().manual_seed(engine.global_steps))
        own = tokens[first:first + share]
        loss = torch.nn.functional.cross_entropy(engine(own).float().flatten(0, 1), own.flatten())
        engine.backward(loss)
        engine.step()
        losses.append(loss.item().hex())
    return losses


def start_rank():
    import deepspeed
    import torch
    from deepspeed.accelerator import get_accelerator
    faulthandler.dump_traceback_later(LONGEST - 20, exit=True)  # says where a rank hangs
    logging.disable(logging.WARNING)
    os.environ.update(LOCAL_RANK=os.environ["RANK"], LOCAL_SIZE=os.environ["WORLD_SIZE"])
    get_accelerator().is_fp16_supported = lambda: True  # torch computes fp16 on any CPU; DeepSpeed asks oneDNN only
    torch.set_num_threads(1)
    deepspeed.init_distributed(dist_backend="gloo")
    return int(os.environ["RANK"])


def note(folder, name, report):
    (folder / f"{name}.rank{os.environ['RANK']}.json").write_text(json.dumps(report))


def rank_of_kinds(folder):
    """Trains, saves both ways, goes on; then resumes from both."""
    import torch
    import unishard.deepspeed
    start_rank()
    for kind in KINDS:
        client = {**CLIENT, "rng": torch.arange(5, dtype=torch.uint8)}
        engine = make_engine(kind)
        train(engine, SAVED)
        unishard.deepspeed.save(engine, folder / "ours" / kind, client_state=client, compress="zstd" if kind == "stage2-bf16" else "none")
        engine.save_checkpoint(str(folder / "theirs" / kind), client_state=client)
        losses, report = train(engine, SAVED + STEPS), {}
        for place in ("ours", "theirs"):
            engine = make_engine(kind)
            _, loaded = unishard.deepspeed.load(engine, folder / place / kind)
            report[f"{place} has the client state"] = torch.equal(loaded.pop("rng"), client["rng"]) and loaded == CLIENT
            unishard.deepspeed.save(engine, folder / "again" / place / kind, client_state=client)
            report[f"{place} resumes"] = train(engine, SAVED + STEPS) == losses
        unishard.deepspeed.load(engine, folder / "ours" / kind)  # into an engine that has trained on
        report["an engine that has trained resumes"] = train(engine, SAVED + STEPS) == losses
        note(folder, kind, report)


def rank_of_crossings(folder):
    """Goes on with checkpoints of other world sizes and stages, through unishard.deepspeed and through DeepSpeed's own loader."""
    import unishard.deepspeed
    start_rank()
    for source, kind in CROSSINGS:
        engine = make_engine(kind)
        engine.load_checkpoint(str(folder / "resharded" / f"{source}-{kind}"))
        expected, report = train(engine, SAVED + STEPS), {}
        places = ["ours", "theirs"] if source != "stage2-fp32" else ["ours", "theirs", "dcp", "deepspeed-universal"]
        for place in places:
            engine = make_engine(kind)
            unishard.deepspeed.load(engine, folder / place / source)
            report[place] = train(engine, SAVED + STEPS) == expected
        note(folder, f"{source}-to-{kind}", report)


def rank_until_killed(folder, steps):
    """Saves at every step and goes on from the newest checkpoint."""
    import unishard.deepspeed
    rank, run = start_rank(), folder / "run"
    engine = make_engine("stage3-bf16")
    if torch_jobs.has_checkpoint(run):
        unishard.deepspeed.load(engine, run)
    while engine.global_steps < steps:
        step = engine.global_steps
        losses = train(engine, step + 1)
        if rank == 0:  # before the save: a kill behind it must not lose the line
            with open(folder / "losses", "a") as file:
                file.write(f"{step} {losses[0]}\n")
        unishard.deepspeed.save(engine, run, keep_last=2, base=run / f"global_step{step}" if step else None)


def rank_that_fails(folder):
    """What fails on one rank fails on all with the same code, and leaves nothing."""
    import deepspeed
    import torch
    import unishard
    import unishard.deepspeed
    rank, codes = start_rank(), {}

    def expect(what, action):
        try:
            action()
            codes[what] = "nothing"
        except unishard.Error as error:
            codes[what] = error.code

    engine = make_engine("stage2-fp32")
    train(engine, 1)
    expect("client_state", lambda: unishard.deepspeed.save(engine, folder / "bad", client_state={"x": object()}))
    inner, vector = engine.optimizer.optimizer, engine.optimizer.single_partition_of_fp32_groups[0]
    if rank == 1:
        inner.state[vector]["odd"] = torch.zeros(3)
    expect("one rank", lambda: unishard.deepspeed.save(engine, folder / "bad"))
    inner.state[vector].pop("odd", None)
    unishard.deepspeed.save(engine, folder / "good", "first")
    expect("same tag", lambda: unishard.deepspeed.save(engine, folder / "good", "first", replace=False))
    expect("nothing there", lambda: unishard.deepspeed.load(engine, folder / "none"))
    config = {"train_batch_size": 2, "optimizer": {"type": "SGD", "params": {"lr": 1}}}
    other = deepspeed.initialize(model=torch.nn.Linear(3, 3), config=config)[0]
    expect("another model", lambda: unishard.deepspeed.load(other, folder / "good"))
    pipeline = deepspeed.pipe.PipelineModule([torch.nn.Linear(3, 3)], num_stages=1, loss_fn=torch.nn.MSELoss())
    piped = deepspeed.initialize(model=pipeline, model_parameters=pipeline.parameters(), config=config)[0]
    expect("pipeline", lambda: unishard.deepspeed.save(piped, folder / "bad"))
    if rank == 0:
        shard = next((folder / "good" / "first").glob("shard-00000*"))
        content = bytearray(shard.read_bytes())
        content[8192 + 100] ^= 1
        shard.write_bytes(content)
    torch.distributed.barrier()
    expect("damage", lambda: unishard.deepspeed.load(engine, folder / "good"))
    note(folder, "codes", codes)


# The parent: starts ranks and judges.

def reports(folder, name, ranks):
    return [json.loads((folder / f"{name}.rank{rank}.json").read_text()) for rank in range(ranks)]


def judge_kinds(judge, folder):
    import unishard
    finish(launch("kinds", folder, 2, modules=processes.DEEPSPEED), "2 ranks")
    for kind in KINDS:
        ours, theirs, native = folder / "ours" / kind, folder / "theirs" / kind, folder / "native" / kind
        found = reports(folder, kind, 2)
        for what in found[0]:
            # The last bits of DeepSpeed's own CPU kernel depend on where vectors lie in memory; its own resume differs as well.
            if "fused" not in kind or "resumes" not in what:
                judge.row(f"{kind}: {what}", all(one[what] for one in found))
        for place in ("ours", "theirs"):
            judge.row(f"{kind}: {place} is the same when saved again", is_same(folder / "again" / place / kind, ours))
        judge.row(f"{kind}: verify --deep", unishard.verify(ours, deep=True)["ok"])
        unishard.convert(theirs, native, to="native")
        judge.row(f"{kind}: ours is what DeepSpeed saves", is_same(ours, native))


def is_same(ours, theirs):
    """Compares all tensors, and everything that DeepSpeed's files have besides."""
    import unishard
    report = unishard.diff(ours, theirs, states=["fp32", "weights", "buffer", "exp_avg", "exp_avg_sq"])
    with unishard.open(ours) as a, unishard.open(theirs) as b:
        rows = [[(one.name, one.state, one.dtype, one.shape, one.group, one.frozen) for one in side.tensors.values()
                 if one.state != "extra"] for side in (a, b)]
        facts = ("groups", "scheduler", "loss_scaler", "data_position", "config", "step", "stage", "world_size", "aliases")
        odd = [fact for fact in facts if getattr(a, fact) != getattr(b, fact)]
        if odd or rows[0] != rows[1]:
            print(f"  {odd}", *(set(rows[0]) ^ set(rows[1])))
        return report["equal"] and not odd and rows[0] == rows[1]


def judge_crossings(judge, folder):
    import unishard
    for place in ("dcp", "deepspeed-universal"):
        unishard.convert(folder / "ours" / "stage2-fp32", folder / place / "stage2-fp32", to=place)
    for source, kind in CROSSINGS:
        made = folder / "resharded" / f"{source}-{kind}"
        unishard.convert(folder / "ours" / source, made, to="deepspeed", world_size=3, stage=KINDS[kind][0])
    finish(launch("crossings", folder, 3, is_copy=False), "3 ranks")
    for source, kind in CROSSINGS:
        found = reports(folder, f"{source}-to-{kind}", 3)
        for key in found[0]:
            good = all(one[key] for one in found)
            judge.row(f"{source} on 2 ranks to {kind} on 3, from {key}: as DeepSpeed resumes", good)


def judge_failures(judge, folder):
    finish(launch("that_fails", folder, 2, modules=processes.DEEPSPEED), "the failing saves")
    expected = {"client_state": "invalid argument", "one rank": "unsupported", "same tag": "already exists", "nothing there": "not found",
                "another model": "mismatch", "pipeline": "unsupported", "damage": "corrupt"}
    codes = reports(folder, "codes", 2)
    if codes != [expected] * 2:
        print(codes)
    judge.row("failures have the same outcome on all ranks", codes == [expected] * 2)
    judge.row("failures leave nothing", not (folder / "bad").exists() or not list((folder / "bad").iterdir()))


def prepare(build):
    """Sets the environment of the ranks."""
    package = Path(__file__).resolve().parents[3] / "tools" / "python"
    os.environ.update(UNISHARD_LIBRARY_DIR=str(Path(build).resolve() / "bin"), PYTHONDONTWRITEBYTECODE="1", DS_ACCELERATOR="cpu",
                      OMP_NUM_THREADS="1", PYTHONPATH=f"{package}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
                      PATH=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")  # DeepSpeed builds its kernels with ninja
    sys.path.insert(0, str(package))


def clean(folder):
    shutil.rmtree(folder)
    for left in glob.glob("/dev/shm/deepspeed_allreduce_buffer_*"):  # DeepSpeed leaves 66 MiB a rank
        with contextlib.suppress(FileNotFoundError):
            os.remove(left)


def main():
    if sys.argv[1] == "--rank":
        mode, folder = sys.argv[2], Path(sys.argv[3])
        {"kinds": rank_of_kinds, "crossings": rank_of_crossings, "that_fails": rank_that_fails,
         "until_killed": lambda path: rank_until_killed(path, int(sys.argv[4]))}[mode](folder)
        sys.stdout.flush()
        os._exit(0)  # Gloo's threads can abort Python's own end: https://github.com/pytorch/pytorch/pull/179291
    prepare(sys.argv[1])
    judge, folder = Judge(), Path(tempfile.mkdtemp(prefix="unishard-deepspeed-"))
    kills = functools.partial(judge_kills, kills=3, steps=30)
    try:
        for part, name in ((judge_kinds, "engines"), (judge_crossings, "engines"), (kills, "kills"), (judge_failures, "failures")):
            for sub in ("", "calm", "rough"):
                (folder / name / sub).mkdir(parents=True, exist_ok=True)
            part(judge, folder / name)
    finally:
        clean(folder)
    return 1 if judge.failed else 0


if __name__ == "__main__":
    sys.exit(main())
