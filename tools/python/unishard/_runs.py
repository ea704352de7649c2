"""Whose checkpoints a folder has: a job replaces, removes and leads readers away from none but its own run's."""

from __future__ import annotations

import atexit
import os
import threading
from typing import Any, Optional

from . import _checkpoint, _native
from ._errors import Error


class Claim:
    """The right of this process, rank 0 of its job, to save tags to one folder until it ends. Thread-safe."""

    def __init__(self, folder: str, fresh: bool) -> None:
        self._folder = folder
        self._process = os.getpid()
        self._run = _native.Run(folder, _key(folder) in _loaded, fresh)
        self._own: set[str] = set()

    @property
    def is_held(self) -> bool:
        """Returns false when the folder was removed or taken over, and in a process that was forked after the claim."""
        return self._process == os.getpid() and self._run.is_held()

    def options(self, tag: str, options: dict[str, Any]) -> dict[str, Any]:
        """Returns the options of a save with which nothing of another run is replaced or removed."""
        if self._run.is_beside_whole and options["keep_last"] > 0:
            raise Error("invalid argument", f"keep_last would remove checkpoints of another run from {self._folder}",
                        "save to another folder, or leave keep_last out; nothing was saved")
        is_free = not self._run.is_beside or tag in self._own
        return {**options, "replace": options["replace"] and is_free}

    def saved(self, tag: str) -> None:
        """Tells that this run has saved the tag."""
        self._own.add(tag)

    def close(self) -> None:
        if self._process == os.getpid():
            self._run.close()


_claiming = threading.Lock()
_claims: dict[str, Claim] = {}
_numbers: dict[str, int] = {}  # by folder: the last commit number that was reserved
_begun: dict[str, tuple[int, int]] = {}  # by folder: of the saves that have begun, the one that was meant last, and its step
_loaded: set[str] = set()  # folders of which this process has loaded a checkpoint


def claim(folder: str, fresh: bool) -> Claim:
    """Claims a folder for the run of this process, or returns the claim that it has.

    fresh: the run may begin beside what the folder has. It counts for the first save of a process.
    Raises Error: "already exists" when the folder has checkpoints, this process has loaded none of them, and it is not `fresh`, or when
    another program uses the folder; "busy" when another run saves there.
    """
    key = _key(folder)
    with _claiming:
        known = _claims.get(key)
        if known is None or not known.is_held:
            known = _claims[key] = Claim(folder, fresh)
        return known


def reserve(folder: str) -> int:
    """Returns a commit number for a save that is started now, above those of all that were started before; 0 where the folder cannot be read."""
    key = _key(folder)
    with _claiming:
        try:
            _numbers[key] = max(_native.next_commit(folder), _numbers.get(key, 0) + 1)
        except Error:  # the save itself reports what is wrong
            return 0
        return _numbers[key]


def begin(folder: str, meant: int, step: Optional[int]) -> int:
    """Returns the commit number of a save that begins now. `meant`: what reserve() returned when the caller decided on the save.

    Saves in the background may begin in another order than they were meant. One of a lower step than a save that was meant after it,
    and has begun, is the older one: its number is `meant`, so that it neither moves `latest` back nor removes the other.
    """
    key = _key(folder)
    number = reserve(folder)
    if not meant or step is None:
        return number
    with _claiming:
        later, its_step = _begun.get(key, (0, 0))
        if later > meant and its_step > step:
            return meant
        _begun[key] = (meant, step)
    return number


def note_loaded(checkpoint: _checkpoint.Checkpoint) -> None:
    """Tells that this process goes on from a checkpoint: saves to its folder belong to the same run."""
    if checkpoint.format == "native":
        given = checkpoint._given
        _loaded.add(_key(os.path.dirname(given) if os.path.exists(os.path.join(given, "manifest.json")) else given))


def _key(folder: str) -> str:
    return os.path.realpath(folder)


def _unlock() -> None:
    """Gives a process that was forked a lock that no thread of its parent holds."""
    global _claiming
    _claiming = threading.Lock()


os.register_at_fork(after_in_child=_unlock)


@atexit.register
def _close_claims() -> None:
    for one in _claims.values():
        one.close()
