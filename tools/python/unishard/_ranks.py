"""What the ranks of a torch.distributed job do together. Without a process group, the job has one rank."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from typing import Any, Optional, TypeVar

import torch.distributed as dist

from . import _checkpoint
from ._background import settle
from ._errors import Error

Value = TypeVar("Value")
Group = Optional[dist.ProcessGroup]  # None: the default process group


# A group is asked itself, because dist does not know it any longer after destroy_process_group().
def rank(group: Group = None) -> int:
    if group is not None:
        return group.rank()
    return dist.get_rank() if dist.is_initialized() else 0


def world_size(group: Group = None) -> int:
    if group is not None:
        return group.size()
    return dist.get_world_size() if dist.is_initialized() else 1


def gathered(value: Value, group: Group = None) -> list[Value]:
    """Returns every rank's value, in rank order."""
    if group is None and not dist.is_initialized():
        return [value]
    values: list[Any] = [None] * world_size(group)
    dist.all_gather_object(values, value, group=group)
    return values


def from_first(value: Value, group: Group = None) -> Value:
    """Returns rank 0's value."""
    return gathered(value, group)[0]


def together(what: str, work: Callable[[], Value], group: Group = None) -> Value:
    """Runs `work`, which does not communicate, on every rank. When it fails on any, raises on all, Error with the same code.

    A result that has a method close() is closed then.
    """
    failure: Optional[Exception] = None
    value: Any = None
    try:
        value = work()
    except Exception as error:
        failure = error
    code = failure.code if isinstance(failure, Error) else "peer failed"
    outcomes = gathered((code, str(failure)) if failure else None, group)
    if failure:
        raise failure
    for number, outcome in enumerate(outcomes):
        if outcome is not None:
            if hasattr(value, "close"):
                value.close()
            raise Error(outcome[0], f"{what}: rank {number}: {outcome[1]}")
    return value  # type: ignore[no-any-return]


def group_beside_training() -> Group:
    """Returns a process group of all ranks, for calls on another thread than the training's. All ranks call it.

    It goes on when the default group is destroyed. The threads that use it take turns.
    """
    default = dist.group.WORLD if dist.is_initialized() else None
    if default is not None and (not _beside or _beside[0] is not default):
        _beside[:] = default, dist.new_group(backend="gloo")
    return _beside[1] if default is not None else None


_beside: list[dist.ProcessGroup] = []  # a default process group, and the one beside it
_process = os.getpid()


@atexit.register
def _leave_group_beside() -> None:
    """Ends the group beside the training's while Python still runs: its threads can abort a process that ends with them.

    A process that was forked has none of these threads, and leaves the group alone.
    """
    if _beside and os.getpid() == _process:
        if dist.is_initialized() and dist.group.WORLD is _beside[0]:
            dist.destroy_process_group(_beside[1])
        _beside.clear()


def open_together(path: str, tag: Optional[str]) -> _checkpoint.Checkpoint:
    """Opens one checkpoint on all ranks, rank 0's choice where `path` has several. All ranks call it.

    It waits for the asynchronous saves of this process first, and raises the error of one that has failed if nobody knows of it.
    """
    def first() -> Optional[_checkpoint.Checkpoint]:
        settle()
        return opened(tag) if rank() == 0 else None

    def opened(tag: Optional[str]) -> _checkpoint.Checkpoint:
        # The optimizer that is here tells the order of its parameters: require_order() compares.
        return _checkpoint.open(path, tag=tag, assume_model_order=True)

    checkpoint = together("opening the checkpoint", first)
    chosen = from_first(checkpoint.tag if checkpoint else None) or tag
    return together("opening the checkpoint", lambda: checkpoint or opened(chosen))


def verify_reads(checkpoint: Any) -> None:
    """Calls Checkpoint.verify_reads() for what all ranks have read, so that each missing byte is read by one of them. All ranks call it."""
    parts = gathered(together("reading the checkpoint", checkpoint._read_parts))
    together("checking what was read", lambda: checkpoint._verify_reads(rank(), parts))
