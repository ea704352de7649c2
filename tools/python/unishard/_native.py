"""The functions of unishard_c.h, called through ctypes. ctypes releases the interpreter's lock during each call."""

from __future__ import annotations

import ctypes
import json
import math
import os
from collections.abc import Callable, Sequence
from typing import Any, Optional, Union, cast

from ._errors import Error
from ._place import folder

_VERSION = 5


def _load() -> ctypes.CDLL:
    path = os.path.join(folder(), "libunishard_c.so")
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise ImportError(f"unishard: {error}; install the package from a wheel, or set UNISHARD_LIBRARY_DIR to the folder bin of a "
                          "build tree") from error
    library.unishard_c_version.restype = ctypes.c_int
    if library.unishard_c_version() != _VERSION:
        raise ImportError(f"unishard: {path} belongs to another version of the package; install the package again")
    text, pointer = ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)
    for name, arguments in {
        "unishard_open": [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int, pointer],
        "unishard_describe": [ctypes.c_void_p, pointer],
        "unishard_read": [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_uint64,
                          ctypes.c_uint],
        "unishard_read_box": [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p,
                              ctypes.c_uint64, ctypes.c_uint],
        "unishard_read_parts": [ctypes.c_void_p, pointer],
        "unishard_verify_reads": [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_char_p, ctypes.c_uint],
        "unishard_save_begin": [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, pointer, pointer],
        "unishard_save_describe": [ctypes.c_void_p, ctypes.c_char_p],
        "unishard_plan_state_dict": [ctypes.c_char_p, pointer],
        "unishard_save_publish": [ctypes.c_void_p, ctypes.c_char_p, pointer],
        "unishard_run_begin": [ctypes.c_char_p, ctypes.c_int, ctypes.c_int, pointer, pointer],
        "unishard_next_commit": [ctypes.c_char_p, ctypes.POINTER(ctypes.c_uint64)],
        "unishard_shard_begin": [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_uint32, ctypes.c_char_p, ctypes.c_char_p,
                                 pointer],
        "unishard_shard_write": [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_uint64],
        "unishard_shard_finish": [ctypes.c_void_p, pointer],
    }.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, text
    library.unishard_run_is_held.argtypes, library.unishard_run_is_held.restype = [ctypes.c_void_p], ctypes.c_int
    for name in ("unishard_free", "unishard_close", "unishard_run_free", "unishard_save_free", "unishard_shard_free"):
        getattr(library, name).argtypes, getattr(library, name).restype = [ctypes.c_void_p], None
    return library


_library = _load()


def _take(address: Optional[int]) -> bytes:
    """Returns a copy of a text of the library, and frees it."""
    try:
        return ctypes.string_at(address or 0)
    finally:
        _library.unishard_free(address)


def _check(address: Optional[int], tensor: Optional[tuple[str, str]] = None) -> None:
    if address:
        error = json.loads(_take(address))
        raise Error(error["code"], error["message"], error["hint"], tensor=tensor)


def _encoded(text: str, what: str) -> bytes:
    if "\0" in text:
        raise ValueError(f"{what} has a null character")
    return os.fsencode(text)


class _Owned:
    """An object of the library. It is freed when the last reference goes, so that a call on another thread ends first.

    A process that was forked after it was made leaves it alone: the folders and threads behind it are the parent's.
    """

    def __init__(self, free: str) -> None:
        self.pointer = ctypes.c_void_p()
        self._free = getattr(_library, free)
        self._process = os.getpid()

    def __del__(self, getpid: Callable[[], int] = os.getpid) -> None:  # at the interpreter's end, the module os is gone
        if self.pointer and self._process == getpid():
            self._free(self.pointer)


class _Closed:
    """Base of the classes that close() frees early. A call that is under way ends first, and later ones raise Error."""

    def __init__(self, free: str) -> None:
        self._owned: Optional[_Owned] = _Owned(free)

    def _own(self) -> _Owned:
        owned = self._owned
        if owned is None:
            raise Error("cancelled", "the save was given up")
        return owned

    def close(self) -> None:
        self._owned = None


class Handle:
    """An open checkpoint of the library. It is closed when the last reference goes."""

    def __init__(self, path: str, tag: Optional[str], assume_model_order: bool = False) -> None:
        self._owned = _Owned("unishard_close")
        self._pointer = self._owned.pointer
        _check(_library.unishard_open(_encoded(path, "the path"), None if tag is None else _encoded(tag, "the tag"),
                                      int(assume_model_order), ctypes.byref(self._pointer)))

    def describe(self) -> dict[str, Any]:
        text = ctypes.c_void_p()
        _check(_library.unishard_describe(self._pointer, ctypes.byref(text)))
        described: dict[str, Any] = json.loads(_take(text.value))
        return described

    def read(self, tensor: int, begin: int, end: int, address: int, size: int, threads: int, label: tuple[str, str]) -> None:
        """Reads elements [begin, end) into `size` bytes of memory at `address`, which the caller keeps alive."""
        _check(_library.unishard_read(self._pointer, tensor, begin, end, address, size, threads), label)

    def read_box(self, tensor: int, offsets: Sequence[int], sizes: Sequence[int], address: int, size: int, threads: int,
                 label: tuple[str, str]) -> None:
        """Reads a box into `size` bytes of memory at `address`, which the caller keeps alive."""
        axes = ctypes.c_uint64 * len(sizes)
        _check(_library.unishard_read_box(self._pointer, tensor, axes(*offsets), axes(*sizes), len(sizes), address, size, threads),
               label)

    def read_parts(self) -> str:
        """Returns what this process has read, for verify_reads() of all ranks."""
        text = ctypes.c_void_p()
        _check(_library.unishard_read_parts(self._pointer, ctypes.byref(text)))
        parts: str = json.loads(_take(text.value))
        return parts

    def verify_reads(self, rank: int, parts: list[str], threads: int) -> None:
        """Compares the checksums of everything of which the ranks have read a part. Not beside a read."""
        _check(_library.unishard_verify_reads(self._pointer, rank, len(parts), _dumped(parts), threads))


def _dumped(value: Any) -> bytes:
    return json.dumps(value, allow_nan=False).encode()


def plan_state_dict(described: dict[str, Any]) -> dict[str, Any]:
    """Returns the catalog of a state dict that is about to be saved; planned_state_dict.hpp describes both."""
    text = ctypes.c_void_p()
    _check(_library.unishard_plan_state_dict(_dumped(described), ctypes.byref(text)))
    planned: dict[str, Any] = json.loads(_take(text.value))
    return planned


class Run(_Closed):
    """A claim on a folder for the saves of one run, until close(). Not thread-safe."""

    def __init__(self, folder: str, continues: bool, fresh: bool) -> None:
        super().__init__("unishard_run_free")
        decision = ctypes.c_void_p()
        _check(_library.unishard_run_begin(_encoded(folder, "the folder"), continues, fresh, ctypes.byref(self._own().pointer),
                                           ctypes.byref(decision)))
        decided = json.loads(_take(decision.value))
        self.is_beside: bool = decided["beside"]
        self.is_beside_whole: bool = decided["beside_whole"]

    def is_held(self) -> bool:
        """Returns false when the folder was removed, or another run has taken it over."""
        return self._owned is not None and bool(_library.unishard_run_is_held(self._owned.pointer))


def next_commit(folder: str) -> int:
    """Returns the number that the next checkpoint of a folder gets."""
    number = ctypes.c_uint64()
    _check(_library.unishard_next_commit(_encoded(folder, "the folder"), ctypes.byref(number)))
    return number.value


class Save(_Closed):
    """Rank 0's part of a save. close() removes what was not published. Not thread-safe."""

    def __init__(self, folder: str, tag: str, catalog: dict[str, Any], options: dict[str, Any]) -> None:
        super().__init__("unishard_save_free")
        place = ctypes.c_void_p()
        _check(_library.unishard_save_begin(_encoded(folder, "the folder"), _encoded(tag, "the tag"), _dumped(catalog), _dumped(options),
                                            ctypes.byref(self._own().pointer), ctypes.byref(place)))
        self.place: dict[str, str] = {"folder": folder, **json.loads(_take(place.value))}

    def describe(self, catalog: dict[str, Any]) -> None:
        """Replaces the catalog by one with the same tensors."""
        owned = self._own()
        _check(_library.unishard_save_describe(owned.pointer, _dumped(catalog)))

    def publish(self, entries: list[dict[str, Any]]) -> list[str]:
        """Commits the checkpoint. Returns sentences on what failed afterwards."""
        warnings = ctypes.c_void_p()
        owned = self._own()
        _check(_library.unishard_save_publish(owned.pointer, _dumped(entries), ctypes.byref(warnings)))
        sentences: list[str] = json.loads(_take(warnings.value))
        return sentences


# What a shard holds of a tensor: (tensor, begin, end) for a range of elements, or (tensor, offsets, sizes) for a box.
Fragment = Union[tuple[int, int, int], tuple[int, Sequence[int], Sequence[int]]]


def written_elements(fragment: Fragment) -> tuple[int, int]:
    """Returns all elements [begin, end) of a fragment as Shard.write() counts them: those of a box from 0 on."""
    _, first, second = fragment
    if isinstance(first, int) and isinstance(second, int):
        return first, second
    return 0, math.prod(cast(Sequence[int], second))


class Shard(_Closed):
    """One rank's part of a save. `fragments` are in the order of tensors and first elements. close() removes what was not finished."""

    def __init__(self, place: dict[str, str], catalog: dict[str, Any], rank: int, fragments: Sequence[Fragment],
                 options: dict[str, Any]) -> None:
        super().__init__("unishard_shard_free")
        within = {key: value for key, value in place.items() if key != "folder"}  # whose name need not be text
        _check(_library.unishard_shard_begin(_encoded(place["folder"], "the folder"), _dumped(within), _dumped(catalog), rank,
                                             _dumped(fragments), _dumped(options), ctypes.byref(self._own().pointer)))

    def write(self, fragment: int, begin: int, end: int, address: int, size: int) -> None:
        """Writes elements [begin, end) of fragment number `fragment` from `size` bytes of memory at `address`. Thread-safe.

        A range counts the elements of the tensor, and a box its own elements: written_elements() returns all of a fragment.
        """
        owned = self._own()
        _check(_library.unishard_shard_write(owned.pointer, fragment, begin, end, address, size))

    def finish(self) -> dict[str, Any]:
        entry = ctypes.c_void_p()
        owned = self._own()
        _check(_library.unishard_shard_finish(owned.pointer, ctypes.byref(entry)))
        described: dict[str, Any] = json.loads(_take(entry.value))
        return described
