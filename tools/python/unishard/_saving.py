"""Writes tensors of a torch job as a UniShard checkpoint: each rank its own parts, rank 0 the commit."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Optional, Union

from . import _background as background
from . import _native
from . import _ranks as ranks
from . import _runs as runs
from ._background import AsyncSave
from ._errors import Error
from ._parts import Part, write_shard
from ._snapshot import Snapshot

_MOST_STEPS = (1 << 63) - 1
_MOST_TAGS = (1 << 32) - 1


class Target(NamedTuple):
    """Where a save goes."""

    folder: str
    tag: str
    fresh: bool = False
    is_inside: bool = False  # the folder is one checkpoint of a trainer, which decides itself what it replaces

    @property
    def path(self) -> Path:
        return Path(self.folder) / self.tag


class Plan(NamedTuple):
    """What is saved. The catalog and the options are the same on all ranks.

    own_parts: returns what this rank writes, sorted by tensor and first element. Over all ranks, each element occurs once.
    options: those of unishard_save_begin() in unishard_c.h.
    """

    target: Target
    catalog: dict[str, Any]
    own_parts: Callable[[], list[Part]]
    options: dict[str, Any]


class _Transaction:
    """A save that has begun, for the run of this job. All ranks make one; readers see nothing of it before complete() has ended.

    Making one waits for the asynchronous saves of this process, and raises the error of one that has failed if nobody knows of it.
    """

    def __init__(self, plan: Plan) -> None:
        self.waited = 0.0
        self._target, self._catalog, self._options = plan.target, plan.catalog, plan.options
        self._claim: Optional[runs.Claim] = None
        self._save = ranks.together("beginning the save", self._begin)
        self._place: dict[str, str] = ranks.from_first(self._save.place if self._save else {})

    def _begin(self) -> Optional[_native.Save]:
        began = time.monotonic()
        background.settle()
        self.waited = time.monotonic() - began
        if ranks.rank() != 0:
            return None
        folder, tag = self._target.folder, self._target.tag
        if self._target.is_inside:
            return _native.Save(folder, tag, self._catalog, {**self._options, "inside": True})
        self._claim = runs.claim(folder, self._target.fresh)
        reserved = {"commit_number": runs.reserve(folder)}
        return _native.Save(folder, tag, self._catalog, {**self._claim.options(tag, self._options), **reserved})

    def complete(self, own_parts: Callable[[], list[Part]], group: ranks.Group = None) -> None:
        """Writes the parts and commits the checkpoint. All ranks of the group call it."""
        def write() -> dict[str, Any]:
            return write_shard(self._place, self._catalog, ranks.rank(group), own_parts(), self._options)

        with contextlib.closing(self):
            entries = ranks.gathered(ranks.together("writing the shards", write, group), group)
            ranks.together("committing the checkpoint", lambda: self._save.publish(entries) if self._save else None, group)
            if self._claim:
                self._claim.saved(self._target.tag)

    def close(self) -> None:
        """Removes what was not committed."""
        if self._save:
            self._save.close()


def save_together(plan: Plan) -> Path:
    """Writes and commits a checkpoint. All ranks call it. Returns its folder.

    Raises Error on every rank; then readers see nothing of the save.
    """
    _Transaction(plan).complete(plan.own_parts)
    return plan.target.path


def save_in_background(plan: Plan) -> AsyncSave:
    """Begins a save, copies what this rank writes, and writes and commits it on a thread. All ranks call it.

    Raises Error on every rank for what is wrong before the data are written; then readers see nothing of the save.
    """
    transaction = _Transaction(_wherever(plan))
    try:
        group = ranks.group_beside_training()
        snapshot = ranks.together("copying the state", lambda: Snapshot(plan.own_parts()))
    except BaseException:
        transaction.close()
        raise

    def work() -> None:
        try:
            transaction.complete(lambda: snapshot.parts, group)
        finally:
            snapshot.release()

    return background.start(work, transaction.close, plan.target.path, transaction.waited)


def _wherever(plan: Plan) -> Plan:
    """Returns the plan with paths that do not depend on the current folder, which the caller may change."""
    base = plan.options.get("base")
    return plan._replace(target=plan.target._replace(folder=os.path.abspath(plan.target.folder)),
                         options={**plan.options, "base": os.path.abspath(base) if base else ""})


def require_count(name: str, count: Any, most: int, least: int = 0) -> None:
    """Raises Error for what is no count, such as a float or a negative number."""
    if isinstance(count, bool) or not hasattr(count, "__index__") or not least <= count <= most:
        raise Error("invalid argument", f"{name} is {count!r}, and not an integer from {least} to {most}")


def require_arguments(*, step: int, keep_last: int, tag: Optional[str], compress: str, client_state: Optional[dict[str, Any]] = None) -> None:
    """Raises Error, naming the argument, for what is no count, no text or no dict."""
    require_count("step", step, _MOST_STEPS)
    require_count("keep_last", keep_last, _MOST_TAGS)
    if tag is not None and not isinstance(tag, str):
        raise Error("invalid argument", f"tag is {tag!r}, and not a text")
    if not isinstance(compress, str):
        raise Error("invalid argument", f"compress is {compress!r}, and not a text")
    if client_state is not None and not isinstance(client_state, dict):
        raise Error("invalid argument", f"client_state is {client_state!r}, and not a dict")


def path_of(folder: Union[str, bytes, os.PathLike[Any]]) -> str:
    """Returns the path of a folder as text. Raises Error for an empty one."""
    path = os.fsdecode(folder)
    if not path:
        raise Error("invalid argument", "the folder is an empty text", "name one; \".\" is the current folder")
    return path
