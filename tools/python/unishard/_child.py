"""The program as a child process: its output, its progress, its end on request."""

from __future__ import annotations

import json
import os
import queue
import selectors
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Optional, Protocol, Union

_PROGRESS = b'{"progress":'
# By these a program knows that torchrun, mpirun or srun started it as one of several; the child of one of them is not.
_LAUNCHED = ("RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS")
_PATIENCE = 0.1  # seconds between looks at what stops the child

Callback = Callable[[float, str], object]
Progress = Union[bool, Callback, None]


class Cancel(Protocol):
    """What ends a verb once is_set() returns True, for example a threading.Event."""

    def is_set(self) -> bool: ...


def run(command: list[str], progress: Progress, cancel: Optional[Cancel]) -> tuple[int, str, str]:
    """Runs a command to its end and returns its status and what it wrote to its two outputs.

    progress: is called on this thread with a fraction of the work and its name; True draws a line on standard error.
    cancel: is looked at meanwhile; once it is set, the command is interrupted.
    Raises what interrupts the wait or what `progress` raises, once the command has removed what is half-written and ended.
    """
    line = _Line() if progress is True else None
    report = line or (progress if callable(progress) else None)
    environment = {name: value for name, value in os.environ.items() if name not in _LAUNCHED}
    environment.update({"UNISHARD_ERRORS": "json", **({"UNISHARD_PROGRESS": "json"} if report else {})})
    reports: queue.SimpleQueue[Optional[tuple[float, str]]] = queue.SimpleQueue()
    stop = threading.Event()

    def is_stopped() -> bool:
        return stop.is_set() or (cancel is not None and cancel.is_set())

    # Another thread has the child from its start to its end. Ctrl-C raises on the main thread, perhaps before Popen() has returned, and
    # the child would be left to itself.
    with ThreadPoolExecutor(1) as worker:
        try:
            running = worker.submit(_work, command, environment, reports.put, is_stopped)
            for fraction, what in iter(reports.get, None):
                if report:
                    report(fraction, what)
            return running.result()
        except BaseException:
            stop.set()
            raise
        finally:
            if line:
                line.close()


def _work(command: list[str], environment: dict[str, str], report: Callable[[Optional[tuple[float, str]]], None],
          is_stopped: Callable[[], bool]) -> tuple[int, str, str]:
    """Runs a command. Calls `report` for its lines of progress, and at the end with None."""
    printed, said = bytearray(), _Lines(report)
    try:
        # A session of its own, so that Ctrl-C in a terminal reaches it once and not twice.
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment,
                              start_new_session=True) as child:
            try:
                _read(child, printed.extend, said.add, is_stopped)
            except BaseException:
                child.send_signal(signal.SIGINT)
                child.communicate()
                raise
        return child.returncode, printed.decode("utf-8", "replace"), said.other.decode("utf-8", "replace")
    finally:
        report(None)


def _read(child: subprocess.Popen[bytes], take_printed: Callable[[bytes], None], take_said: Callable[[bytes], None],
          is_stopped: Callable[[], bool]) -> None:
    """Reads both outputs to their ends, and interrupts the child once when it is to stop."""
    is_asked = False
    with selectors.DefaultSelector() as selector:
        assert child.stdout and child.stderr
        selector.register(child.stdout, selectors.EVENT_READ, take_printed)
        selector.register(child.stderr, selectors.EVENT_READ, take_said)
        while selector.get_map():
            if not is_asked and is_stopped():
                is_asked = True
                child.send_signal(signal.SIGINT)
            for key, _ in selector.select(_PATIENCE):
                data = os.read(key.fd, 1 << 16)
                key.data(data)
                if not data:
                    selector.unregister(key.fileobj)


class _Lines:
    """Standard error of the program: lines of progress are reported, the others kept."""

    def __init__(self, report: Callable[[tuple[float, str]], None]) -> None:
        self.other = b""
        self._report = report
        self._rest = b""

    def add(self, data: bytes) -> None:
        """Takes what was read; nothing at the end."""
        *whole, self._rest = (self._rest + data).split(b"\n")
        if not data:
            self.other += self._rest
        for text in whole:
            if text.startswith(_PROGRESS):
                at = json.loads(text)["progress"]
                self._report((min(at["done"] / at["total"], 1.0) if at["total"] else 0.0, at["what"]))
            else:
                self.other += text + b"\n"


class _Line:
    """A line that is drawn over and over, in a terminal or a notebook."""

    def __init__(self) -> None:
        self._is_drawn = False

    def __call__(self, fraction: float, what: str) -> None:
        print(f"\r{what:<12} [{'#' * round(24 * fraction):<24}] {fraction:4.0%}", end="", file=sys.stderr, flush=True)
        self._is_drawn = True

    def close(self) -> None:
        if self._is_drawn:
            print(file=sys.stderr)
