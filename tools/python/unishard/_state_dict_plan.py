"""Plans how a state dict of torch.distributed.checkpoint is saved: from the plans of all ranks to a catalog."""

from __future__ import annotations

import collections
import contextlib
import inspect
import re
from collections.abc import Iterable
from typing import Any, NamedTuple, Optional

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem

from . import _native
from ._errors import Error
from ._objects import is_text
from ._parts import flat_elements, require_dense
from ._shards import Box
from ._state_dict import KINDS, plain

# Keys of optimizer states, which are no second name of a parameter, and of states with numbers, whose names the groups list.
_STATE = re.compile(r"(^|\.)state\.")
_NUMBERED = re.compile(r"(^|\.)state\.\d+\.")
_SAMPLE = 256  # elements that are compared first

Labels = dict[tuple[str, tuple[int, ...]], int]  # key and offsets of a piece; equal labels: equal elements


class Object(NamedTuple):
    """A value of the state dict that is no tensor: as JSON that expresses it exactly, or what torch.save makes of it."""

    value: Any = None
    pickle: Optional[bytes] = None

    @property
    def size(self) -> int:
        return len(self.pickle) if self.pickle is not None else len(str(self.value))


class Description:
    """The state dict of all ranks, as the C interface takes it. Not thread-safe."""

    def __init__(self, plans: list[SavePlan], labels: list[Labels]) -> None:
        self._paths = _paths(plans)
        self._keys: dict[str, int] = {}
        self._objects: dict[str, dict[str, Any]] = {}
        self._tensors: dict[str, dict[str, Any]] = {}
        pieces: dict[str, list[tuple[int, tuple[int, ...]]]] = {}
        order = {key: number for number, key in enumerate(self._paths)}
        items = [(rank, item) for rank, plan in enumerate(plans) for item in plan.items]
        for rank, item in sorted(items, key=lambda one: order.get(one[1].index.fqn, len(order))):
            key, data = item.index.fqn, item.tensor_data
            if not is_text(key):
                raise Error("unsupported", f"the key {key!r} of the state dict is not valid Unicode", "rename it; nothing was saved")
            self._keys.setdefault(key, len(self._keys))
            if data is None:
                self._objects[key] = {"key": key, "path": self._paths.get(key), "value": None}
                continue
            box = box_of(item)
            row = self._tensors.setdefault(key, {"key": key, "path": self._paths.get(key), "chunks": 0, "shape": list(data.size),
                                                 "dtype": str(data.properties.dtype).removeprefix("torch.")})
            row["chunks"] += box.elements > 0
            if box.elements > 0:
                pieces.setdefault(key, []).append((rank, box.offset))
        self._world_size = len(plans)
        for key, label in _equal(pieces, labels).items():
            self._tensors[key]["equal"] = label

    def order(self, described: dict[str, Any]) -> list[int]:
        """Returns the numbers of the rows of "tensors", "constants" and "objects", counted through, in the order of the state dict."""
        keys = [row[0] for kind in KINDS for row in described[kind]]
        return sorted(range(len(keys)), key=lambda number: self._keys[keys[number]])

    def planned(self, constants: dict[str, bytes], objects: dict[str, Object]) -> dict[str, Any]:
        """Returns the catalog. Values that are not given count as zero and null."""
        tensors = [{**row, "bytes": constants[key].hex()} if key in constants else row for key, row in self._tensors.items()]
        rows = []
        for key, row in self._objects.items():
            given = objects.get(key, Object())
            rows.append({**row, "value": given.value} if given.pickle is None else {**row, "pickle": given.pickle.hex()})
        return _native.plan_state_dict({"world_size": self._world_size, "tensors": tensors, "objects": rows})


def box_of(item: WriteItem) -> Box:
    chunk = item.tensor_data.chunk  # type: ignore[union-attr]
    return Box(tuple(chunk.offsets), tuple(chunk.sizes))


def object_of(planner: SavePlanner, item: WriteItem) -> Object:
    """Returns the object of an item, in the form of JSON where the planner does not change objects and JSON is exact."""
    if type(planner).resolve_data is DefaultSavePlanner.resolve_data and \
            type(planner).transform_object is DefaultSavePlanner.transform_object:  # type: ignore[attr-defined]
        try:
            return Object(value=plain(planner.lookup_object(item.index)))  # type: ignore[attr-defined]
        except ValueError:
            pass
    return Object(pickle=planner.resolve_data(item).getvalue())  # type: ignore[union-attr]


def planner_of_caller() -> Optional[SavePlanner]:
    """Returns the planner of the save that is being planned, if it can be found.

    DCP passes the planner to write_data() alone. The function that calls prepare_local_plan() has it as a local variable.
    """
    frame = inspect.currentframe()
    for _ in range(6):
        frame = frame.f_back if frame else None
        planner = frame.f_locals.get("planner") if frame else None
        if isinstance(planner, SavePlanner):
            return planner
    return None


def group_objects(plans: list[SavePlan], planner: SavePlanner) -> dict[str, Object]:
    """Returns the objects on which the names of tensors depend: the groups of an optimizer that knows its parameters by numbers.

    Objects that this rank does not have are left out.
    """
    items = [item for plan in plans for item in plan.items]
    found: dict[str, Object] = {}
    if any(_NUMBERED.search(item.index.fqn) for item in items if item.tensor_data is not None):
        for item in items:
            if item.tensor_data is None and names_parameters(item.index.fqn):
                with contextlib.suppress(AttributeError, KeyError, ValueError):
                    found[item.index.fqn] = object_of(planner, item)
    return found


def names_parameters(key: str) -> bool:
    """Returns true for the key of an object that lists the parameters of a group."""
    return "param_groups" in key.split(".") and key.endswith(("param_groups", ".params", ".param_names"))


def equal_pieces(items: Iterable[WriteItem], planner: SavePlanner) -> Labels:
    """Returns which pieces of the model's matrices have the same elements on this rank: both names of a tied weight have."""
    alike: dict[Any, list[WriteItem]] = collections.defaultdict(list)
    for item in items:
        data = item.tensor_data
        if data is None or len(data.size) < 2 or _STATE.search(item.index.fqn):
            continue
        box = box_of(item)
        if box.elements > 0:
            alike[data.properties.dtype, tuple(data.size), box].append(item)
    labels: Labels = {}
    for (_, _, box), candidates in alike.items():
        by_sample: dict[bytes, list[tuple[WriteItem, torch.Tensor]]] = collections.defaultdict(list)
        for item in candidates if len(candidates) > 1 else ():
            values = planner.resolve_data(item)
            assert isinstance(values, torch.Tensor)
            require_dense(values, item.index.fqn)
            values = values.detach()
            sample = flat_elements(values[(0,) * (values.ndim - 1)][:_SAMPLE]).cpu().view(torch.uint8)
            by_sample[sample.numpy().tobytes()].append((item, values))
        for same in by_sample.values():
            for number, (item, values) in enumerate(same):
                for other, (earlier, known) in enumerate(same[:number]):
                    if _same_elements(values, known):
                        label = labels.setdefault((earlier.index.fqn, box.offset), len(labels))
                        labels[item.index.fqn, box.offset] = label
                        break
    return labels


def _same_elements(a: torch.Tensor, b: torch.Tensor) -> bool:
    if _memory(a) == _memory(b):
        return True
    return torch.equal(flat_elements(a).view(torch.uint8), flat_elements(b).view(torch.uint8))


def _memory(a: torch.Tensor) -> Any:
    return a.data_ptr(), a.stride(), a.device, a.is_conj(), a.is_neg()


def _equal(pieces: dict[str, list[tuple[int, tuple[int, ...]]]], labels: list[Labels]) -> dict[str, str]:
    """Returns the same text for keys whose pieces are all equal."""
    names: dict[str, str] = {}
    partners: dict[tuple[int, tuple[int, ...], int], list[str]] = collections.defaultdict(list)
    for rank, known in enumerate(labels):
        for (key, offset), label in known.items():
            partners[rank, offset, label].append(key)
    for key, places in pieces.items():
        common: Optional[set[str]] = None
        for rank, offset in places:
            label = labels[rank].get((key, offset), -1)
            common = set(partners.get((rank, offset, label), ())) & (common if common is not None else pieces.keys())
        for other in sorted((common or set()) - {key}):
            names[key] = names[other] = names.get(key) or names.get(other) or key
    return names


def _paths(plans: list[SavePlan]) -> dict[str, list[Any]]:
    """Returns the path of each key, in the order of the state dict, as DefaultSavePlanner records and merges them."""
    paths: dict[str, list[Any]] = {}
    for plan in reversed(plans):
        recorded = plan.planner_data if isinstance(plan.planner_data, dict) else {}
        for key, path in recorded.items():
            if isinstance(path, tuple) and ".".join(map(str, path)) == key:
                paths[key] = list(path)
    return paths


def full_plans(plans: list[SavePlan]) -> list[SavePlan]:
    """Returns the plans with the items that a planner with a cache leaves out (enable_plan_caching) because they are unchanged."""
    if all(getattr(plan, "usable", True) for plan in plans):
        return plans
    cached: list[list[SavePlan]] = [one for one in getattr(SavePlanner, "_cached_global_plan", {}).values() if len(one) == len(plans)]
    if len(cached) != 1:
        raise Error("unsupported", "the planner's cache does not tell which plan is meant", "save with enable_plan_caching=False")
    return cached[0]
