"""Saves and loads a DeepSpeed engine as a UniShard checkpoint, whatever its ZeRO stage and number of ranks.

    import unishard.deepspeed

    unishard.deepspeed.save(engine, "runs/gpt", client_state={"epoch": 3})
    unishard.deepspeed.async_save(engine, "runs/gpt")                     # writes while the training goes on
    path, client_state = unishard.deepspeed.load(engine, "runs/gpt")      # any world size and stage

Each rank writes its own partitions as they lie in memory, and reads the ones that it has when it loads. Stages 0 to 3; fp32, bf16 and
fp16; optimizer and parameters offloaded to the CPU. Refused by name: pipelines, experts, tensor parallelism and NVMe offload.
"""

from __future__ import annotations

import concurrent.futures
import os
import warnings
from pathlib import Path
from typing import Any, NamedTuple, Optional, Union

import torch

from . import _checkpoint
from . import _ranks as ranks
from ._background import AsyncSave
from ._deepspeed_engine import LiveEngine, Span, version
from ._errors import Error
from ._objects import from_json, no_tensors, refuse_tensor, simple_json, to_json
from ._optimizer_state import SCALARS, recorded_scalars, require_order, unused_states
from ._parts import Part, flat_elements, is_row_major
from ._runs import note_loaded
from ._saving import Plan, Target, path_of, require_arguments, save_in_background, save_together
from ._shards import Box, own_share

_EXTRA = "extra"
_THREADS = 4
_PIECE_BYTES = 32 << 20

Path_ = Union[str, os.PathLike[str]]
Key = tuple[str, str]
Row = dict[str, Any]


class _Own(NamedTuple):
    """Elements [begin, end) of a tensor of the catalog, which begin at element `at` of `local`."""

    key: Key
    begin: int
    end: int
    local: torch.Tensor
    at: int


def save(engine: Any, folder: Path_, tag: Optional[str] = None, client_state: Optional[dict[str, Any]] = None, *, keep_last: int = 0,
         compress: str = "none", base: Optional[Path_] = None, replace: bool = True, save_latest: bool = True,
         exclude_frozen_parameters: bool = False, fresh: bool = False, _is_inside: bool = False) -> Path:
    """Saves the engine as the checkpoint `folder`/`tag` and moves `latest`. All ranks call it, between two steps of the optimizer.

    What DeepSpeed's save_checkpoint() keeps is kept: fp32 masters, the optimizer's states and settings, 16-bit and frozen weights,
    buffers, lr_scheduler, loss scaler and counters. Gradients that are accumulated but not yet applied are not kept, as there.
    The folder is that of one run, and the job holds it until it ends. A job that finds checkpoints there at its first save must have
    loaded one of them, or it fails with the code "already exists" and nothing happens to them. fresh: save beside the checkpoints of
    another run: none of them is replaced or removed; `latest` names the new ones.
    tag: default global_step<N>. client_state: plain data and tensors; that of rank 0 counts. keep_last: complete checkpoints to keep,
    0 for all. compress: "none", "zstd" or "auto", with a level as in "zstd:3". base: the folder of an older tag whose equal chunks are
    shared and not written. replace: may an older UniShard checkpoint of this tag be replaced. save_latest: move `latest`.
    Readers see the older checkpoints only until the new one is complete, also after an error or a crash.
    Returns the folder of the checkpoint. Raises Error on every rank, for example with the code "busy", "no space" or "unsupported".
    """
    options = _options(keep_last, compress, base, replace, save_latest)
    return save_together(_planned(engine, folder, tag, client_state, exclude_frozen_parameters, fresh, _is_inside, options))


def async_save(engine: Any, folder: Path_, tag: Optional[str] = None, client_state: Optional[dict[str, Any]] = None, *,
               keep_last: int = 0, compress: str = "none", base: Optional[Path_] = None, replace: bool = True, save_latest: bool = True,
               exclude_frozen_parameters: bool = False, fresh: bool = False) -> AsyncSave:
    """Saves as save() does, and returns once the state is copied; a thread writes and commits the copy. All ranks call it.

    The engine and client_state may change as soon as it has returned. unishard.torch.async_save() says what holds of the handle, errors,
    order, memory, communication, the end of the process and threads.
    """
    options = _options(keep_last, compress, base, replace, save_latest)
    return save_in_background(_planned(engine, folder, tag, client_state, exclude_frozen_parameters, fresh, False, options))


def load(engine: Any, folder: Path_, tag: Optional[str] = None, *, load_optimizer_states: bool = True,
         load_lr_scheduler_states: bool = True, load_module_only: bool = False, strict: bool = True) -> tuple[str, dict[str, Any]]:
    """Fills the engine from a checkpoint of any format that unishard.open() takes. All ranks call it.

    Each rank reads the elements that it holds, whatever world size, stage and precision saved them. Floating-point numbers of another
    precision are converted; masters without an fp32 state begin with the checkpoint's weights. Parameters whose optimizer states the
    checkpoint lacks start afresh. A loss scaler of another kind and gradient_clipping stay as the engine's configuration has them.
    strict: a parameter that only the engine or only the checkpoint has is an error. load_module_only: weights and buffers alone.
    Returns the folder of the checkpoint, or its path, and the client state. Raises Error on every rank: "not found" when there is no
    checkpoint, where DeepSpeed returns (None, None); "mismatch" names the tensors that do not fit, before anything is changed. After an
    error of the data ("corrupt", "input/output") some tensors are the checkpoint's and some are not: load a whole one before the job goes on.
    """
    name = os.fspath(folder)
    checkpoint = ranks.open_together(name, tag)
    tag = checkpoint.tag or tag
    live = ranks.together("describing the engine", lambda: LiveEngine(engine))
    with_states = load_optimizer_states and not load_module_only and live.inner is not None
    plan = ranks.together("comparing engine and checkpoint", lambda: _Plan(live, checkpoint, strict, with_states))
    live.begin_load()

    def fill() -> Any:
        if with_states:
            plan.make_states()
        with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
            for done in [pool.submit(_read, *read) for read in plan.reads()]:
                done.result()
        plan.round()
        client = from_json(checkpoint.client_state, lambda tensor: checkpoint[tensor, _EXTRA].torch())
        if not load_module_only:
            _set_progress(live, checkpoint, load_lr_scheduler_states)
        return client

    try:
        client_state = ranks.together("reading the checkpoint", fill)
        ranks.verify_reads(checkpoint)
    finally:
        live.end_load()
    if isinstance(client_state, dict):
        client_state.pop(SCALARS, None)
    where = os.path.join(name, tag) if tag and os.path.isdir(os.path.join(name, tag)) else checkpoint.path
    note_loaded(checkpoint)
    checkpoint.close()
    return where, client_state if isinstance(client_state, dict) else {}


def patch(engine: Any, **options: Any) -> Any:
    """Makes engine.save_checkpoint() and engine.load_checkpoint() save and load UniShard checkpoints. Returns the engine.

    For programs that call them, such as trainers. options: arguments of save(), for example keep_last=3. The folders that DeepSpeed
    itself has written are still loaded.
    """
    def save_checkpoint(save_dir: Path_, tag: Optional[str] = None, client_state: Optional[dict[str, Any]] = None,
                        save_latest: bool = True, exclude_frozen_parameters: bool = False) -> bool:
        save(engine, save_dir, tag, client_state, save_latest=save_latest, exclude_frozen_parameters=exclude_frozen_parameters, **options)
        return True

    def load_checkpoint(load_dir: Path_, tag: Optional[str] = None, load_module_strict: bool = True, load_optimizer_states: bool = True,
                        load_lr_scheduler_states: bool = True, load_module_only: bool = False) -> tuple[str, dict[str, Any]]:
        return load(engine, load_dir, tag, load_optimizer_states=load_optimizer_states, load_module_only=load_module_only,
                    load_lr_scheduler_states=load_lr_scheduler_states, strict=load_module_strict)

    engine.save_checkpoint, engine.load_checkpoint = save_checkpoint, load_checkpoint
    return engine


# What is saved.

def _options(keep_last: int, compress: str, base: Optional[Path_], replace: bool, save_latest: bool) -> dict[str, Any]:
    return {"compression": compress, "replace": replace, "keep_last": keep_last, "base": os.fspath(base) if base else "",
            "move_latest": save_latest}


def _planned(engine: Any, folder: Path_, tag: Optional[str], client_state: Optional[dict[str, Any]], without_frozen: bool, fresh: bool,
             is_inside: bool, options: dict[str, Any]) -> Plan:
    """Describes and compares the engines of all ranks. The plan has the live tensors, and nothing else that changes."""
    path, tag = path_of(folder), str(tag or f"global_step{engine.global_steps}")
    require_arguments(step=engine.global_steps, keep_last=options["keep_last"], tag=tag, compress=options["compression"],
                       client_state=client_state)
    live = ranks.together("describing the engine", lambda: LiveEngine(engine))
    extra: dict[str, torch.Tensor] = {}
    sections = ranks.together("describing the engine", lambda: _sections(live, client_state or {}, extra) if ranks.rank() == 0 else {})
    sections = ranks.from_first(sections)

    def described() -> tuple[list[Row], list[_Own], set[str]]:
        rows = _rows(live, not without_frozen)
        own = _own(live, rows)
        return rows, own, _not_rounded(live, own)

    rows, own, changed = ranks.together("describing the engine", described)
    everywhere = ranks.gathered((rows, changed))
    places = ranks.gathered(os.path.join(path, tag))

    def catalog_of() -> dict[str, Any]:
        for number, place in enumerate(places):
            if place != places[0]:
                raise Error("mismatch", f"rank {number} saves {place}, and rank 0 {places[0]}", "pass the same arguments on all ranks")
        for number, (other, _) in enumerate(everywhere):
            if other != rows:
                raise Error("mismatch", f"rank {number} of the engine has other tensors than rank {ranks.rank()}")
        kept = set().union(*(names for _, names in everywhere))
        rounded = {row["name"] for row in rows if row["state"] == "fp32"} - kept
        for row in rows:
            row["derived"] = row["state"] == "weights" and row["name"] in rounded
        return {"tensors": rows + sections["extra"], "aliases": live.aliases, "world_size": ranks.world_size(), "stage": live.stage,
                **sections["catalog"]}

    catalog = ranks.together("comparing the ranks", catalog_of)
    own += [_Own((name, _EXTRA), 0, value.numel(), value, 0) for name, value in extra.items() if value.numel()]
    return Plan(Target(path, tag, fresh, is_inside), catalog, lambda: _parts(catalog, own), options)


def _sections(live: LiveEngine, client_state: dict[str, Any], extra: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Returns everything but the engine's tensors; `extra` receives the tensors of the client state."""
    engine, position = live.engine, {key: int(getattr(live.engine, key)) for key in ("global_steps", "skipped_steps", "global_samples")}
    scalars = _scalars(live)
    counted = max(0, position["global_steps"] - position["skipped_steps"])
    step = int(max(scalars.get("step", {}).values(), default=counted))
    if "step" in scalars:
        scalars["step"] = {name: number for name, number in scalars["step"].items() if number != step}
    client = to_json(dict(client_state), "client_state", extra.__setitem__)
    if any(scalars.values()):
        client[SCALARS] = {state: numbers for state, numbers in scalars.items() if numbers}
    state = {**position, **_samplers(engine)}
    scheduler, scaler = engine.lr_scheduler, live.scaler_state()
    settings = live.inner.param_groups if live.inner is not None else []
    groups = [{**{key: simple_json(value, f"param_groups.{key}") for key, value in group.items() if key != "params"}, "params": names}
              for group, names in zip(settings, live.groups)]
    catalog = {"step": step, "groups": groups or None, "data_position": state, "client_state": client or None,
               "scheduler": to_json(scheduler.state_dict(), "lr_scheduler", refuse_tensor) if scheduler is not None else None,
               "loss_scaler": None if scaler is None else simple_json(scaler, "loss_scaler"),
               "config": simple_json(engine.config, "ds_config"),
               "producer": {"library": "deepspeed", "version": version(), "name": "unishard.deepspeed"}}
    return {"catalog": catalog, "extra": [_row(key, _EXTRA, value.dtype, tuple(value.shape)) for key, value in extra.items()]}


def _samplers(engine: Any) -> dict[str, Any]:
    """Returns the states that DeepSpeed's data efficiency library has, if it is in use."""
    states: dict[str, Any] = {}
    if engine.training_dataloader is not None and engine.curriculum_learning_enabled():
        states["data_sampler"] = to_json(engine.training_dataloader.data_sampler.state_dict(), "data_sampler", refuse_tensor)
    if engine.random_ltd_enabled() and engine.random_ltd_scheduler is not None:
        states["random_ltd"] = to_json(engine.random_ltd_scheduler.state_dict(), "random_ltd", refuse_tensor)
    return states


def _is_scalar(value: Any) -> bool:
    return not isinstance(value, torch.Tensor) or value.ndim == 0


def _scalars(live: LiveEngine) -> dict[str, dict[str, Union[int, float]]]:
    """Returns the optimizer's states that are one number, by state and parameter."""
    scalars: dict[str, dict[str, Union[int, float]]] = {}
    for vector in live.vectors:
        for state, value in _states(live, vector.master).items():
            if value is None or not _is_scalar(value):
                continue
            number = value.item() if isinstance(value, torch.Tensor) else value
            if not isinstance(number, (int, float)):
                raise Error("unsupported", f"the optimizer's state {state} is {number!r}, and not a number")
            number = int(number) if number == int(number) else number
            scalars.setdefault(state, {}).update(dict.fromkeys(vector.names, number))
    return scalars


def _states(live: LiveEngine, master: torch.Tensor) -> dict[str, Any]:
    return live.inner.state.get(master, {}) if live.inner is not None else {}


def _row(name: str, state: str, dtype: torch.dtype, shape: tuple[int, ...], group: int = -1, frozen: bool = False) -> Row:
    return {"name": name, "state": state, "dtype": str(dtype).removeprefix("torch."), "shape": list(shape), "group": group,
            "frozen": frozen, "derived": False}


def _rows(live: LiveEngine, with_frozen: bool) -> list[Row]:
    """Returns the tensors of the catalog, as a DeepSpeed folder of the same state has them (MAPPING.md)."""
    vector_of = {name: vector for vector in live.vectors for name in vector.names}
    rows = []
    for name in live.order:
        if name in live.buffers:
            rows.append(_row(name, "buffer", live.buffers[name].dtype, tuple(live.buffers[name].shape)))
            continue
        dtype, shape, vector = live.dtype(name), live.shape(name), vector_of.get(name)
        if vector is None:
            if with_frozen:
                rows.append(_row(name, "weights", dtype, shape, frozen=live.inner is not None))
            continue
        role = "weights" if vector.master.dtype == dtype and dtype.itemsize < 4 else "fp32"
        rows.append(_row(name, role, vector.master.dtype, shape, vector.group))
        for state, value in _states(live, vector.master).items():
            if value is None or _is_scalar(value):
                continue
            if value.numel() != vector.master.numel():
                raise Error("unsupported", f"the optimizer's state {state} of {name} has {value.numel()} elements in memory, and the "
                            f"parameter's vector {vector.master.numel()}")
            rows.append(_row(name, state, value.dtype, shape, vector.group))
        if vector.master.dtype != dtype:
            rows.append(_row(name, "weights", dtype, shape, vector.group))
    return rows


def _own(live: LiveEngine, rows: list[Row]) -> list[_Own]:
    """Returns the elements of all rows that this rank writes."""
    spans = {span.name: span for span in live.spans}
    cut = {name for vector in live.vectors for name in vector.names}
    own = []
    for number, row in enumerate(rows):
        key, shape, span = (row["name"], row["state"]), tuple(row["shape"]), spans.get(row["name"])
        if span is None and row["name"] in cut:  # all of it is on other ranks
            continue
        local, at = _held(live, span, key)
        if row["state"] == "buffer":  # they may differ between ranks: that of rank 0 counts, as in DeepSpeed
            begin, end = (0, local.numel()) if ranks.rank() == 0 else (0, 0)
        elif span is not None and not live.whole:
            begin, end = span.begin, span.end
        elif span is None and hasattr(live.parameters[row["name"]], "ds_tensor"):
            begin, end, _ = live.weights(row["name"])
        else:
            begin, end = own_share(Box((0,) * len(shape), shape), shape, list(range(ranks.world_size())), ranks.rank(), number)
        if begin < end:
            own.append(_Own(key, begin, end, local, begin + at))
    return own


def _held(live: LiveEngine, span: Optional[Span], key: Key) -> tuple[torch.Tensor, int]:
    """Returns the tensor that holds a row's elements on this rank, and the place in it of element 0, which may be negative."""
    name, state = key
    if state == "buffer":
        return live.buffers[name].detach(), 0
    if span is None or state == "weights" and live.vectors[span.vector].master.dtype != live.dtype(name):
        begin, _, local = live.weights(name)
        return local, -begin
    master = live.vectors[span.vector].master
    local = master.detach() if state in ("fp32", "weights") else _states(live, master)[state]
    return local, span.at - span.begin


def _not_rounded(live: LiveEngine, own: list[_Own]) -> set[str]:
    """Returns the parameters whose 16-bit weights are not what their masters round to; NaN counts as such."""
    masters = {one.key[0]: one for one in own if one.key[1] == "fp32"}
    changed = set()
    for one in own:
        name, state = one.key
        master = masters.get(name)
        if state != "weights" or master is None:
            continue
        wide, narrow = flat_elements(master.local), flat_elements(one.local)
        most = _PIECE_BYTES // 4
        for low in range(0, one.end - one.begin, most):
            count = min(most, one.end - one.begin - low)
            weights = narrow[one.at + low:one.at + low + count]
            rounded = wide[master.at + low:master.at + low + count].to(weights.dtype)
            if master.local.dtype != torch.float32 or not _same(rounded, weights.to(rounded.device)):
                changed.add(name)
                break
    return changed


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a, b) and torch.equal(a.view(torch.int16), b.view(torch.int16))


def _parts(catalog: dict[str, Any], own: list[_Own]) -> list[Part]:
    numbers = {(row["name"], row["state"]): number for number, row in enumerate(catalog["tensors"])}
    parts = [Part((numbers[one.key], one.begin, one.end), one.local, one.at) for one in own]
    return sorted(parts, key=lambda part: part.fragment)


# What is loaded.

class _Plan:
    """What this rank reads of a checkpoint, and where it goes. Making it changes nothing."""

    def __init__(self, live: LiveEngine, checkpoint: _checkpoint.Checkpoint, strict: bool, with_states: bool) -> None:
        self._live, self._checkpoint, self._strict = live, checkpoint, strict
        self._problems: list[str] = []
        self._spans = {span.name: span for span in live.spans}
        self._sources: dict[Key, _checkpoint.Tensor] = {}
        self._states: list[list[str]] = []  # of the optimizer, by vector
        self._settings: list[dict[str, Any]] = []
        self._find_values()
        if with_states:
            self._find_states()
            self._find_settings()
        if self._problems:
            more = f"\n  and {len(self._problems) - 10} more" if len(self._problems) > 10 else ""
            raise Error("mismatch", f"{checkpoint.path} does not fit the engine:\n  " + "\n  ".join(self._problems[:10]) + more)

    def _find_values(self) -> None:
        live, checkpoint = self._live, self._checkpoint
        stored = {name for name in checkpoint.names() if set(checkpoint.states(name)) & set(_checkpoint._WEIGHT_STATES)}
        known = set()
        for name in (*live.parameters, *live.buffers):
            known.add(checkpoint.aliases.get(name, name))
            has = checkpoint.states(name) if name in checkpoint else []
            values = [one for one in _checkpoint._WEIGHT_STATES if one in has]
            if not values and self._strict:
                self._problems.append(f"{name} is not in the checkpoint")
            for state in values:
                self._check(name, state)
        if self._strict:
            self._problems += [f"{name} is only in the checkpoint" for name in sorted(stored - known)]

    def _check(self, name: str, state: str) -> None:
        live, tensor = self._live, self._checkpoint[name, state]
        buffer = live.buffers.get(name)
        shape, dtype = (tuple(buffer.shape), buffer.dtype) if buffer is not None else (live.shape(name), live.dtype(name))
        theirs = getattr(torch, tensor.dtype, None)
        if tensor.shape != shape:
            self._problems.append(f"{name} [{state}] has the shape {shape} in the engine, and {tensor.shape} in the checkpoint")
        elif theirs != dtype and not (isinstance(theirs, torch.dtype) and theirs.is_floating_point and dtype.is_floating_point):
            self._problems.append(f"{name} [{state}] is {str(dtype).removeprefix('torch.')} in the engine, and {tensor.dtype} in the "
                                  "checkpoint")
        else:
            self._sources[name, state] = tensor

    def _find_states(self) -> None:
        live, checkpoint = self._live, self._checkpoint
        has_muon = "muon" in type(live.inner).__name__.lower()
        if has_muon and live.stage in (1, 2):
            raise Error("unsupported", "at stages 1 and 2 DeepSpeed's Muon has the momenta of whole matrices on each rank, which are not the "
                        "parts of its partition", "write a folder with `unishard reshard --to deepspeed`, and load it with engine.load_checkpoint()")
        require_order(checkpoint, live.groups)
        if self._strict:
            self._problems += unused_states(checkpoint, live.parameters)
        for vector in live.vectors:
            states: list[str] = []
            for name in vector.names:
                for state in checkpoint.states(name) if name in checkpoint else []:
                    if state not in _checkpoint._WEIGHT_STATES and state != _EXTRA:
                        self._check(name, state)
                        states += [state] if state not in states else []
            present = _states(live, vector.master)
            wanted = {state for state, value in present.items() if value is not None and not _is_scalar(value)}
            if not present and "adam" in type(live.inner).__name__.lower():
                is_matrix = has_muon and live.inner.param_groups[vector.group]["use_muon"]
                wanted = {"momentum_buffer"} if is_matrix else {"exp_avg", "exp_avg_sq"}
            numbers = {state for state, value in present.items() if value is not None and _is_scalar(value)} - {"step", *self._scalars()}
            if states and numbers:
                self._problems.append(f"{vector.names[0]} has no {', '.join(sorted(numbers))} in the checkpoint")
            if states and not wanted <= set(states) or present and wanted and not set(states) <= wanted:
                self._problems.append(f"{vector.names[0]} has the optimizer states {', '.join(states)} in the checkpoint, and "
                                      f"{type(live.inner).__name__} has {', '.join(sorted(wanted))}")
            self._states.append(states)

    def _find_settings(self) -> None:
        checkpoint = self._checkpoint
        for number, names in enumerate(self._live.groups):
            theirs = {checkpoint[name].group for name in names if name in checkpoint}
            if len(theirs) > 1:
                self._problems.append(f"the parameters of group {number} are in the groups {sorted(map(str, theirs))} of the checkpoint")
            index = next(iter(theirs), None)
            stored = checkpoint.groups[index] if index is not None and isinstance(checkpoint.groups, list) else {}
            self._settings.append({key: value for key, value in stored.items() if key != "params"})

    def make_states(self) -> None:
        """Gives the optimizer the states and settings of the checkpoint, the tensors filled with zeros."""
        live = self._live
        assert live.inner is not None
        for vector, states in zip(live.vectors, self._states):
            present = _states(live, vector.master)
            for value in present.values():
                if isinstance(value, torch.Tensor) and value.ndim > 0:
                    value.zero_()
            if not states and not any(state in ("step", *self._scalars()) for state in present):
                continue
            made = dict(present)
            for state in states:
                if state not in made:
                    made[state] = torch.zeros_like(vector.master, requires_grad=False)
            for state, number in self._numbers(vector.names, states, present).items():
                value = made.get(state)
                if isinstance(value, torch.Tensor):
                    value.fill_(number)
                else:
                    made[state] = number
            live.inner.state[vector.master] = made
        for group, settings in zip(live.inner.param_groups, self._settings):
            group.update({key: _like(group.get(key), value) for key, value in settings.items()})
        live.adopt_states()

    def _scalars(self) -> dict[str, dict[str, Any]]:
        return recorded_scalars(self._checkpoint)

    def _numbers(self, names: list[str], states: list[str], present: dict[str, Any]) -> dict[str, Any]:
        """Returns the states of a vector that are no tensors. Parameters in one vector can have one only: the largest number, or the first."""
        numbers: dict[str, Any] = {}
        for state in dict.fromkeys(["step", *self._scalars(), *(key for key, value in present.items() if _is_scalar(value))]):
            recorded = self._scalars().get(state, {})
            usual = None if state != "step" else self._checkpoint.step if states else 0
            values = [recorded.get(name, usual) for name in names]
            given = [from_json(value, no_tensors) for value in values if value is not None]
            are_numbers = all(isinstance(value, (int, float)) for value in given)
            if any(value != given[0] for value in given):
                warnings.warn(f"the parameters of one partition have different values of {state}; the "
                              f"{'largest' if are_numbers else 'first'} is kept", stacklevel=4)
            if given:
                numbers[state] = max(given) if are_numbers else given[0]
        return numbers

    def reads(self) -> list[tuple[_checkpoint.Tensor, int, int, torch.Tensor, int]]:
        """Returns tensor, first element, end, destination and place in it, of everything that is read."""
        live, reads = self._live, []
        cut = {name for vector in live.vectors for name in vector.names}
        for name, buffer in live.buffers.items():
            source = self._source(name, buffer.dtype)
            if source is not None:
                reads.append((source, 0, buffer.numel(), buffer.detach(), 0))
        for name in live.parameters:
            span = self._spans.get(name)
            if span is not None:
                reads += self._reads_of_span(span)
            elif name not in cut:
                source = self._source(name, live.dtype(name))
                begin, end, local = live.weights(name)
                if source is not None and begin < end:
                    reads.append((source, begin, end, local, 0))
        return reads

    def _reads_of_span(self, span: Span) -> list[tuple[_checkpoint.Tensor, int, int, torch.Tensor, int]]:
        live, reads = self._live, []
        master = live.vectors[span.vector].master
        source = self._source(span.name, master.dtype)
        if source is not None:
            reads.append((source, span.begin, span.end, master.detach(), span.at))
        for state in self._states[span.vector] if self._states else []:
            moment = self._sources.get((span.name, state))
            if moment is not None:
                reads.append((moment, span.begin, span.end, _states(live, master)[state], span.at))
        lower = self._lower(span)
        if lower is not None:
            begin, _, local = live.weights(span.name)
            reads.append((lower, span.begin, span.end, local, span.begin - begin))
        return reads

    def _source(self, name: str, dtype: torch.dtype) -> Optional[_checkpoint.Tensor]:
        """Returns the tensor with the values of a name: the one of this precision, else the most precise."""
        found = [self._sources[name, state] for state in _checkpoint._WEIGHT_STATES if (name, state) in self._sources]
        return next((one for one in found if "torch." + one.dtype == str(dtype)), found[0] if found else None)

    def _lower(self, span: Span) -> Optional[_checkpoint.Tensor]:
        """Returns the 16-bit weights of the checkpoint, unless they are what the masters round to, or the engine has others."""
        tensor, dtype = self._sources.get((span.name, "weights")), self._live.dtype(span.name)
        has_own = dtype != self._live.vectors[span.vector].master.dtype
        return tensor if has_own and tensor is not None and not tensor.derived and "torch." + tensor.dtype == str(dtype) else None

    def round(self) -> None:
        """Gives the module's copy the rounded masters, where the checkpoint has no weights of its precision."""
        for span in self._live.spans:
            master = self._live.vectors[span.vector].master.detach()
            if self._lower(span) is None and self._live.kind is not None:  # without a wrapper, masters are the module's own
                begin, _, local = self._live.weights(span.name)
                count = span.end - span.begin
                local.view(-1)[span.begin - begin:span.end - begin].copy_(master.view(-1)[span.at:span.at + count])


def _read(tensor: _checkpoint.Tensor, begin: int, end: int, local: torch.Tensor, at: int) -> None:
    """Reads elements [begin, end) of the tensor into `local`; directly where the precision and memory allow."""
    if begin == end:
        return
    if not is_row_major(local):
        whole = torch.empty(local.shape, dtype=local.dtype)
        _read(tensor, begin, end, whole, at)
        local.copy_(whole)
        return
    flat = local.view(-1)[at:at + end - begin]
    if flat.device.type == "cpu" and str(flat.dtype) == "torch." + tensor.dtype:
        tensor._read_into(begin, end - begin, flat.data_ptr())
        return
    dtype: torch.dtype = getattr(torch, tensor.dtype)
    most = max(1, _PIECE_BYTES // dtype.itemsize)
    for low in range(begin, end, most):
        count = min(most, end - low)
        piece = torch.empty(count, dtype=dtype)
        tensor._read_into(low, count, piece.data_ptr())
        flat[low - begin:low - begin + count].copy_(piece)


def _like(present: Any, value: Any) -> Any:
    if isinstance(present, torch.Tensor):
        return torch.full_like(present, value)
    return tuple(value) if isinstance(present, tuple) else value


def _set_progress(live: LiveEngine, checkpoint: _checkpoint.Checkpoint, with_scheduler: bool) -> None:
    engine = live.engine
    position = checkpoint.data_position if isinstance(checkpoint.data_position, dict) else {}

    def objects(value: Any) -> Any:
        return from_json(value, lambda name: checkpoint[name, _EXTRA].torch())

    if with_scheduler and engine.lr_scheduler is not None and checkpoint.scheduler is not None:
        engine.lr_scheduler.load_state_dict(objects(checkpoint.scheduler))
    if isinstance(checkpoint.loss_scaler, dict):
        live.set_scaler_state(checkpoint.loss_scaler)
    if "random_ltd" in position and engine.random_ltd_enabled() and engine.random_ltd_scheduler is not None:
        engine.random_ltd_scheduler.load_state_dict(objects(position["random_ltd"]))
    if "data_sampler" in position and engine.training_dataloader is not None and engine.curriculum_learning_enabled():
        engine.training_dataloader.data_sampler.load_state_dict(objects(position["data_sampler"]))
    engine.global_steps = int(position.get("global_steps", checkpoint.step))
    engine.skipped_steps = int(position.get("skipped_steps", 0))
    engine.global_samples = int(position.get("global_samples", engine.global_steps * engine.train_batch_size()))
    engine.loaded_checkpoint_dp_world_size, engine.loaded_checkpoint_mp_world_size = checkpoint.world_size, 1
