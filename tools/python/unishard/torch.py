"""Saves and loads the state of a PyTorch job as a UniShard checkpoint, whatever its parallelism.

    import unishard.torch

    unishard.torch.save("runs/gpt", model, optimizer, step=step, client_state={"epoch": 3})
    unishard.torch.async_save("runs/gpt", model, optimizer, step=step)      # writes while the training goes on
    loaded = unishard.torch.load("runs/gpt", model, optimizer)      # any world size and mesh; loaded.step, loaded.client_state

Models: plain, DDP, FSDP2, HSDP and tensor-parallel modules, whose parameters are tensors or DTensors. Every rank of the default
process group calls the function; without torch.distributed the job has one rank. Needs torch 2.5 or newer.
"""

from __future__ import annotations

import concurrent.futures
import math
import os
from pathlib import Path
from typing import Any, NamedTuple, Optional, Union

import torch
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_state_dict, set_model_state_dict, set_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.nn.parallel import DistributedDataParallel

from . import _checkpoint
from . import _ranks as ranks
from ._background import AsyncSave
from ._errors import Error
from ._objects import from_json, is_text, no_tensors, refuse_tensor, to_json
from ._optimizer_state import (SCALARS, Names, forget_states, live_state, lost_states, make_states, named_parameters,
                               optimizer_states, recorded_scalars, require_order, unused_states)
from ._parts import Part, is_row_major
from ._runs import note_loaded
from ._saving import Plan, Target, path_of, require_arguments, save_in_background, save_together
from ._shards import Box, first_element, own_share, part_of, run_elements

_PRODUCER = "unishard.torch"
_THREADS = 4
# Settings of a group that a schedule adds, and looks for when it is made for a later step.
_OF_SCHEDULES = frozenset({"initial_lr", "max_lr", "min_lr", "base_momentum", "max_momentum", "swa_lr"})
_PIECE_BYTES = 32 << 20

Key = tuple[str, str]
Holders = dict[Key, dict[Box, list[int]]]


class Loaded(NamedTuple):
    """What load() returns beside the tensors that it fills."""

    step: int
    client_state: dict[str, Any]
    tag: Optional[str]


class _Item(NamedTuple):
    """A tensor of the job: its row of the catalog, and the part that lies on this rank."""

    row: dict[str, Any]
    box: Box
    local: torch.Tensor

    @property
    def key(self) -> Key:
        return self.row["name"], self.row["state"]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.row["shape"])

    @property
    def is_value(self) -> bool:
        return self.row["state"] in _checkpoint._WEIGHT_STATES


class _State(NamedTuple):
    """The state dicts of a job, and their tensors as items."""

    model: dict[str, Any]
    optimizer: dict[str, Any]
    items: list[_Item]
    aliases: list[Key]  # second name, name


def save(folder: Union[str, os.PathLike[str]], model: torch.nn.Module, optimizer: Optional[torch.optim.Optimizer] = None, *,
         step: int, tag: Optional[str] = None, client_state: Optional[dict[str, Any]] = None, keep_last: int = 0,
         compress: str = "none", replace: bool = True, fresh: bool = False, _is_inside: bool = False) -> Path:
    """Saves model and optimizer as the checkpoint `folder`/`tag` and moves `latest`. All ranks call it with the same arguments.

    The folder is that of one run, and the job holds it until it ends. A job that finds checkpoints there at its first save must have
    loaded one of them, or it fails with the code "already exists" and nothing happens to them.
    tag: default global_step<step>. client_state: plain data without tensors. keep_last: complete checkpoints of the folder to keep, 0 for all.
    compress: "none", "zstd" or "auto", with a level as in "zstd:3". replace: may an older UniShard checkpoint of this tag be replaced.
    fresh: save beside the checkpoints of another run: none of them is replaced or removed; `latest` names the new ones.
    Readers see the older checkpoints only until the new one is complete, also after an error or a crash. Every rank writes its own
    elements; ranks that hold the same elements share them out. Of a buffer that several ranks hold, the first rank's is saved.
    Returns the folder of the checkpoint. Raises Error on every rank, for example with the code "busy", "no space" or "already exists".
    """
    return save_together(_planned(folder, model, optimizer, step, tag, client_state, fresh, _is_inside,
                                  {"compression": compress, "replace": replace, "keep_last": keep_last}))


def async_save(folder: Union[str, os.PathLike[str]], model: torch.nn.Module, optimizer: Optional[torch.optim.Optimizer] = None, *,
               step: int, tag: Optional[str] = None, client_state: Optional[dict[str, Any]] = None, keep_last: int = 0,
               compress: str = "none", replace: bool = True, fresh: bool = False) -> AsyncSave:
    """Saves as save() does, and returns once the state is copied; a thread writes and commits the copy. All ranks call it.

    The model, the optimizer and client_state may change as soon as it has returned. The result of the handle is the folder of the
    checkpoint: AsyncSave.result() waits for it and raises the Error of the writing, on every rank. An Error before the writing, for example
    "busy" or "already exists", is raised here. An error of which no caller of result() knows is raised by the next save(), async_save() or
    load() of this package in the process, which does nothing else then, or is printed at the end of the process.

    Order: the saves of a process take turns. save(), async_save() and load() wait until the save before is complete, so `latest` never
    goes back; AsyncSave.waited says how long an async_save() has waited.
    Memory: one copy of what the rank writes, in memory of the host that is kept for the next save. Copies from CUDA devices need it
    pinned.
    Communication: with torch.distributed, the first call makes a process group with the backend gloo. The thread uses that one alone, so
    the training may communicate meanwhile, and destroy_process_group() may be called.
    The end of the process: the interpreter completes the save before it ends, also after Ctrl-C; a second Ctrl-C gives it up. A process
    that is killed leaves the checkpoints as they were. A process that is forked meanwhile saves nothing.
    Thread safety: one thread of a process calls save(), async_save() and load(); any thread may use the handle.
    """
    return save_in_background(_planned(folder, model, optimizer, step, tag, client_state, fresh, False,
                                       {"compression": compress, "replace": replace, "keep_last": keep_last}))


def load(path: Union[str, os.PathLike[str]], model: torch.nn.Module, optimizer: Optional[torch.optim.Optimizer] = None, *,
         tag: Optional[str] = None, strict: bool = True, cast: bool = False) -> Loaded:
    """Fills model and optimizer from a checkpoint of any format that unishard.open() takes. All ranks call it.

    Each rank reads the elements that it holds, whatever world size and mesh saved them. The optimizer must have the same parameters in
    the same groups; their settings (lr, betas) become those of the checkpoint, and a parameter has states exactly if it has some there.
    strict: a parameter that only the model or only the checkpoint has is an error. cast: convert weights of another dtype.
    Raises Error on every rank; "mismatch" names the tensors that do not fit, before anything is changed. After an error of the data
    ("corrupt", "input/output") some tensors are the checkpoint's and some are not: load a whole one before the job goes on.
    """
    checkpoint = ranks.open_together(os.fspath(path), tag)
    job = ranks.together("describing the state", lambda: _Filled(checkpoint, model, optimizer))
    try:
        ranks.together("comparing the states", lambda: job.match(strict, cast))
        ranks.together("reading the checkpoint", job.fill)
        client_state = ranks.together("reading the client state", lambda: from_json(
            checkpoint.client_state, lambda name: checkpoint[name, "extra"].torch()))
        ranks.verify_reads(checkpoint)
    except BaseException:
        job.close()
        raise
    job.set()
    client_state = client_state if isinstance(client_state, dict) else {}
    client_state.pop(SCALARS, None)
    note_loaded(checkpoint)
    checkpoint.close()
    return Loaded(checkpoint.step, client_state, checkpoint.tag)


# The state of a job as tensors with names.

def _described(model: torch.nn.Module, optimizer: Optional[torch.optim.Optimizer]) -> _State:
    values: dict[str, Any]
    states: Any = {"state": {}, "param_groups": []}
    if optimizer is not None and _is_fsdp1(model):
        values, states = get_state_dict(model, optimizer)
    else:
        values = get_model_state_dict(model)
        if optimizer is not None:
            states = live_state(optimizer, _named(model, optimizer))
    groups = {name: number for number, group in enumerate(states["param_groups"]) for name in group["params"]}
    unknown = next((name for name in groups if name not in values), None)
    if unknown is not None:
        raise Error("unsupported", f"{unknown}: get_model_state_dict() has no such name, because modules are wrapped in an order that it does "
                    "not know, or have the name of a wrapper's module", "rename the module, or wrap in another order: torch.compile() last")
    buffers = {_plain_name(model, name) for name, _ in model.named_buffers(remove_duplicate=False)}
    frozen = {_plain_name(model, name) for name, one in model.named_parameters(remove_duplicate=False) if not one.requires_grad}
    targets = _targets({name: value for name, value in values.items() if name not in buffers}, groups)
    items = []
    for name, value in values.items():
        if targets.get(name, name) != name:
            continue
        if not isinstance(value, torch.Tensor):
            raise Error("unsupported", f"{name} of the model's state is no tensor but {type(value).__name__}")
        trained = name not in buffers and name not in frozen
        role = "buffer" if name in buffers else "fp32" if trained and value.dtype == torch.float32 else "weights"
        items.append(_item(name, role, value, group=groups.get(name, -1), frozen=name in frozen and name not in buffers))
        for state, moment in states["state"].get(name, {}).items():
            if not _is_scalar(state, moment, value):
                items.append(_item(name, state, moment, group=groups.get(name, -1)))
    return _State(values, states, items, [(name, target) for name, target in targets.items() if name != target])


def _named(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Names:
    return named_parameters(model, optimizer, lambda name: _plain_name(model, name))


def _is_fsdp1(model: torch.nn.Module) -> bool:
    """Returns true where only torch itself knows which elements of which parameter the optimizer has."""
    return any(isinstance(one, FullyShardedDataParallel) for one in model.modules())


def _plain_name(model: torch.nn.Module, name: str) -> str:
    """Returns the name without the parts that wrappers insert, as torch.distributed.checkpoint names parameters."""
    if isinstance(model, DistributedDataParallel):
        name = name.removeprefix("module.")
    for part in ("_orig_mod.", "_checkpoint_wrapped_module.", "_fsdp_wrapped_module."):
        name = name.replace(part, "")
    return name


def _targets(values: dict[str, Any], groups: dict[str, int]) -> dict[str, str]:
    """Returns for each name the one under which its memory is saved: of tied weights, the name that the optimizer knows, or the first."""
    named: dict[Any, list[str]] = {}
    for name, value in values.items():
        place: Any = name
        if isinstance(value, torch.Tensor) and _local(value).numel() > 0:
            local = _local(value)
            place = local.data_ptr(), tuple(value.shape), local.dtype, local.stride(), local.is_conj(), local.is_neg()
        named.setdefault(place, []).append(name)
    return {name: next((one for one in names if one in groups), names[0]) for names in named.values() for name in names}


def _is_scalar(state: str, value: Any, parameter: torch.Tensor) -> bool:
    """Returns true for a state of the optimizer that is no tensor, counts steps, or is one number that the ranks hold together."""
    return not isinstance(value, torch.Tensor) or value.ndim == 0 and (state == "step" or isinstance(value, DTensor) and parameter.ndim > 0)


def _local(value: torch.Tensor) -> torch.Tensor:
    return (value.to_local() if isinstance(value, DTensor) else value).detach()


def _item(name: str, state: str, value: torch.Tensor, *, group: int, frozen: bool = False) -> _Item:
    local, shape = _local(value), tuple(value.shape)
    offset, sizes = (0,) * len(shape), shape
    if isinstance(value, DTensor):
        if any(placement.is_partial() for placement in value.placements):
            raise Error("unsupported", f"{name} [{state}] is a partial sum ({value.placements})")
        sizes, offset = compute_local_shape_and_global_offset(value.shape, value.device_mesh, value.placements)
        if value.device_mesh.get_coordinate() is None:  # a rank outside of the tensor's mesh
            sizes = (0,) * len(shape)
        if tuple(local.shape) != tuple(sizes) and local.numel() > 0:
            raise Error("internal", f"{name} [{state}]: the local part is {tuple(local.shape)}, not {tuple(sizes)}")
    row = {"name": name, "state": state, "dtype": str(value.dtype).removeprefix("torch."), "shape": list(shape), "group": group,
           "frozen": frozen}
    return _Item(row, Box(tuple(offset), tuple(sizes)), local)


def _scalars(state_dicts: _State) -> dict[str, dict[str, Union[int, float]]]:
    """Returns the states of the optimizer that are one number, by state and parameter."""
    scalars: dict[str, dict[str, Union[int, float]]] = {}
    for name, values in state_dicts.optimizer["state"].items():
        for state, value in values.items():
            if _is_scalar(state, value, state_dicts.model[name]):
                number = _local(value).item() if isinstance(value, torch.Tensor) else value
                scalars.setdefault(state, {})[name] = _plain(number, f"{name} [{state}]")
    return scalars


def _plain(value: Any, what: str) -> Any:
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return value.item()
    if isinstance(value, (list, tuple)):
        return [_plain(one, what) for one in value]
    if value is None or isinstance(value, (bool, int, str)) or isinstance(value, float) and math.isfinite(value):
        return value
    shown = f"a tensor of size {tuple(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)[:200]
    raise Error("unsupported", f"{what} of the optimizer is {shown}, and not a finite number or text")


def _group(number: int, group: dict[str, Any], rows: list[dict[str, Any]], targets: dict[str, str]) -> dict[str, Any]:
    """Returns the settings, and the parameters in the optimizer's order, by which files of torch number them.

    Those of ranks that train another part of the model follow in the order of `rows`, all tensors.
    """
    settings = {key: _plain(value, f"param_groups.{key}") for key, value in group.items() if key != "params"}
    names = [targets.get(name, name) for name in group["params"]]
    names += [row["name"] for row in rows if row["group"] == number]
    return {**settings, "params": list(dict.fromkeys(names))}


# Saving.

def _planned(folder: Union[str, os.PathLike[str]], model: torch.nn.Module, optimizer: Optional[torch.optim.Optimizer], step: int,
             tag: Optional[str], client_state: Optional[dict[str, Any]], fresh: bool, is_inside: bool, options: dict[str, Any]) -> Plan:
    """Describes and compares the states of all ranks. The plan has the live tensors, and nothing else that changes."""
    require_arguments(step=step, keep_last=options["keep_last"], tag=tag, compress=options["compression"], client_state=client_state)
    path, tag = path_of(folder), tag or f"global_step{step}"
    state = ranks.together("describing the state", lambda: _described(model, optimizer))
    arguments = ranks.gathered((step, os.path.join(path, tag)))
    described = ranks.gathered([(item.row, item.box) for item in state.items])

    def catalog_of() -> tuple[dict[str, Any], Holders]:
        for rank, (its_step, its_place) in enumerate(arguments):
            if (its_step, its_place) != arguments[0]:
                raise Error("mismatch", f"rank {rank} saves step {its_step} as {its_place}, and rank 0 step {arguments[0][0]} as "
                            f"{arguments[0][1]}", "pass the same arguments on all ranks")
        rows, holders = _merged(described)
        scalars = _scalars(state)
        return {"tensors": rows, "aliases": state.aliases, "step": step, "world_size": ranks.world_size(),
                "stage": 3 if any(len(boxes) > 1 for boxes in holders.values()) else 0,
                "groups": [_group(number, group, rows, dict(state.aliases))
                           for number, group in enumerate(state.optimizer["param_groups"])] or None,
                "client_state": {**_client_json(client_state or {}), **({SCALARS: scalars} if scalars else {})},
                "producer": {"name": _PRODUCER, "torch": torch.__version__}}, holders

    catalog, holders = ranks.together("comparing the states of the ranks", catalog_of)
    return Plan(Target(path, tag, fresh, is_inside), catalog, lambda: _own_parts(catalog, holders, state.items), options)


def _client_json(client_state: dict[str, Any]) -> dict[str, Any]:
    """Returns the user's values as JSON of a catalog, from which from_json() makes them again."""
    for key in client_state:
        if type(key) is not str or key.startswith("$") or not is_text(key):
            raise Error("invalid argument", f"client_state has the key {key!r}", "its own keys are texts that do not begin with $; "
                        "dicts in it may have other keys")
    return {key: to_json(value, f"client_state.{key}", refuse_tensor) for key, value in client_state.items()}


def _merged(described: list[list[tuple[dict[str, Any], Box]]]) -> tuple[list[dict[str, Any]], Holders]:
    """Returns the rows of all ranks' tensors, and for each tensor which ranks hold which box, and write it.

    Of a buffer that several ranks hold, the first one's is written, as DDP broadcasts it: those of BatchNorm differ between ranks.
    """
    rows: dict[Key, dict[str, Any]] = {}
    holders: Holders = {}
    for rank, items in enumerate(described):
        for row, box in items:
            key = row["name"], row["state"]
            if rows.setdefault(key, row) != row:
                raise Error("mismatch", f"rank {rank} has {row}, and another rank has {rows[key]}")
            boxes = holders.setdefault(key, {})
            if box.elements > 0 and (row["state"] != "buffer" or box not in boxes):
                boxes.setdefault(box, []).append(rank)
    return list(rows.values()), holders


def _own_parts(catalog: dict[str, Any], holders: Holders, items: list[_Item]) -> list[Part]:
    """Returns what this rank writes, sorted by tensor and first element."""
    numbers = {(row["name"], row["state"]): number for number, row in enumerate(catalog["tensors"])}
    parts = []
    for item in sorted(items, key=lambda one: numbers[one.key]):
        if item.box.elements == 0 or ranks.rank() not in holders[item.key][item.box]:
            continue
        number = numbers[item.key]
        first, last = own_share(item.box, item.shape, holders[item.key][item.box], ranks.rank(), number)
        if first == last:
            continue
        if run_elements(item.box, item.shape) == item.box.elements:
            begin = first_element(item.box, item.shape)
            parts.append(Part((number, begin + first, begin + last), item.local, first))
        else:
            parts.append(Part((number, *part_of(item.box, first, last)), item.local, first))
    return parts


# Loading.

class _Filled:
    """A job that is filled from a checkpoint."""

    def __init__(self, checkpoint: _checkpoint.Checkpoint, model: torch.nn.Module, optimizer: Optional[torch.optim.Optimizer]) -> None:
        self._checkpoint, self._model, self._optimizer = checkpoint, model, optimizer
        self._recorded = recorded_scalars(checkpoint)
        self._is_live = optimizer is not None and not _is_fsdp1(model)  # the state dict has the optimizer's own tensors
        self._groups = [dict(group) for group in optimizer.param_groups] if optimizer is not None else []
        self._replaced: list[tuple[torch.nn.Parameter, Any]] = []
        self._stateless: list[torch.nn.Parameter] = []
        try:
            having = self._make_states() if optimizer is not None and self._is_live else None
            self._state = _described(model, optimizer)
            if having is not None:
                self._leave_out_states({name for name in self._state.optimizer["state"] if name not in having})
        except BaseException:
            self.close()
            raise

    def _make_states(self) -> set[str]:
        """Gives the optimizer the settings of the checkpoint and the states that go with them; returns the parameters that have some."""
        assert self._optimizer is not None
        names = _named(self._model, self._optimizer)
        settings = _settings(self._checkpoint, live_state(self._optimizer, names)["param_groups"])
        for group, values in zip(self._optimizer.param_groups, settings):
            group.update(values)
        having = {name for name in names if self._has_states(name)}
        if not having and (self._checkpoint.step > 0 and not self._is_of_such_a_job() or not self._checkpoint.groups):
            having = set(names)  # what the optimizer needs is missing in the checkpoint
        for name in having:
            state = self._optimizer.state.get(names[name])
            tensors = {key for key, value in (state or {}).items() if not _is_scalar(key, value, names[name])}
            if not state or tensors != optimizer_states(self._checkpoint, name):
                self._replaced.append((names[name], state))
        forget_states(self._optimizer, [one for one, _ in self._replaced])
        make_states(self._optimizer, [one for one, _ in self._replaced])
        self._stateless = [one for name, one in names.items() if name not in having]
        return having

    def _is_from_save(self) -> bool:
        """Returns whether save() has written the checkpoint, with the groups of an optimizer."""
        producer = self._checkpoint.producer
        return isinstance(producer, dict) and producer.get("name") == _PRODUCER and isinstance(self._checkpoint.groups, list)

    def _is_of_such_a_job(self) -> bool:
        """Returns whether save() has written the checkpoint, with all states that there were, for an optimizer with the same settings."""
        groups = self._checkpoint.groups
        return self._is_from_save() and len(groups) == len(self._groups) and all(
            set(now) - {"params", "initial_lr"} <= set(saved) for now, saved in zip(self._groups, groups))

    def _leave_out_states(self, names: set[str]) -> None:
        for name in names:
            del self._state.optimizer["state"][name]
        items = [one for one in self._state.items if one.is_value or one.row["name"] not in names]
        self._state = self._state._replace(items=items)

    def close(self) -> None:
        """Gives the optimizer of a job that was not filled what it had."""
        if self._optimizer is not None:
            for group, kept in zip(self._optimizer.param_groups, self._groups):
                group.update(kept)
            for parameter, state in self._replaced:
                forget_states(self._optimizer, [parameter])
                if state:
                    self._optimizer.state[parameter] = state

    def _has_states(self, name: str) -> bool:
        return bool(optimizer_states(self._checkpoint, name)) or any(values.get(name) is not None for values in self._recorded.values())

    def match(self, strict: bool, cast: bool) -> None:
        """Raises Error when the checkpoint does not fit."""
        require_order(self._checkpoint, [group["params"] for group in self._state.optimizer["param_groups"]])
        self._numbers, problems = self._scalars()
        if strict and self._optimizer is not None:
            problems += unused_states(self._checkpoint, self._state.model)
            problems += lost_states(self._checkpoint, self._state.optimizer["state"], self._state.model)
            problems += self._new_parameters()
        tensors = [item for item in self._state.items if self._number(*item.key) is None]
        self._pairs = _matched(self._checkpoint, self._state._replace(items=tensors), strict, cast, problems)
        self._settings = _settings(self._checkpoint, self._state.optimizer["param_groups"])

    def _new_parameters(self) -> list[str]:
        """Returns a sentence for each parameter that was in no group of the optimizer that save() has saved."""
        if not self._is_from_save():
            return []
        saved = {name for group in self._checkpoint.groups for name in group.get("params", ())}
        now = [self._checkpoint.aliases.get(name, name) for group in self._state.optimizer["param_groups"] for name in group["params"]]
        return [f"{name} is in no parameter group of the checkpoint" for name in now if saved and name not in saved]

    def fill(self) -> None:
        with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
            for done in [pool.submit(_read, tensor, item.box, item.local) for tensor, item in self._pairs]:
                done.result()
        for group, values in zip(self._state.optimizer["param_groups"], self._settings):
            group.update(values)
        for values, state, number in self._numbers:
            value = values[state]
            if isinstance(value, torch.Tensor):
                _local(value).fill_(number)
            else:
                values[state] = _like(value, from_json(number, no_tensors))

    def set(self) -> None:
        """Gives model and optimizer what is not filled in place. All ranks call it."""
        if self._optimizer is None or self._is_live:
            set_model_state_dict(self._model, self._state.model)
        else:
            set_state_dict(self._model, self._optimizer, model_state_dict=self._state.model, optim_state_dict=self._state.optimizer)
        if self._optimizer is not None:
            forget_states(self._optimizer, self._stateless)

    def _number(self, name: str, state: str) -> Any:
        """Returns a state that the checkpoint holds as a number; None for none."""
        return self._recorded.get(state, {}).get(name)

    def _scalars(self) -> tuple[list[tuple[dict[str, Any], str, Any]], list[str]]:
        """Returns the states that are no tensors, each with its dict and the value that it gets, and what is missing."""
        numbers: list[tuple[dict[str, Any], str, Any]] = []
        problems = []
        for name, values in self._state.optimizer["state"].items():
            for state, value in values.items():
                number = self._number(name, state)
                if number is None and not _is_scalar(state, value, self._state.model[name]):
                    continue
                if number is None and state == "step":
                    number = self._checkpoint.step if self._has_states(name) else 0
                if number is not None:
                    numbers.append((values, state, number))
                elif value is not None:
                    problems.append(f"{name} [{state}] is not in the checkpoint")
        return numbers, problems


def _matched(checkpoint: _checkpoint.Checkpoint, state: _State, strict: bool, cast: bool,
             problems: list[str]) -> list[tuple[_checkpoint.Tensor, _Item]]:
    """Returns the tensor of the checkpoint for each item. Raises Error for what does not fit, and for `problems`."""
    pairs = []
    stored = {name for name in checkpoint.names() if set(checkpoint.states(name)) & set(_checkpoint._WEIGHT_STATES)}
    known = set()
    for item in state.items:
        name, role = item.key
        known.add(checkpoint.aliases.get(name, name))
        has = checkpoint.states(name) if name in checkpoint else []
        wanted = [one for one in _checkpoint._WEIGHT_STATES if one in has] if item.is_value else [role] if role in has else []
        tensors = [checkpoint[name, one] for one in wanted]
        exact = [one for one in tensors if one.dtype == item.row["dtype"]]
        if not tensors:
            if strict or not item.is_value:
                problems.append(f"{name} [{role}] is not in the checkpoint")
            continue
        tensor = (exact or tensors)[0]
        if tensor.shape != item.shape:
            problems.append(f"{name} [{role}] has the shape {item.shape}, and {tensor.shape} in the checkpoint")
        elif not exact and not cast:
            problems.append(f"{name} [{role}] is {item.row['dtype']}, and {tensor.dtype} in the checkpoint (cast=True converts)")
        else:
            pairs.append((tensor, item))
    if strict:
        problems += [f"{name} is only in the checkpoint" for name in sorted(stored - known)]
    if problems:
        more = f"\n  and {len(problems) - 10} more" if len(problems) > 10 else ""
        raise Error("mismatch", f"{checkpoint.path} does not fit:\n  " + "\n  ".join(problems[:10]) + more)
    return pairs


def _read(tensor: _checkpoint.Tensor, box: Box, local: torch.Tensor) -> None:
    """Reads a box of the tensor into `local`, in place; directly where `local` lies row-major in this processor's memory."""
    if box.elements == 0:
        return
    if not tensor.shape:
        local.copy_(tensor.torch())
    elif local.device.type == "cpu" and is_row_major(local) and str(local.dtype) == "torch." + tensor.dtype:
        tensor._read_box_into(*box, local.data_ptr())
    else:
        rows = max(1, _PIECE_BYTES * tensor.size // max(1, tensor.nbytes) // max(1, box.elements // box.sizes[0]))
        for low in range(0, box.sizes[0], rows):
            part = Box((box.offset[0] + low, *box.offset[1:]), (min(rows, box.sizes[0] - low), *box.sizes[1:]))
            values = torch.empty(part.sizes, dtype=getattr(torch, tensor.dtype))
            tensor._read_box_into(*part, values.data_ptr())
            local[low:low + part.sizes[0]].copy_(values)


def _settings(checkpoint: _checkpoint.Checkpoint, groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the checkpoint's settings for each group of the optimizer, in the types that the optimizer has now."""
    saved = checkpoint.groups if isinstance(checkpoint.groups, list) else []
    settings = []
    for number, group in enumerate(groups):
        theirs = {checkpoint[name].group for name in group["params"] if name in checkpoint}
        if len(theirs) > 1:
            raise Error("mismatch", f"the parameters of group {number} are in the groups {sorted(map(str, theirs))} of the checkpoint")
        index = next(iter(theirs), None)
        if not group["params"] and len(saved) == len(groups):
            index = number
        stored = saved[index] if index is not None and saved else {}
        settings.append({key: _like(group.get(key), value) for key, value in stored.items()
                         if key != "params" and (key in group or key in _OF_SCHEDULES)})
    return settings


def _like(present: Any, value: Any) -> Any:
    if isinstance(present, torch.Tensor):
        return torch.full_like(present, value)
    if present is not None and isinstance(present, (tuple, list)) != isinstance(value, list):
        return present  # a setting of another optimizer's, such as eps of Adafactor
    return tuple(value) if isinstance(present, tuple) else value
