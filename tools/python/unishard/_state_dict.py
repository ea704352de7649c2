"""The keys of a state dict of torch.distributed.checkpoint, and the values that are no tensors, within a UniShard checkpoint.

Such a checkpoint has `producer["state_dict"]`: "tensors" lists [key, path, name, state]; "constants" lists [key, path, dtype, shape,
bytes] of the tensors with one element that became numbers of the catalog; "objects" lists [key, path, JSON value], and behind that
what torch.save makes of the object, compressed and in base64, where JSON does not express it exactly. A path lists [text, is position].
"order" lists the numbers of all rows, counted through these three, in the order of the state dict.
"""

from __future__ import annotations

import base64
import io
import math
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple, Optional, Union

import torch

from . import _checkpoint
from ._errors import Error
from ._objects import from_json, is_text, no_tensors
from ._optimizer_state import SCALARS, recorded_scalars

KINDS = ("tensors", "constants", "objects")
Path = tuple[Union[str, int], ...]

# Settings that torch.optim.AdamW expects in every group of a checkpoint, as adamw_defaults.hpp has them for the tools.
_ADAMW = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 1e-2, "amsgrad": False, "maximize": False, "foreach": None,
          "capturable": False, "differentiable": False, "fused": None, "decoupled_weight_decay": True}
_OBJECT_BYTES = 64 << 20  # the manifest holds the objects


class Entry(NamedTuple):
    """What one key of the state dict means: a tensor of the checkpoint, a tensor with one element, or what torch.save has made."""

    path: Optional[Path]
    tensor: Optional[_checkpoint.Tensor] = None
    constant: Optional[torch.Tensor] = None
    pickle: Optional[bytes] = None
    is_foreign: bool = False  # the checkpoint holds the pickle; otherwise it is made here from JSON


def plain(value: Any, depth: int = 0) -> Any:
    """Returns the value as JSON from which unplain() makes an equal value of the same types. Raises ValueError where there is none."""
    kind = type(value)
    if value is None or kind is bool or kind is str and is_text(value) or kind is int and abs(value) < 1 << 63 or kind is float and math.isfinite(value):
        return value
    if kind in (list, tuple) and depth < 8:
        items = [plain(one, depth + 1) for one in value]
        return items if kind is list else {"$type": "tuple", "items": items}
    raise ValueError(f"{kind.__name__} is not expressed exactly")


def unplain(value: Any) -> Any:
    if isinstance(value, list):
        return [unplain(one) for one in value]
    return tuple(unplain(value["items"])) if isinstance(value, dict) else value


def pickled(value: Any) -> bytes:
    """Returns what torch.save makes of the value, as DCP stores objects."""
    made = io.BytesIO()
    torch.save(value, made)
    return made.getvalue()


def packed(objects: dict[str, bytes]) -> dict[str, str]:
    """Returns the pickles as texts for the manifest. Raises Error when they are too large for it."""
    if (size := sum(map(len, objects.values()))) > _OBJECT_BYTES:
        largest = max(objects, key=lambda key: len(objects[key]))
        raise Error("unsupported", f"the state dict has {size} bytes of objects that are no tensors, most of them in {largest}; up to "
                    f"{_OBJECT_BYTES} are kept", "hold large data in tensors, in nested dicts that the planner flattens")
    return {key: base64.b64encode(zlib.compress(value)).decode() for key, value in objects.items()}


def _unpacked(text: str) -> bytes:
    inflating = zlib.decompressobj()
    content = inflating.decompress(base64.b64decode(text), _OBJECT_BYTES)
    if not inflating.eof:
        raise ValueError(f"an object is incomplete or has more than {_OBJECT_BYTES} bytes")
    return content


def entries(checkpoint: _checkpoint.Checkpoint) -> dict[str, Entry]:
    """Returns the state dict of a checkpoint by its keys: those that it was saved with, else those that the tools give it in DCP."""
    producer = checkpoint.producer
    recorded = producer.get("state_dict") if isinstance(producer, dict) else None
    try:
        if recorded and all((row[2], row[3]) in checkpoint.tensors for row in recorded["tensors"]):
            return _recorded(checkpoint, recorded)
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError, zlib.error) as error:
        raise Error("corrupt", f"{checkpoint.path}: the keys of its state dict are damaged: {error!r}") from None
    return _usual(checkpoint)


def _recorded(checkpoint: _checkpoint.Checkpoint, recorded: dict[str, Any]) -> dict[str, Entry]:
    found = {key: Entry(_path(path), tensor=checkpoint.tensors[name, state]) for key, path, name, state in recorded["tensors"]}
    for key, path, dtype, shape, content in recorded["constants"]:
        values = torch.tensor(list(content), dtype=torch.uint8).view(getattr(torch, dtype)).reshape(tuple(shape))
        found[key] = Entry(_path(path), constant=values)
    for key, path, value, *exact in recorded["objects"]:
        content = _unpacked(exact[0]) if exact else pickled(unplain(value))
        found[key] = Entry(_path(path), pickle=content, is_foreign=bool(exact))
    keys, order = list(found), recorded["order"]
    if sorted(order) != list(range(len(keys))):
        raise ValueError("the order of the keys")
    return {keys[number]: found[keys[number]] for number in order}


def _path(parts: list[Any]) -> Optional[Path]:
    return tuple(int(text) if is_position else text for text, is_position in parts) or None


def _usual(checkpoint: _checkpoint.Checkpoint) -> dict[str, Entry]:
    """Returns model.<name>, optim.state.<name>.<state>, optim.param_groups and the client state, as MAPPING.md lists them."""
    found: dict[str, Entry] = {}

    def add(path: Path, **content: Any) -> None:
        found[".".join(map(str, path))] = Entry(path, **content)

    client_state = checkpoint.client_state if isinstance(checkpoint.client_state, dict) else {}
    scalars = recorded_scalars(checkpoint)
    steps = scalars.get("step", {})
    states = {state for name in checkpoint.names() for state in checkpoint.states(name)}
    counts = bool(states - {*_checkpoint._WEIGHT_STATES, "extra", "momentum_buffer"})  # SGD alone counts no steps
    is_adam = "exp_avg" in states and "exp_avg_sq_row" not in states  # whose steps are tensors; those of transformers' Adafactor are not
    names = {name: name for name in checkpoint.names()}
    for name, target in {**names, **checkpoint.aliases}.items():
        values = [state for state in _checkpoint._WEIGHT_STATES if state in checkpoint.states(target)]
        if values:
            add(("model", name), tensor=checkpoint.tensors[target, values[0]])
        if name != target:
            continue
        moments = [state for state in checkpoint.states(name) if state not in _checkpoint._WEIGHT_STATES and state != "extra"]
        for state in moments:
            add(("optim", "state", name, state), tensor=checkpoint.tensors[name, state])
        step = steps.get(name, None if "step" in scalars and not steps else checkpoint.step)
        is_tensor = is_adam or name not in steps or isinstance(step, float)
        if moments and "step" not in moments and step is not None and is_tensor and (counts or name in steps):
            add(("optim", "state", name, "step"), constant=torch.tensor(float(step)))
        if "extra" in checkpoint.states(name):
            add((name,), tensor=checkpoint.tensors[name, "extra"])
    for number, group in enumerate(checkpoint.groups if isinstance(checkpoint.groups, list) else []):
        members = list(dict.fromkeys(one.name for one in checkpoint.tensors.values() if one.group == number))
        defaults = _ADAMW if any("exp_avg" in checkpoint.states(name) for name in members) else {}
        for setting, value in {"params": members, **defaults, **group}.items():
            settled = tuple(value) if setting != "params" and _is_pair(value) else value
            add(("optim", "param_groups", number, setting), pickle=pickled(settled))
    for state, by_name in scalars.items():
        for name, value in by_name.items():
            if f"optim.state.{name}.{state}" in found or value is None and state == "step":
                continue
            if state == "step" and isinstance(value, float):
                add(("optim", "state", name, state), constant=torch.tensor(value))
            else:
                add(("optim", "state", name, state), pickle=pickled(from_json(value, no_tensors)))
    for key, described in client_state.items():
        if key in found or key == SCALARS:
            continue
        try:
            value = from_json(described, lambda name: checkpoint[name, "extra"].torch())
        except Error:  # an object that only the program that saved it can make
            value = described
        # A key of a whole dict beside those of its members would make DCP's planner take the checkpoint for one of torch 2.3.
        for path, leaf in _leaves((key,), value):
            if ".".join(map(str, path)) not in found:
                add(path, pickle=pickled(leaf))
    return found


def _is_pair(value: Any) -> bool:
    """Returns whether torch's optimizers have the setting as a tuple: two or three numbers or None, as with_tuples() of the tools has it."""
    return isinstance(value, list) and len(value) in (2, 3) and all(one is None or isinstance(one, (int, float)) for one in value)


def _leaves(path: Path, value: Any) -> Iterator[tuple[Path, Any]]:
    """Yields what DCP's planners make keys of: the members of dicts, and of lists that hold dicts or tensors."""
    if isinstance(value, dict):
        for key, one in value.items():
            yield from _leaves((*path, str(key)), one)
    elif isinstance(value, list) and _is_traversed(value):
        for number, one in enumerate(value):
            yield from _leaves((*path, number), one)
    else:
        yield path, value


def _is_traversed(value: list[Any]) -> bool:
    return any(isinstance(one, (dict, torch.Tensor)) or isinstance(one, list) and _is_traversed(one) for one in value)
