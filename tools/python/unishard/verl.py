"""Writes checkpoints from which verl resumes on another number of GPUs.

    python -m unishard.verl checkpoints/my_run resumed/my_run --world-size 4

verl's FSDP workers save one file for each rank (`model_world_size_2_rank_0.pt`, `optim_...`, `extra_state_...`) and load them on the
same number of ranks only. This writes the files of another number from any checkpoint that UniShard reads. Needs torch 2.5 or newer;
no GPU and no verl. What it writes is for FSDP2 with one mesh dimension (`fsdp_size` -1, verl's default).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Optional, Union

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from . import _checkpoint
from ._errors import Error
from ._objects import from_json, no_tensors
from ._optimizer_state import optimizer_states, recorded_scalars

_NEWEST = "latest_checkpointed_iteration.txt"
_STEP = re.compile(r"global_step_(\d+)")
_OF_RANK = re.compile(r".*_world_size_\d+_rank_\d+\.pt")
_Path = Union[str, "os.PathLike[str]"]


def write(source: _Path, folder: _Path, world_size: int, *, device_type: str = "cuda", order: Optional[list[str]] = None) -> list[str]:
    """Writes the files of one model, such as `global_step_5/actor`, for `world_size` ranks into the new folder `folder`.

    Returns a sentence for each thing of the source that is left out: the random states of the ranks, for example.

    source: a checkpoint of any format. device_type: of the ranks' mesh. order: the names of the model's parameters in the order of
    Module.parameters(), by which verl's optimizer numbers them; by default that of the source, whose files verl must have saved.
    What the source lacks is not written: without an optimizer there is no file of one, and without a schedule verl begins its own.
    Other files of the source's folder are copied where verl saved it. The folder has its name once it is complete. Memory: the files of one rank.
    Raises Error, for example "unsupported" for an optimizer with several groups, which verl does not make.
    """
    if world_size < 1:
        raise ValueError("world_size must be at least 1")
    if dist.is_available() and dist.is_initialized():
        raise Error("invalid argument", "the process is a rank of a job", "run `python -m unishard.verl` in a process of its own")
    target = Path(folder)
    with _checkpoint.open(source) as checkpoint, _new_folder(target, Path(checkpoint.path)) as staged:
        contents = _Contents(checkpoint, order)
        for rank in range(world_size):
            with _as_rank(rank, world_size) as mesh:
                files = contents.of_rank(mesh)
                # The DTensors share the mesh; a mesh of devices that are not here cannot be made.
                setattr(mesh, "_device_type" if hasattr(mesh, "_device_type") else "device_type", device_type)
                for kind, content in files.items():
                    _save(content, staged / f"{kind}_world_size_{world_size}_rank_{rank}.pt")
        checkpoint.verify_reads()
        _write_text(staged / "fsdp_config.json", json.dumps({"FSDP_version": 2, "world_size": world_size}, indent=4))
        if _has_rank_files(Path(checkpoint.path)):
            _copy_others(Path(checkpoint.path), staged)
        return [f"left out: {one['name']}: {one['why']}" for one in checkpoint.losses if one["role"] not in ("side_file", "other_model")]


def write_run(source: _Path, folder: _Path, world_size: int, *, device_type: str = "cuda") -> tuple[Path, list[str]]:
    """Writes the newest step of the run `source`, or the step `source`, with all of its models, as the new run `folder`.

    Files of a step that are no model's, such as data.pt, are copied. Returns the folder of the step, and what write() returns.
    """
    step, target = _step_of(Path(source)), Path(folder)
    models = [one for one in sorted(step.iterdir()) if one.is_dir() and _has_rank_files(one)]
    if not models:
        raise Error("not found", f"{step} holds no folder with files like model_world_size_2_rank_0.pt", "name a run or a step of verl")
    notes = []
    with _new_folder(target, step) as staged:
        for entry in sorted(step.iterdir()):
            if entry in models:
                said = write(entry, staged / step.name / entry.name, world_size, device_type=device_type)
                notes += [f"{entry.name}: {one}" for one in said]
            else:
                _copy(entry, staged / step.name)
        _write_text(staged / _NEWEST, step.name.rsplit("_", 1)[1])
    return target / step.name, notes


def _has_rank_files(folder: Path) -> bool:
    return any(folder.glob("model_world_size_*_rank_*.pt"))


def _copy_others(source: Path, folder: Path) -> None:
    """Copies what is no file of a rank and is not written anew."""
    for entry in sorted(source.iterdir()):
        if not _OF_RANK.fullmatch(entry.name) and entry.name != "fsdp_config.json":
            _copy(entry, folder)


def _copy(entry: Path, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    if entry.is_dir():
        shutil.copytree(entry, folder / entry.name)
    else:
        shutil.copy2(entry, folder / entry.name)


class _Contents:
    """What the files of each rank hold."""

    def __init__(self, checkpoint: _checkpoint.Checkpoint, order: Optional[list[str]]) -> None:
        self._checkpoint = checkpoint
        values = [name for name in checkpoint if set(checkpoint.states(name)) & {"fp32", "weights"}]
        self._buffers = [name for name in checkpoint if "buffer" in checkpoint.states(name)]
        self._parameters = self._ordered(values, order)
        known = {checkpoint.aliases.get(name, name) for name in self._parameters}
        self._has_optimizer = bool(checkpoint.groups) or any(optimizer_states(checkpoint, name) for name in checkpoint)
        unread = [one for one in checkpoint.losses if one["role"] in ("weight", "scale", "state", "optimizer")]
        if unread:
            raise Error("unsupported", f"{checkpoint.path}: {len(unread)} parts of the model or the optimizer are not read, first "
                        f"{unread[0]['name']}: {unread[0]['why']}", "`unishard inspect` lists them")
        lost = [name for name in checkpoint if optimizer_states(checkpoint, name) and name not in known]
        if lost:
            raise Error("unsupported", f"{checkpoint.path}: nothing tells of which parameter the states of {lost[0]} are",
                        "save with verl's fsdp_config.json beside the files, or name the order of the parameters")
        self._group = self._only_group() if self._has_optimizer else {}
        # verl's own group lists what its optimizer has, in the order of the numbers.
        self._numbered = self._parameters if order is not None else self._group.pop("params", self._parameters)
        if any(name not in known for name in self._numbered):
            raise Error("unsupported", f"{checkpoint.path}: the optimizer has parameters that the model lacks")

    def of_rank(self, mesh: DeviceMesh) -> dict[str, Any]:
        """Returns the contents of the files of the mesh's own rank, by the first word of their names."""
        tensors = {name: _sharded(self._checkpoint[name], mesh) for name in self._parameters}
        buffers = {name: self._checkpoint[name].torch() for name in self._buffers}
        second = {name: tensors[of] for name, of in self._checkpoint.aliases.items() if of in tensors}
        files: dict[str, Any] = {"model": {**tensors, **buffers, **second}}
        if self._has_optimizer:
            states = {number: self._states(name, mesh) for number, name in enumerate(self._numbered)}
            files["optim"] = {"state": {number: state for number, state in states.items() if state},
                              "param_groups": [{**self._group, "params": list(states)}]}
        files["extra_state"] = {"lr_scheduler": from_json(self._checkpoint.scheduler, no_tensors)}
        return files

    def _ordered(self, names: list[str], order: Optional[list[str]]) -> list[str]:
        path, producer = Path(self._checkpoint.path), self._checkpoint.producer
        is_of_verl = isinstance(producer, dict) and producer.get("library") == "verl"
        if order is None and is_of_verl and _has_rank_files(path):
            return names
        if order is None and _has_rank_files(path):
            raise Error("unsupported", f"{path}: its fsdp_config.json does not say that FSDP2 saved these files; those of FSDP1 are not written")
        if order is None:
            raise Error("unsupported", f"{path} is not saved by verl: nothing tells the order of the model's parameters, by which verl's "
                        "optimizer numbers them", "call unishard.verl.write(..., order=[name for name, _ in model.named_parameters()])")
        wanted = [self._checkpoint.aliases.get(name, name) for name in order]
        if sorted(wanted) != sorted(names):
            differ = sorted(set(wanted) ^ set(names)) or sorted(name for name in wanted if wanted.count(name) > 1)
            raise Error("mismatch", f"{self._checkpoint.path}: the given order and the checkpoint do not have the same parameters: {differ[0]}")
        return wanted

    def _only_group(self) -> dict[str, Any]:
        groups = self._checkpoint.groups if isinstance(self._checkpoint.groups, list) else []
        if len(groups) != 1:
            raise Error("unsupported", f"{self._checkpoint.path}: its optimizer has {len(groups)} groups; verl's has one")
        group: dict[str, Any] = from_json({key: value for key, value in groups[0].items() if key != "param_names"}, no_tensors)
        return {key: tuple(value) if isinstance(value, list) and key != "params" else value for key, value in group.items()}

    def _states(self, name: str, mesh: DeviceMesh) -> dict[str, Any]:
        shape = self._checkpoint[name].shape
        tensors = {state: self._checkpoint[name, state] for state in sorted(optimizer_states(self._checkpoint, name))}
        states: dict[str, Any] = {state: _sharded(one, mesh) if one.shape == shape else one.torch() for state, one in tensors.items()}
        for state, values in recorded_scalars(self._checkpoint).items():
            if name in values:
                states[state] = from_json(values[name], no_tensors)
        if set(states) - {"momentum_buffer", "step"} and "step" not in states:  # SGD counts no steps
            states["step"] = torch.tensor(float(self._checkpoint.step))
        return states


def _sharded(tensor: _checkpoint.Tensor, mesh: DeviceMesh) -> DTensor:
    """Returns the rows of the mesh's own rank as the DTensor that FSDP2 makes of them."""
    if not tensor.shape:
        raise Error("unsupported", f"{tensor.name} [{tensor.state}] has no dimension along which FSDP2 could cut it")
    sizes, offset = compute_local_shape_and_global_offset(torch.Size(tensor.shape), mesh, [Shard(0)])
    rows = slice(offset[0], offset[0] + sizes[0]) if sizes[0] else slice(0, 0)
    whole = torch.empty(tensor.shape, device="meta")
    return DTensor.from_local(tensor.torch(rows), mesh, [Shard(0)], run_check=False, shape=whole.size(), stride=whole.stride())


@contextlib.contextmanager
def _as_rank(rank: int, world_size: int) -> Iterator[DeviceMesh]:
    """Gives the mesh of a job of so many ranks, as `rank` sees it. No other process is asked."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
    try:
        yield init_device_mesh("cpu", (world_size,), mesh_dim_names=("fsdp",))
    finally:
        dist.destroy_process_group()


def _save(content: Any, path: Path) -> None:
    with path.open("wb") as file:
        torch.save(content, file)
        file.flush()
        os.fsync(file.fileno())


def _write_text(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def _new_folder(target: Path, source: Path) -> Iterator[Path]:
    """Gives a folder beside `target`, which gets that name when the block ends, and is removed when it raises.

    A process that is killed leaves it under the name `<target>.partial-...`.
    """
    if target.exists() or target.is_symlink():
        raise Error("already exists", f"{target} exists", "choose a new folder")
    if source.resolve() in target.resolve().parents:
        raise Error("invalid argument", f"{target} lies in {source}, which is read", "choose a folder outside of it")
    target.parent.mkdir(parents=True, exist_ok=True)
    staged = target.parent / f"{target.name}.partial-{uuid.uuid4().hex}"
    staged.mkdir()
    try:
        yield staged
        for path in (staged, *(one for one in staged.rglob("*") if one.is_dir())):
            _sync(path)
        if target.exists():
            raise Error("already exists", f"{target} has appeared meanwhile", "choose a new folder")
        os.rename(staged, target)
        _sync(target.parent)
    except BaseException:
        shutil.rmtree(staged, ignore_errors=True)
        raise


def _sync(folder: Path) -> None:
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _step_of(path: Path) -> Path:
    if _STEP.fullmatch(path.resolve().name):
        return path
    newest = path / _NEWEST
    if not newest.is_file():
        raise Error("not found", f"{path} is no folder global_step_<N> and holds no {_NEWEST}", "name a run or a step of verl")
    step = path / f"global_step_{newest.read_text(encoding='utf-8').strip()}"
    if not step.is_dir():
        raise Error("not found", f"{newest} names a step of which there is no folder {step.name}", "name the folder of one step")
    return step


def main(arguments: Optional[list[str]] = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m unishard.verl", description="Writes a verl run (FSDP2) for another number of ranks.")
    parser.add_argument("source", help="folder of the run, or of one of its steps (global_step_<N>)")
    parser.add_argument("folder", help="new folder, which a new run of verl gets as trainer.default_local_dir")
    parser.add_argument("-w", "--world-size", type=int, required=True, help="number of ranks of each model's workers")
    parser.add_argument("--device-type", default="cuda", help="of the ranks' devices (default: cuda)")
    options = parser.parse_args(arguments)
    if options.world_size < 1:
        parser.error("--world-size must be at least 1")
    try:
        step, notes = write_run(options.source, options.folder, options.world_size, device_type=options.device_type)
    except (Error, OSError, RuntimeError) as error:  # torch.save raises RuntimeError for a full disk
        print(f"unishard.verl: error: {error}", file=sys.stderr)
        return 1
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    print(f"{step}: written for {options.world_size} rank{'s' if options.world_size > 1 else ''}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
