"""The parts of tensors that one rank writes, and the file in which it writes them."""

from __future__ import annotations

import concurrent.futures
import contextlib
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Optional

import torch

from . import _native
from ._errors import Error
from ._pinned import Memory, take

_THREADS = 4
_PIECE_BYTES = 32 << 20
_pieces: list[Memory] = []  # to which threads have copied pieces from devices


class Part(NamedTuple):
    """What one rank writes as one fragment of a tensor."""

    fragment: _native.Fragment  # with the number of the tensor in the catalog
    local: torch.Tensor  # holds the elements in row-major order
    at: int  # place of the first element within `local`


def flat_elements(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the elements in row-major order, with their values in memory: a conjugate or a negative may be a view of other values."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous().view(-1)


def require_dense(tensor: torch.Tensor, name: str) -> None:
    """Raises Error for a tensor that is not a block of elements in memory, naming it."""
    kinds = {"sparse": tensor.layout is not torch.strided, "on the meta device, without data": tensor.is_meta,
             "nested": tensor.is_nested, "quantized": tensor.is_quantized}
    for kind, is_one in kinds.items():
        if is_one:
            raise Error("unsupported", f"{name} is a tensor that is {kind}", "save a dense copy of it, or leave it out; nothing was saved")


def is_row_major(tensor: torch.Tensor) -> bool:
    """Returns true when the tensor's memory has the bytes of flat_elements()."""
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def write_shard(place: dict[str, str], catalog: dict[str, Any], rank: int, parts: list[Part], options: dict[str, Any]) -> dict[str, Any]:
    """Writes one rank's file. Returns its entry for Save.publish()."""
    shard = _native.Shard(place, catalog, rank, [part.fragment for part in parts], options)
    pool = concurrent.futures.ThreadPoolExecutor(_THREADS)
    try:
        writes = []
        for group in _by_tensor(parts):
            try:
                writes.append(pool.submit(_write, shard, group))
            except RuntimeError:  # the interpreter ends while an asynchronous save goes on, and takes no more work for threads
                _write(shard, group)
        for one in writes:
            one.result()
        return shard.finish()
    finally:
        shard.close()  # after an exception, such as KeyboardInterrupt, this ends the threads
        pool.shutdown(cancel_futures=True)


def _by_tensor(parts: list[Part]) -> Iterable[list[tuple[int, Part]]]:
    """Yields the parts of one tensor in memory, with their numbers, so that it is made contiguous once."""
    group: list[tuple[int, Part]] = []
    for number, part in enumerate(parts):
        if group and group[-1][1].local is not part.local:
            yield group
            group = []
        group.append((number, part))
    if group:
        yield group


def _write(shard: _native.Shard, parts: list[tuple[int, Part]]) -> None:
    flat = flat_elements(parts[0][1].local)
    size = flat.element_size()
    most = max(1, _PIECE_BYTES // size)
    with _memory_for(flat) as memory:
        for number, part in parts:
            begin, end = _native.written_elements(part.fragment)
            for low in range(begin, end, most):
                high = min(end, low + most)
                values = _on_host(flat[part.at + low - begin:part.at + high - begin], memory)
                shard.write(number, low, high, values.data_ptr(), (high - low) * size)


@contextlib.contextmanager
def _memory_for(flat: torch.Tensor) -> Iterator[Optional[torch.Tensor]]:
    """Lends memory for the pieces of a tensor on a CUDA device, which later pieces use again."""
    if not flat.is_cuda:
        yield None
        return
    memory = take(_pieces, _PIECE_BYTES, flat.device)
    try:
        yield memory.content
    finally:
        _pieces.append(memory)


def _on_host(values: torch.Tensor, memory: Optional[torch.Tensor]) -> torch.Tensor:
    if memory is None:
        return values.cpu()
    return memory[:values.numel() * values.element_size()].view(values.dtype).copy_(values)
