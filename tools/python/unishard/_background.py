"""Saves that go on beside the training, each on a thread of its own."""

from __future__ import annotations

import atexit
import math
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Optional

from ._errors import Error

_PATIENCE = 0.1  # seconds between looks at whether a save has ended


class AsyncSave:
    """A save that async_save() has started. Thread-safe.

    waited: the seconds for which async_save() waited, because an earlier save of this process was still being written.
    """

    def __init__(self, path: Path, waited: float) -> None:
        self.waited = waited
        self._path = path
        self._has_ended = False
        self._running = threading.Lock()  # held until the end; an Event can stay locked when Ctrl-C comes in its wait()
        self._running.acquire()
        self._error: Optional[BaseException] = None

    def done(self) -> bool:
        """Returns whether the save has ended, with success or an error."""
        return self._has_ended

    def result(self, timeout: Optional[float] = None) -> Path:
        """Waits for the end of the save and returns the folder of the checkpoint, which is then complete.

        Raises what save() would raise, and TimeoutError when the save goes on after `timeout` seconds.
        """
        if not self._wait(timeout):
            raise TimeoutError(f"the save of {self._path} still goes on after {timeout} seconds")
        _unsettled.discard(self)
        if self._error is not None:
            raise self._error
        return self._path

    def _run(self, work: Callable[[], object]) -> None:
        _unsettled.add(self)
        try:
            work()
            _unsettled.discard(self)
        except BaseException as error:
            traceback.clear_frames(error.__traceback__)  # they hold the copies of the state
            self._error = error
        self._has_ended = True
        self._running.release()

    def _wait(self, timeout: Optional[float] = None) -> bool:
        end = math.inf if timeout is None else time.monotonic() + timeout
        while not self._has_ended and time.monotonic() < end:
            if self._running.acquire(timeout=max(0.0, min(_PATIENCE, end - time.monotonic()))):
                self._running.release()
        return self._has_ended

    def _settle(self) -> None:
        self._wait()
        if self._error is not None and self in _unsettled:
            _unsettled.discard(self)
            code, hint = (self._error.code, self._error.hint) if isinstance(self._error, Error) else ("peer failed", "")
            message = self._error.message if isinstance(self._error, Error) else str(self._error)
            raise Error(code, f"the asynchronous save of {self._path} has failed: {message}", hint) from self._error

    def _leave(self) -> None:
        """Ends the save in a process that was forked meanwhile and has no thread that writes it."""
        self._error = Error("cancelled", f"the save of {self._path} goes on in the process that has started it")
        self._has_ended = True


_unsettled: set[AsyncSave] = set()  # saves that go on, and failed ones of which no caller knows yet


def start(work: Callable[[], object], give_up: Callable[[], object], path: Path, waited: float) -> AsyncSave:
    """Starts `work`, which saves to `path`, on a thread, or calls give_up(). The interpreter's end waits for the thread."""
    save = AsyncSave(path, waited)
    thread = threading.Thread(target=save._run, args=(work,), name="unishard-async-save")
    try:
        _unsettled.add(save)
        thread.start()
    except RuntimeError:  # no thread can be started, for example because the interpreter ends
        save._run(work)
    except BaseException:  # such as KeyboardInterrupt
        if thread.ident is None:
            _unsettled.discard(save)  # which the thread undoes, should it start after all
            give_up()
        raise
    return save


def settle() -> None:
    """Waits for the saves that go on. Raises the error of one that has failed when no caller of result() knows of it."""
    for save in list(_unsettled):
        save._settle()


@atexit.register
def _report() -> None:
    """Names the failed saves of which no caller knows. The interpreter has waited for the threads before."""
    for save in list(_unsettled):
        reason = f"has failed: {save._error}" if save.done() else "was given up"
        print(f"unishard: the asynchronous save of {save._path} {reason}", file=sys.stderr)


def _leave_all() -> None:
    for save in _unsettled:
        save._leave()
    _unsettled.clear()


os.register_at_fork(after_in_child=_leave_all)
