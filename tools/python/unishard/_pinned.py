"""Memory of the host to which devices copy by themselves."""

from __future__ import annotations

import contextlib
import warnings
import weakref
from typing import NamedTuple, Optional

import torch

_PORTABLE = 1  # cudaHostRegisterPortable: pinned for all devices


class Memory(NamedTuple):
    """Memory of the host. serves_devices: it is pinned for copies from a device, or cannot be, and such copies are slow."""

    content: torch.Tensor
    serves_devices: bool


def take(spare: list[Memory], size: int, device: Optional[torch.device]) -> Memory:
    """Returns memory of at least `size` bytes: spare memory where it suffices. `device`: one from which copies come. Thread-safe."""
    with contextlib.suppress(IndexError):
        while True:
            memory = spare.pop()
            if memory.content.numel() >= size and memory.serves_devices >= (device is not None):
                return memory
            del memory  # before more is allocated
    content = torch.empty(size, dtype=torch.uint8, device="cpu")
    if device is not None and size:
        _pin(content, device)
    return Memory(content, device is not None)


def _pin(content: torch.Tensor, device: torch.device) -> None:
    """Pins memory, because torch's own pinned memory has sizes that are powers of two. Warns where that fails.

    The calls are made for `device`, because CUDA opens a context on the current device, which may be another rank's.
    """
    try:
        with torch.cuda.device(device):
            torch.cuda.check_error(torch.cuda.cudart().cudaHostRegister(content.data_ptr(), content.numel(), _PORTABLE))
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        warnings.warn(f"{content.numel()} bytes of memory cannot be pinned, so copies from {device} are slow: {reason}", stacklevel=2)
        _forget_error(device)
    else:
        weakref.finalize(content, _unpin, content.data_ptr(), device).atexit = False


def _unpin(address: int, device: torch.device) -> None:
    with torch.cuda.device(device):
        torch.cuda.cudart().cudaHostUnregister(address)


def _forget_error(device: torch.device) -> None:
    """Lets a kernel of no use report the error that CUDA keeps, which the training's next kernel would report as its own."""
    with contextlib.suppress(RuntimeError, AssertionError):
        torch.ones(1, device=device).add_(1)
