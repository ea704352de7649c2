"""The verbs of the program `unishard`, run as a child process whose JSON report is returned.

Every verb also takes `progress`, a function that is called with a fraction of the work and its name (True draws a line on standard
error), and `cancel`, an object like threading.Event whose setting stops the verb: it raises Error with the code "cancelled".
Other keyword arguments are the program's flags: world_size=8 is --world-size=8. A verb does all of its work for the process that calls
it, also where torchrun or another launcher started that process as one of several: one rank calls it. procs=4 uses four processes.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional, Union

from . import _place
from ._child import Cancel, Progress, run
from ._errors import Error

Path_ = Union[str, os.PathLike[str]]

_DONE, _DIFFERENT = 0, 1


def program() -> Path:
    """Returns the path of the program that belongs to this package."""
    return Path(_place.program())


def inspect(checkpoint: Path_, *, progress: Progress = None, cancel: Optional[Cancel] = None, **flags: Any) -> dict[str, Any]:
    """Returns what a checkpoint holds, as `unishard inspect --json` prints it. inspect(path, tags=True) lists the tags."""
    return _run("inspect", [checkpoint], flags, progress, cancel)


def verify(checkpoint: Path_, *, progress: Progress = None, cancel: Optional[Cancel] = None, **flags: Any) -> dict[str, Any]:
    """Checks a checkpoint and returns the report; report["ok"] is False when something is damaged.

    deep=True also reads the payload; all=True checks every tag of the folder.
    """
    return _run("verify", [checkpoint], flags, progress, cancel)


def diff(a: Path_, b: Path_, *, progress: Progress = None, cancel: Optional[Cancel] = None, **flags: Any) -> dict[str, Any]:
    """Compares the states of two checkpoints of any format. Differences are in the report and raise nothing."""
    return _run("diff", [a, b], flags, progress, cancel)


def convert(checkpoint: Path_, output: Path_, *, to: Optional[str] = None, progress: Progress = None, cancel: Optional[Cancel] = None,
            **flags: Any) -> dict[str, Any]:
    """Rewrites a checkpoint in the format `to`, such as "native", "deepspeed", "dcp" or "safetensors"; None: as the file's suffix says."""
    return _run("convert", [checkpoint, output], {"to": to, **flags}, progress, cancel)


def reshard(checkpoint: Path_, output: Path_, *, progress: Progress = None, cancel: Optional[Cancel] = None,
            **flags: Any) -> dict[str, Any]:
    """Changes world size and ZeRO stage of a checkpoint: reshard(path, output, world_size=8, stage=3)."""
    return _run("reshard", [checkpoint, output], flags, progress, cancel)


def zero_to_fp32(checkpoint: Path_, output: Path_, *, progress: Progress = None, cancel: Optional[Cancel] = None,
                 **flags: Any) -> dict[str, Any]:
    """Merges the shards of a checkpoint into fp32 weights: a model folder, or one file."""
    return _run("zero_to_fp32", [checkpoint, output], flags, progress, cancel)


def report(checkpoint: Path_, *others: Path_, output: Path_ = "report.html", progress: Progress = None,
           cancel: Optional[Cancel] = None, **flags: Any) -> dict[str, Any]:
    """Writes one HTML page on one or several checkpoints to `output`, and returns a summary: report(path, all=True) takes all tags."""
    return _run("report", [checkpoint, *others], {"output": output, **flags}, progress, cancel)


def prune(folder_of_tags: Path_, *, progress: Progress = None, cancel: Optional[Cancel] = None, **flags: Any) -> dict[str, Any]:
    """Removes old checkpoints: prune(folder, keep_last=3). dry_run=True only says which."""
    return _run("prune", [folder_of_tags], flags, progress, cancel)


def _run(verb: str, paths: Sequence[Path_], flags: dict[str, Any], progress: Progress, cancel: Optional[Cancel]) -> dict[str, Any]:
    """Runs one verb. Of the flags, True is the flag alone, False and None leave it out, a list gives the flag several times.

    Raises Error when the program fails. On KeyboardInterrupt the program is interrupted too and removes what is half-written; the
    exception goes on once it has ended.
    """
    if cancel is not None and cancel.is_set():
        raise Error("cancelled", f"unishard {verb}: stopped on request", status=128 + signal.SIGINT)
    command = [str(program()), verb, "--json"]
    for name, value in flags.items():
        if name in ("help", "json"):
            raise TypeError(f"unishard.{verb}() returns the report of --json and takes no {name}")
        flag = "--" + name.replace("_", "-")
        if value is True:
            command.append(flag)
        elif value is not None and value is not False:
            command += [f"{flag}={os.fspath(one) if isinstance(one, os.PathLike) else one}"
                        for one in (value if isinstance(value, (list, tuple)) else [value])]
    command += [_as_argument(os.fspath(path)) for path in paths]
    status, printed, said = run(command, progress, cancel)
    if status not in (_DONE, _DIFFERENT):
        raise _error(verb, status, said)
    try:
        report: dict[str, Any] = json.loads(printed)
    except ValueError:
        raise _error(verb, status, said or f"unishard {verb} printed no report") from None
    return report


def _as_argument(path: str) -> str:
    return os.path.join(os.curdir, path) if path.startswith("-") else path


def _error(verb: str, status: int, said: str) -> Error:
    """Makes an exception of what the program said last; a program that a signal ended says nothing."""
    for line in reversed(said.splitlines()):
        if line.startswith('{"error":'):
            error = json.loads(line)["error"]
            return Error(error["code"], f"unishard {verb}: {error['message']}", error["hint"], status=status)
    if status == -signal.SIGINT:  # before the program could say so
        return Error("cancelled", f"unishard {verb}: stopped on request", status=128 + signal.SIGINT)
    ended = f"ended by signal {-status}" if status < 0 else f"exit status {status}"
    return Error("internal", said.strip() or f"unishard {verb}: {ended}", status=status)
