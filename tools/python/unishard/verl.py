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
from ._optimizer_state import optimizer_states

_NEWEST = "latest_checkpointed_iteration.txt"
_STEP = re.compile(r"global_step_(\d+)")
_SCALARS = "optimizer_scalars"  # key of client_state: {state: {name: value}}, states that are one number
_Path = Union[str, "os.PathLike[str]"]


def write(source: _Path, folder: _Path, world_size: int, *, device_type: str = "cuda", order: Optional[list[str]] = None) -> None:
    """Writes the files of one model, such as `global_step_5/actor`, for `world_size` ranks into the new folder `folder`.

    source: a checkpoint of any format. device_type: of the ranks' mesh. order: the names of the model's parameters in the order of
    Module.parameters(), by which verl's optimizer numbers them; by default that of a checkpoint that verl saved.
    What the source lacks is not written: without states there is no optimizer file, and without a schedule verl begins its own.
    The folder has its name once it is complete. Memory: the files of one rank.
    Raises Error, for example "unsupported" for an optimizer with several groups, which verl does not make.
    """
    if world_size < 1:
        raise ValueError("world_size must be at least 1")
    if dist.is_available() and dist.is_initialized():
        raise Error("invalid argument", "the process is a rank of a job", "run `python -m unishard.verl` in a process of its own")
    target = Path(folder)
    with _checkpoint.open(source) as checkpoint, _new_folder(target) as staged:
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
        side = Path(checkpoint.path) / "huggingface"
        if side.is_dir():
            shutil.copytree(side, staged / "huggingface")


def write_run(source: _Path, folder: _Path, world_size: int, *, device_type: str = "cuda") -> Path:
    """Writes the newest step of the run `source`, or the step `source`, with all of its models, into the run `folder`.

    Files of a step that are no model's, such as data.pt, are copied. Returns the folder of the new step, which must not exist.
    """
    step = _step_of(Path(source))
    models = [one for one in sorted(step.iterdir()) if one.is_dir() and any(one.glob("model_world_size_*_rank_*.pt"))]
    if not models:
        raise Error("not found", f"{step} holds no folder with files like model_world_size_2_rank_0.pt", "name a run or a step of verl")
    run, target = Path(folder), Path(folder) / step.name
    with _new_folder(target) as staged:
        for entry in sorted(step.iterdir()):
            if entry in models:
                write(entry, staged / entry.name, world_size, device_type=device_type)
            elif entry.is_dir():
                shutil.copytree(entry, staged / entry.name)
            else:
                shutil.copy2(entry, staged / entry.name)
    _write_text(run / f"{_NEWEST}.writing", step.name.rsplit("_", 1)[1])
    os.replace(run / f"{_NEWEST}.writing", run / _NEWEST)
    return target


class _Contents:
    """What the files of each rank hold."""

    def __init__(self, checkpoint: _checkpoint.Checkpoint, order: Optional[list[str]]) -> None:
        self._checkpoint = checkpoint
        values = [name for name in checkpoint if set(checkpoint.states(name)) & {"fp32", "weights"}]
        self._buffers = [name for name in checkpoint if "buffer" in checkpoint.states(name)]
        self._parameters = self._ordered(values, order)
        known = {checkpoint.aliases.get(name, name) for name in self._parameters}
        self._has_states = any(optimizer_states(checkpoint, name) for name in checkpoint)
        lost = [name for name in checkpoint if optimizer_states(checkpoint, name) and name not in known]
        if lost:
            raise Error("unsupported", f"{checkpoint.path}: nothing tells of which parameter the states of {lost[0]} are",
                        "save with verl's fsdp_config.json beside the files, or name the order of the parameters")
        self._group = self._only_group() if self._has_states else {}

    def of_rank(self, mesh: DeviceMesh) -> dict[str, Any]:
        """Returns the contents of the files of the mesh's own rank, by the first word of their names."""
        tensors = {name: _sharded(self._checkpoint[name], mesh) for name in self._parameters}
        buffers = {name: self._checkpoint[name].torch() for name in self._buffers}
        second = {name: tensors[of] for name, of in self._checkpoint.aliases.items() if of in tensors}
        files: dict[str, Any] = {"model": {**tensors, **buffers, **second}}
        if self._has_states:
            states = {number: self._states(name, mesh) for number, name in enumerate(self._parameters)}
            files["optim"] = {"state": {number: state for number, state in states.items() if state},
                              "param_groups": [{**self._group, "params": list(states)}]}
        files["extra_state"] = {"lr_scheduler": from_json(self._checkpoint.scheduler, no_tensors)}
        return files

    def _ordered(self, names: list[str], order: Optional[list[str]]) -> list[str]:
        producer = self._checkpoint.producer if isinstance(self._checkpoint.producer, dict) else {}
        if order is None and producer.get("library") == "verl":
            return names
        if order is None:
            raise Error("unsupported", f"{self._checkpoint.path} is not of verl: nothing tells the order of the model's parameters, by which "
                        "verl's optimizer numbers them", "give it: order=[name for name, _ in model.named_parameters()]")
        wanted = [self._checkpoint.aliases.get(name, name) for name in order]
        if sorted(wanted) != sorted(names):
            differ = sorted(set(wanted) ^ set(names)) or sorted(name for name in wanted if wanted.count(name) > 1)
            raise Error("mismatch", f"{self._checkpoint.path}: the given order and the checkpoint do not have the same parameters: {differ[0]}")
        return wanted

    def _only_group(self) -> dict[str, Any]:
        groups = self._checkpoint.groups if isinstance(self._checkpoint.groups, list) else []
        if len(groups) != 1:
            raise Error("unsupported", f"{self._checkpoint.path}: its optimizer has {len(groups)} groups; verl's has one")
        group: dict[str, Any] = from_json({key: value for key, value in groups[0].items() if key not in ("params", "param_names")}, no_tensors)
        return {key: tuple(value) if isinstance(value, list) else value for key, value in group.items()}

    def _states(self, name: str, mesh: DeviceMesh) -> dict[str, Any]:
        shape = self._checkpoint[name].shape
        tensors = {state: self._checkpoint[name, state] for state in sorted(optimizer_states(self._checkpoint, name))}
        states: dict[str, Any] = {state: _sharded(one, mesh) if one.shape == shape else one.torch() for state, one in tensors.items()}
        scalars = self._checkpoint.client_state if isinstance(self._checkpoint.client_state, dict) else {}
        for state, values in scalars.get(_SCALARS, {}).items():
            if name in values:
                states[state] = from_json(values[name], no_tensors)
        if states and "step" not in states:
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
def _new_folder(target: Path) -> Iterator[Path]:
    """Gives a folder beside `target`, which gets that name when the block ends, and is removed when it raises."""
    if target.exists() or target.is_symlink():
        raise Error("already exists", f"{target} exists", "choose a new folder")
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
    parser.add_argument("folder", help="new folder of the run, to be named as verl's trainer.default_local_dir")
    parser.add_argument("-w", "--world-size", type=int, required=True, help="number of ranks of each model's workers")
    parser.add_argument("--device-type", default="cuda", help="of the ranks' devices (default: cuda)")
    options = parser.parse_args(arguments)
    if options.world_size < 1:
        parser.error("--world-size must be at least 1")
    try:
        step = write_run(options.source, options.folder, options.world_size, device_type=options.device_type)
    except (Error, OSError) as error:
        print(f"unishard.verl: error: {error}", file=sys.stderr)
        return 1
    print(f"{step}: written for {options.world_size} ranks")
    return 0


if __name__ == "__main__":
    sys.exit(main())
