"""Writes tensors of a torch job as a UniShard checkpoint: each rank its own parts, rank 0 the commit."""

from __future__ import annotations

import concurrent.futures
import os
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Optional, Union

import torch

from . import _native
from . import _ranks as ranks
from . import _runs as runs
from ._errors import Error

_THREADS = 4
_PIECE_BYTES = 32 << 20
_MOST_STEPS = (1 << 63) - 1
_MOST_TAGS = (1 << 32) - 1


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


class Target(NamedTuple):
    """Where a save goes."""

    folder: str
    tag: str
    fresh: bool = False
    is_inside: bool = False  # the folder is one checkpoint of a trainer, which decides itself what it replaces


def save_together(target: Target, catalog: dict[str, Any], own_parts: Callable[[], list[Part]], options: dict[str, Any],
                  group: ranks.Group = None) -> None:
    """Writes and commits a checkpoint for the run of this job. All ranks of the group call it with the same catalog and options.

    own_parts: returns what this rank writes, sorted by tensor and first element. Over all ranks, each element occurs once.
    options: those of unishard_save_begin() in unishard_c.h.
    Raises Error on every rank; then readers see nothing of the save.
    """
    claim = None

    def begin() -> Optional[_native.Save]:
        nonlocal claim
        if ranks.rank(group) != 0:
            return None
        if target.is_inside:
            return _native.Save(target.folder, target.tag, catalog, {**options, "inside": True})
        claim = runs.claim(target.folder, target.fresh)
        reserved = {"commit_number": runs.reserve(target.folder)}
        return _native.Save(target.folder, target.tag, catalog, {**claim.options(target.tag, options), **reserved})

    transaction = ranks.together("beginning the save", begin, group)
    try:
        place = ranks.from_first(transaction.place if transaction else {}, group)
        write = lambda: write_shard(place, catalog, ranks.rank(group), own_parts(), options)  # noqa: E731
        entries = ranks.gathered(ranks.together("writing the shards", write, group), group)
        ranks.together("committing the checkpoint", lambda: transaction.publish(entries) if transaction else None, group)
        if claim:
            claim.saved(target.tag)
    finally:
        if transaction:
            transaction.close()


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
    for number, part in parts:
        begin, end = _native.written_elements(part.fragment)
        for low in range(begin, end, most):
            high = min(end, low + most)
            values = flat[part.at + low - begin:part.at + high - begin].cpu()
            shard.write(number, low, high, values.data_ptr(), (high - low) * size)
