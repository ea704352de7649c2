#!/usr/bin/env python3
"""Real jobs of torch (plain, DDP, FSDP2, HSDP, FSDP2 with tensor parallelism) save and load through torch.distributed.checkpoint with
unishard.dcp.Writer and Reader.

State dicts of many layouts come back as DCP's own storage gives them; their catalogs are those that the tools find in DCP's own folder;
any kind of job loads any other's; jobs that are killed at random moments lose nothing; a rank that fails ends the save on all.

  dcp_jobs.py BUILD

Exit status: 0 all equal, 1 something differs, 77 something is not installed.
"""
import datetime
import io
import json
import logging
import os
import pickle
import sys
import warnings
from pathlib import Path

from torch_jobs import LAUNCHES, SAVED, Judge, finish, has_checkpoint, judge_kills, launch, make_model, run, start_rank, train

# Layouts that name no optimizer state, and one that is saved in another thread, and one in another process.
LAYOUTS = ("names", "app", "titan", "raw", "model", "free", "whole")
ASYNC = {"names": "THREAD", "free": "THREAD", "titan": "PROCESS"}
FIXTURES = Path(os.environ.get("UNISHARD_FIXTURES", Path(__file__).resolve().parents[4] / "shared" / "fixtures"))
EQUAL = ("groups", "step", "aliases", "client_state", "stage", "world_size", "scheduler")


# A rank of a job.

def app_of(model, optimizer):
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.checkpoint.stateful import Stateful

    class App(Stateful):
        def state_dict(self):
            weights, states = get_state_dict(model, optimizer)
            return {"model": weights, "optim": states, "epoch": 3}

        def load_state_dict(self, values):
            set_state_dict(model, optimizer, model_state_dict=values["model"], optim_state_dict=values["optim"])
    return App()


def state_of(layout, kind, model, optimizer):
    """Returns a state dict of the job in one of the layouts that people have."""
    import numpy
    import torch
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, get_optimizer_state_dict, get_state_dict
    if layout == "names":
        weights, states = get_state_dict(model, optimizer)
        return {"model": weights, "optim": states}
    if layout == "app":
        return {"app": app_of(model, optimizer)}
    if layout == "titan":
        flat = get_optimizer_state_dict(model, optimizer, options=StateDictOptions(flatten_optimizer_state_dict=True))
        return {**get_model_state_dict(model), "optimizer": flat, "lr_scheduler": {"last_epoch": 2}, "train_state": {
            "step": torch.tensor(SAVED, dtype=torch.int32), "loss": [0.5, 0.25]}, "dataloader": {"state": pickle.dumps([1, 2])}}
    if layout == "raw":
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}
    if layout == "model":
        return get_model_state_dict(model)
    if layout == "whole":
        weights, states = get_state_dict(model, optimizer, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
        ranks = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
        return {"model": weights, "optim": states} if ranks == 1 else {"model": get_model_state_dict(model)}
    values = {"step": 7, "lr": 0.1, "name": "job", "nothing": None, "yes": True, "pair": (1, (2.5, "x")), "list": [1, [2, "y"]],
              "odd": float("nan"), "large": 1 << 70, "bytes": b"\0\1", "array": numpy.arange(3), "when": datetime.datetime(2026, 1, 2),
              "set": {1, 2}, "nested": {"a": {"b.c": torch.arange(6).reshape(2, 3)}, "list": [torch.ones(2), {"x": 3}]},
              "half": torch.tensor([1.5, 2.5], dtype=torch.bfloat16), "bool": torch.tensor(True), "complex": torch.tensor([1 + 2j]),
              "empty": torch.empty(0, 4), "scalar": torch.tensor(3.5), "view": torch.arange(12.0).reshape(3, 4).t(),
              "dtype": torch.float32, "rng": torch.get_rng_state(), "$odd": {"$type": "tuple"}}
    if kind in ("hsdp", "tp"):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Replicate, Shard, distribute_tensor
        mesh = init_device_mesh("cpu", (2, 2))
        experts = torch.arange(6 * 5 * 7).reshape(6, 5, 7).float()
        for number, places in enumerate(((Shard(0), Shard(1)), (Shard(2), Shard(0)), (Replicate(), Shard(1)), (Shard(1), Replicate()))):
            values[f"experts.{number}"] = distribute_tensor(experts + number, mesh, places)
    return values


def is_equal(a, b):
    import numpy
    import torch
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        a, b = (one.to_local() if hasattr(one, "to_local") else one for one in (a, b))
        return a.shape == b.shape and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(is_equal(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(is_equal, a, b))
    if isinstance(a, numpy.ndarray):
        return numpy.array_equal(a, b)
    if isinstance(a, io.BytesIO):
        return a.getvalue() == b.getvalue()
    return a == b or a != a and b != b


def save_both(folder, layout, kind, name, state):
    """Saves with DCP's storage and with UniShard's."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
    from unishard.dcp import Writer
    dcp.save(state, checkpoint_id=folder / "dcp" / name)
    writer = Writer(folder / "saved" / name, tag="one", compress="zstd" if kind == "hsdp" else "none")
    if layout in ASYNC and kind != "plain":
        saving = dcp.async_save(state, storage_writer=writer, async_checkpointer_type=AsyncCheckpointerType[ASYNC[layout]])
        getattr(saving, "upload_completion", saving).result()
    else:
        dcp.save(state, storage_writer=writer)


def loaded(layout, kind, **reader):
    """Returns what a new job has after dcp.load()."""
    import torch.distributed.checkpoint as dcp
    model, optimizer = make_model(kind)
    train(model, optimizer, 9, 10)  # so that it has states, and other ones
    values = state_of(layout, kind, model, optimizer)
    dcp.load(values, **reader)
    return values if layout != "app" else state_of("names", kind, model, optimizer)


def rank_of_layouts(folder):
    """Saves every layout in both storages, and loads from both; then loads what jobs of other kinds have saved."""
    import torch
    import unishard.torch
    from unishard.dcp import Reader
    rank, ranks = start_rank(backend="cpu:gloo")
    for kind in LAUNCHES[ranks]:
        report = {}
        model, optimizer = make_model(kind)
        train(model, optimizer, 0, SAVED)
        before = sorted(path.name for path in (folder / "saved").glob("names-*"))
        for layout in LAYOUTS:
            name = f"{layout}-{kind}-{ranks}"
            save_both(folder, layout, kind, name, state_of(layout, kind, model, optimizer))
            theirs, ours = loaded(layout, kind, checkpoint_id=folder / "dcp" / name), loaded(
                layout, kind, storage_reader=Reader(folder / "saved" / name))
            report[f"{name}: loads as from DCP's own storage"] = is_equal(theirs, ours)
        mine = loaded("names", kind, storage_reader=Reader(folder / "saved" / f"names-{kind}-{ranks}"))
        for other in before:
            theirs = loaded("names", kind, storage_reader=Reader(folder / "saved" / other))
            expected = loaded("names", kind, checkpoint_id=folder / "dcp" / other)
            report[f"{other}: loads into {kind}-{ranks}"] = is_equal(theirs, expected) and theirs.keys() == mine.keys()
        unishard.torch.save(folder / "torch" / f"{kind}-{ranks}", model, optimizer, step=SAVED)
        theirs = loaded("names", kind, storage_reader=Reader(folder / "torch" / f"{kind}-{ranks}"))
        report[f"{kind}-{ranks}: loads what unishard.torch has saved"] = is_equal(theirs["model"], mine["model"]) and is_equal(
            theirs["optim"]["state"], mine["optim"]["state"])
        (folder / f"{kind}-{ranks}-{rank}.json").write_text(json.dumps(report))
        if ranks > 1:
            torch.distributed.barrier()


def rank_until_killed(folder, steps):
    """Saves at every step, each second one asynchronously, and goes on from the newest checkpoint."""
    import torch
    import torch.distributed.checkpoint as dcp
    from unishard.dcp import Reader, Writer
    rank, _ = start_rank(backend="cpu:gloo")
    group = torch.distributed.new_group()  # training goes on meanwhile in the other one
    model, optimizer = make_model("fsdp")
    run, first = folder / "run", 0
    if has_checkpoint(run):
        train(model, optimizer, 0, 1)  # makes the states that are loaded
        progress = {"app": app_of(model, optimizer), "next": 0}
        dcp.load(progress, storage_reader=Reader(run))
        first = progress["next"]
    saving = None
    for step in range(first, int(steps)):
        losses = train(model, optimizer, step, step + 1)
        if rank == 0:  # before the save: a kill behind it must not lose the line
            with open(folder / "losses", "a") as file:
                file.write(f"{step} {losses[0]}\n")
        if saving is not None:
            getattr(saving, "upload_completion", saving).result()
            saving = None
        state, writer = {"app": app_of(model, optimizer), "next": step + 1}, Writer(run, step=step + 1, keep_last=2)
        if step % 2:
            saving = dcp.async_save(state, storage_writer=writer, process_group=group)
        else:
            dcp.save(state, storage_writer=writer)
    if saving is not None:
        getattr(saving, "upload_completion", saving).result()


class Unpicklable:
    def __reduce__(self):
        raise RuntimeError("this object cannot be pickled")


def rank_that_fails(folder):
    """One rank cannot say what it has; all must hear of it, and nothing may stay."""
    import torch
    import torch.distributed.checkpoint as dcp
    from unishard import _native
    from unishard.dcp import Reader, Writer
    rank, _ = start_rank()
    model, optimizer = make_model("fsdp")
    train(model, optimizer, 0, 1)
    outcomes = {}

    def expect(what, action):
        try:
            action()
            outcomes[what] = "nothing"
        except dcp.api.CheckpointException as error:
            causes = [cause for cause, _ in error.failures.values()]
            outcomes[what] = sorted({getattr(cause, "code", type(cause).__name__) for cause in causes})
        except Exception as error:
            outcomes[what] = getattr(error, "code", type(error).__name__)

    state = state_of("names", "fsdp", model, optimizer)
    expect("no folder", lambda: dcp.save(state, storage_writer=Writer()))
    expect("bad options", lambda: dcp.save(state, storage_writer=Writer(folder / "bad", step=1, compress="fast")))
    expect("client state", lambda: Writer(folder / "bad", step=1, client_state={"x": object()}))
    expect("one rank", lambda: dcp.save({**state, f"object {rank}": Unpicklable() if rank == 1 else 1},
                                        storage_writer=Writer(folder / "bad", step=1)))
    expect("another dtype", lambda: dcp.save({"w": torch.zeros(3, dtype=torch.complex32)},
                                             storage_writer=Writer(folder / "bad", step=1)))
    expect("the same tag again", lambda: dcp.save(state, storage_writer=Writer(folder / "bad", step=1)))
    expect("same tag", lambda: dcp.save(state, storage_writer=Writer(folder / "bad", step=1, replace=False)))
    held = None
    if rank == 0:
        catalog = {"tensors": [], "aliases": [], "step": 0, "world_size": 1}
        held = _native.Save(str(folder / "bad"), "global_step2", catalog, {})
    torch.distributed.barrier()
    expect("busy", lambda: dcp.save(state, storage_writer=Writer(folder / "bad", step=2)))
    torch.distributed.barrier()
    if held:
        held.close()
    expect("nothing there", lambda: dcp.load(state, storage_reader=Reader(folder / "none")))
    expect("missing key", lambda: dcp.load({**state, "more": torch.zeros(3)}, storage_reader=Reader(folder / "bad")))
    expect("another shape", lambda: dcp.load({"model": {"scale": torch.zeros(3)}}, storage_reader=Reader(folder / "bad")))
    with open(folder / f"outcomes-{rank}", "w") as file:
        json.dump(outcomes, file)


# The parent.

def catalog_differences(saved, dcp_folder, made):
    """Returns what the checkpoint `saved` has otherwise than the tools find in DCP's folder, of which `made` is the native copy."""
    import unishard
    with unishard.open(saved) as ours, unishard.open(dcp_folder) as theirs:
        different = [part for part in EQUAL if getattr(ours, part) != getattr(theirs, part)]
        rows = [[(one.name, one.state, one.dtype, one.shape, one.group, one.frozen) for one in of.tensors.values()]
                for of in (ours, theirs)]
    different += ["tensors"] if rows[0] != rows[1] else []
    return different + (["identity"] if unishard.inspect(saved)["identity"] != unishard.inspect(made)["identity"] else [])


def judge_layouts(judge, folder):
    import unishard
    for world_size in sorted(LAUNCHES, reverse=True):
        finish(launch("layouts", folder, world_size, is_copy=world_size != 3), f"{world_size} ranks")
    reports = {}
    for path in sorted(folder.glob("*.json")):
        for what, is_good in json.loads(path.read_text()).items():
            reports[what] = reports.get(what, True) and is_good
    for what, is_good in reports.items():
        judge.row(what, is_good)
    for saved in sorted((folder / "saved").iterdir()):
        unishard.convert(folder / "dcp" / saved.name, folder / "made" / saved.name, to="native")
        different = catalog_differences(saved, folder / "dcp" / saved.name, folder / "made" / saved.name)
        judge.row(f"{saved.name}: the catalog of DCP's folder {' '.join(different)}", not different)
        judge.row(f"{saved.name}: the elements of DCP's folder", unishard.diff(saved, folder / "dcp" / saved.name)["equal"])
        judge.row(f"{saved.name}: verify --deep", unishard.verify(saved, deep=True)["ok"])
    for kind in ("tp-4", "fsdp-3", "plain-1"):
        saved = folder / "saved" / f"names-{kind}"
        judge.row(f"{kind}: what unishard.torch saves", unishard.diff(saved, folder / "torch" / kind)["equal"])
        for to in ("deepspeed", "dcp"):
            made = folder / f"made-{to}-{kind}"
            unishard.convert(saved, made, to=to)
            judge.row(f"{kind}: as {to}", unishard.diff(saved, made, states=["fp32", "exp_avg", "exp_avg_sq"])["equal"])
        unishard.reshard(saved, folder / f"resharded-{kind}", world_size=5)
        judge.row(f"{kind}: resharded", unishard.diff(saved, folder / f"resharded-{kind}")["equal"])
        unishard.zero_to_fp32(saved, folder / f"{kind}.safetensors")
        judge.row(f"{kind}: zero_to_fp32", unishard.diff(saved, folder / f"{kind}.safetensors", states=["fp32"])["equal"])


def judge_fixtures(judge, folder):
    """State dicts that earlier versions of torch, and other programs, have saved: those that this DCP loads."""
    import torch.distributed.checkpoint as dcp
    import unishard
    from torch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys
    from unishard.dcp import Reader, Writer
    warnings.simplefilter("ignore")
    logging.disable()
    for metadata in sorted(path for path in FIXTURES.rglob(".metadata") if "hostile" not in path.parts):
        name = "_".join(metadata.parent.relative_to(FIXTURES).parts)
        try:
            state = _load_state_dict_from_keys(storage_reader=dcp.FileSystemReader(metadata.parent))
            dcp.save(state, checkpoint_id=folder / "dcp" / name)
            unishard.convert(folder / "dcp" / name, folder / "made" / name, to="native", allow_missing=True)
        except (Exception, dcp.api.CheckpointException) as error:
            print(f"{name}: skipped: {str(error).strip().splitlines()[-1][:120]}")
            continue
        try:
            dcp.save(state, storage_writer=Writer(folder / "saved" / name))
        except dcp.api.CheckpointException as error:
            judge.row(f"{name}: refused by name", "complex32" in str(error))
            continue
        # A folder with the keys of Megatron-Core is read as its own; a state dict in memory has keys alone.
        if not (metadata.parent / "common.pt").exists():
            different = catalog_differences(folder / "saved" / name, folder / "dcp" / name, folder / "made" / name)
            judge.row(f"{name}: the catalog of DCP's folder {' '.join(different)}", not different)
        again = _load_state_dict_from_keys(storage_reader=Reader(folder / "saved" / name, weights_only=False))  # io.BytesIO
        judge.row(f"{name}: loads as from DCP's own storage", is_equal(
            again, _load_state_dict_from_keys(storage_reader=dcp.FileSystemReader(folder / "dcp" / name))))


def judge_failures(judge, folder):
    import unishard
    finish(launch("that_fails", folder, 2), "the failing saves")
    outcomes = [json.loads((folder / f"outcomes-{rank}").read_text()) for rank in range(2)]
    expected = {"no folder": ["invalid argument"], "bad options": ["invalid argument"], "client state": "invalid argument",
                "one rank": ["RuntimeError"], "another dtype": ["unsupported"], "the same tag again": "nothing",
                "same tag": ["already exists"], "busy": ["busy"], "nothing there": ["AssertionError"], "missing key": ["RuntimeError"],
                "another shape": ["ValueError"]}
    for what, outcome in expected.items():
        judge.row(f"failure, {what}: {outcomes[0].get(what)}", all(one.get(what) == outcome for one in outcomes))
    left = sorted(path.name for path in (folder / "bad").iterdir() if path.name != ".training-lock")
    judge.row(f"failures leave nothing: {left}", left == ["global_step1", "latest"] and
              unishard.verify(folder / "bad", deep=True)["ok"])


def main():
    return run({"layouts": rank_of_layouts, "until_killed": rank_until_killed, "that_fails": rank_that_fails},
               {"layouts": judge_layouts, "fixtures": judge_fixtures, "failures": judge_failures, "kills": judge_kills})


if __name__ == "__main__":
    sys.exit(main())
