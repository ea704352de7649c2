"""Copies of what a rank saves. They lie in one piece of memory, which later saves use again."""

from __future__ import annotations

import contextlib
import weakref
from typing import NamedTuple

import torch

from . import _native
from ._parts import Part, flat_elements

_ALIGNMENT = 64  # bytes; torch's widest elements have 16
_PORTABLE = 1  # cudaHostRegisterPortable: pinned for all devices


class Memory(NamedTuple):
    """Memory of the host. Copies from a device's memory need it pinned."""

    content: torch.Tensor
    is_pinned: bool


class Snapshot:
    """Copies of parts, which share no memory with the tensors of the job.

    Making one waits for the copies. Its memory serves the next snapshot after release().
    """

    def __init__(self, parts: list[Part]) -> None:
        ranges = [_native.written_elements(part.fragment) for part in parts]
        sizes = [(end - begin) * part.local.element_size() for part, (begin, end) in zip(parts, ranges)]
        self._memory = _take(sum(map(_aligned, sizes)), any(part.local.is_cuda for part in parts))
        self.parts: list[Part] = []
        at = 0
        for part, size in zip(parts, sizes):
            self.parts.append(Part(part.fragment, self._memory.content[at:at + size].view(part.local.dtype), 0))
            at += _aligned(size)
        _copy(parts, self.parts)

    def release(self) -> None:
        """Gives the memory back. The copies must not be used afterwards."""
        self.parts.clear()
        _spare[:] = [self._memory]
        del self._memory


_spare: list[Memory] = []  # of the last save that has ended


def _take(size: int, is_pinned: bool) -> Memory:
    """Returns memory of at least `size` bytes: that of an earlier save where it suffices."""
    while _spare:
        memory = _spare.pop()
        if memory.content.numel() >= size and memory.is_pinned >= is_pinned:
            return memory
        del memory  # before more is allocated
    content = torch.empty(size, dtype=torch.uint8, device="cpu")
    if is_pinned and size:  # torch's own pinned memory has sizes that are powers of two
        torch.cuda.check_error(torch.cuda.cudart().cudaHostRegister(content.data_ptr(), size, _PORTABLE))
        weakref.finalize(content, torch.cuda.cudart().cudaHostUnregister, content.data_ptr()).atexit = False
    return Memory(content, is_pinned)


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
