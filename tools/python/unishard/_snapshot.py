"""Copies of what a rank saves. They lie in one piece of memory, which later saves use again."""

from __future__ import annotations

import contextlib
from typing import Optional

import torch

from . import _native
from ._parts import Part, flat_elements
from ._pinned import Memory, take

_ALIGNMENT = 64  # bytes; torch's widest elements have 16


class Snapshot:
    """Copies of parts, which share no memory with the tensors of the job.

    Making one waits for the copies. Its memory serves the next snapshot after release().
    """

    def __init__(self, parts: list[Part]) -> None:
        ranges = [_native.written_elements(part.fragment) for part in parts]
        sizes = [(end - begin) * part.local.element_size() for part, (begin, end) in zip(parts, ranges)]
        device = next((part.local.device for part in parts if part.local.is_cuda), None)
        self._memory: Optional[Memory] = take(_spare, sum(map(_aligned, sizes)), device)
        self.parts: list[Part] = []
        at = 0
        for part, size in zip(parts, sizes):
            self.parts.append(Part(part.fragment, self._memory.content[at:at + size].view(part.local.dtype), 0))
            at += _aligned(size)
        _copy(parts, self.parts)

    @property
    def content(self) -> torch.Tensor:
        """Is the memory in which all copies lie, as bytes."""
        assert self._memory is not None
        return self._memory.content

    def release(self) -> None:
        """Gives the memory back. The copies must not be used afterwards. May be called again, and on any thread."""
        self.parts.clear()
        if self._memory is not None:
            _spare[:] = [self._memory]
        self._memory = None


_spare: list[Memory] = []  # of the last save that has ended


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _copy(parts: list[Part], copies: list[Part]) -> None:
    """Fills the copies. Those from a CUDA device go through one stream, beside each other, and are waited for once."""
    streams = {device: torch.cuda.Stream(device) for device in {part.local.device for part in parts} if device.type == "cuda"}
    for device, stream in streams.items():
        stream.wait_stream(torch.cuda.current_stream(device))
    for part, copy in zip(parts, copies):
        its = streams.get(part.local.device)
        with torch.cuda.stream(its) if its is not None else contextlib.nullcontext():
            source = flat_elements(part.local)[part.at:part.at + copy.local.numel()]
            copy.local.copy_(source, non_blocking=part.local.is_cuda)
    for stream in streams.values():
        stream.synchronize()
