"""What the ranks of a torch.distributed job do together. Without a process group, the job has one rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Optional, TypeVar

import torch.distributed as dist

from ._errors import Error

Value = TypeVar("Value")
Group = Optional[dist.ProcessGroup]  # None: the default process group


def rank(group: Group = None) -> int:
    return dist.get_rank(group) if dist.is_initialized() else 0


def world_size(group: Group = None) -> int:
    return dist.get_world_size(group) if dist.is_initialized() else 1


def gathered(value: Value, group: Group = None) -> list[Value]:
    """Returns every rank's value, in rank order."""
    if not dist.is_initialized():
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


def verify_reads(checkpoint: Any) -> None:
    """Calls Checkpoint.verify_reads() for what all ranks have read, so that each missing byte is read by one of them. All ranks call it."""
    parts = gathered(together("reading the checkpoint", checkpoint._read_parts))
    together("checking what was read", lambda: checkpoint._verify_reads(rank(), parts))
