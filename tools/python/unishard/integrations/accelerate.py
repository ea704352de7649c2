"""Accelerate with UniShard checkpoints.

    unishard.integrations.accelerate.save_state(accelerator, "runs/job/step10")
    unishard.integrations.accelerate.load_state(accelerator, "runs/job/step10")

Models and optimizers are UniShard checkpoints within the folder, which any number of ranks loads. accelerate's other files (schedulers,
samplers, random states, registered objects) are in a folder beside them that the checkpoint of the first model names, so that a save
that fails or is killed leaves the one before it whole. Plain, DDP, FSDP2 and DeepSpeed; a DeepSpeed engine's folder is accelerate's.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from typing import Any, Optional, Union

from accelerate import Accelerator  # type: ignore[import-untyped,unused-ignore]

from .. import _checkpoint
from .. import _ranks as ranks
from .. import torch as jobs
from .._errors import Error

_KEY = "accelerate"  # of the first model's client state
Path_ = Union[str, os.PathLike[str]]
# Models and optimizers as accelerate names them: files, and folders of FSDP.
_PLAIN = re.compile(r"(model|pytorch_model|optimizer)(_\d+)?(-\d+-of-\d+)?(\.safetensors|\.bin)|pytorch_model_fsdp(_\d+|\.bin)|optimizer_\d+")


def save_state(accelerator: Accelerator, output_dir: Optional[Path_] = None, *, step: Optional[int] = None, **options: Any) -> str:
    """Saves what accelerator.save_state() saves. All ranks call it. Returns the folder.

    output_dir: may be left out where the ProjectConfiguration names checkpoints itself. step: recorded as that of the checkpoints;
    default: the steps that each optimizer counts. options: arguments of unishard.torch.save(); keep_last is 1 unless given, because
    accelerate too replaces the state that the folder has from an earlier save. A state that was saved without UniShard is not replaced.
    Raises Error on every rank.
    """
    models, optimizers = _prepared(accelerator)
    if _patched(models, options):
        return str(accelerator.save_state(_text(output_dir)))
    if output_dir is None or accelerator.project_configuration.automatic_checkpoint_naming:  # a new folder, which accelerate names
        with _without(accelerator):
            folder = str(accelerator.save_state(_text(output_dir)))
        _save_models(folder, models, optimizers, step, "", options)
        return folder
    folder = os.fspath(output_dir)
    _require_one_state(folder, "save to another folder, or move these files away; nothing was saved")
    name = f"accelerate-{ranks.from_first(uuid.uuid4().hex)}"
    place = os.path.join(folder, name)
    try:
        with _without(accelerator):
            ranks.together("saving accelerate's files", lambda: _save_files(accelerator, place))
        ranks.together("saving accelerate's files", lambda: _sync(place) if ranks.rank() == 0 else None)
        _save_models(folder, models, optimizers, step, name, {"keep_last": 1, **options})
    except BaseException:
        if ranks.rank() == 0 and not _may_be_named(folder, name):
            shutil.rmtree(place, ignore_errors=True)
        raise
    ranks.together("removing older files", lambda: _remove_others(folder) if ranks.rank() == 0 else None)
    return folder


def load_state(accelerator: Accelerator, input_dir: Optional[Path_] = None) -> None:
    """Loads what save_state() saved, or accelerate's own folder. All ranks call it, after prepare().

    input_dir: may be left out where the ProjectConfiguration names checkpoints itself; it is the one with the highest number then.
    Raises Error on every rank.
    """
    models, optimizers = _prepared(accelerator)
    folder = _newest(accelerator) if input_dir is None else os.fspath(input_dir)
    if _patched(models, {}) or not os.path.isdir(_place(folder, 0)):
        accelerator.load_state(folder)
        return
    _require_one_state(folder, "move the older of the two away")
    first = jobs.load(_place(folder, 0), models[0], optimizers[0] if optimizers else None)
    saved = first.client_state.get(_KEY, {"folder": "", "tags": []})
    for number, model in enumerate(models[1:], 1):
        tag = saved["tags"][number] if number < len(saved["tags"]) else None
        jobs.load(_place(folder, number), model, optimizers[number] if optimizers else None, tag=tag)
    with _without(accelerator):
        accelerator.load_state(os.path.join(folder, os.path.basename(saved["folder"])) if saved["folder"] else folder)


def _save_models(folder: str, models: list[Any], optimizers: list[Any], step: Optional[int], name: str, options: dict[str, Any]) -> None:
    """Saves the first model last: its checkpoint names the files and the tags that belong to it."""
    chosen = [optimizers[number] if optimizers else None for number in range(len(models))]
    steps = [_steps(optimizer) if step is None else step for optimizer in chosen]
    tags = [options.get("tag") or f"global_step{one}" for one in steps]
    keep = options.get("keep_last", 0)
    for number in reversed(range(len(models))):
        own = dict(options)
        if number:  # the one before stays until the first model's names it no longer
            own["keep_last"] = keep and max(keep, 2)
        else:
            own["client_state"] = {**(options.get("client_state") or {}), _KEY: {"folder": name, "tags": tags}}
        jobs.save(_place(folder, number), models[number], chosen[number], step=steps[number], _is_inside=True, **own)


def _save_files(accelerator: Accelerator, folder: str) -> None:
    """Saves what is neither model nor optimizer."""
    try:
        accelerator.save_state(folder)
    except (OSError, RuntimeError) as error:  # RuntimeError: torch.save on a full disk
        raise _failure(folder, error) from error


def _sync(folder: str) -> None:
    """Makes the files of the folder durable."""
    try:
        for place, _, files in os.walk(folder):
            for path in (place, *(os.path.join(place, file) for file in files)):
                descriptor = os.open(path, os.O_RDONLY)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
    except OSError as error:
        raise _failure(folder, error) from error


def _failure(folder: str, error: Exception) -> Error:
    code = "no space" if isinstance(error, OSError) and error.errno == errno.ENOSPC else "input/output"
    return Error(code, f"accelerate's files could not be saved to {folder}: {error}", "what an earlier save has left is whole")


def _may_be_named(folder: str, name: str) -> bool:
    """Returns false where the first model's newest checkpoint surely names no files, or others than those in `name`."""
    try:
        with _checkpoint.open(_place(folder, 0)) as checkpoint:
            return bool((checkpoint.client_state or {}).get(_KEY, {}).get("folder") == name)
    except Error as error:
        return error.code != "not found"


def _remove_others(folder: str) -> None:
    """Removes the files of earlier saves, which no checkpoint of the first model names. One that cannot be read keeps them all."""
    place = _place(folder, 0)
    named = set()
    for tag in os.listdir(place):
        if os.path.exists(os.path.join(place, tag, "manifest.json")):
            try:
                with _checkpoint.open(os.path.join(place, tag)) as checkpoint:
                    named.add((checkpoint.client_state or {}).get(_KEY, {}).get("folder"))
            except Error:
                return
    for other in os.listdir(folder):
        if re.fullmatch(r"accelerate-[0-9a-f]{32}", other) and other not in named:
            shutil.rmtree(os.path.join(folder, other), ignore_errors=True)


def _require_one_state(folder: str, hint: str) -> None:
    """Raises Error where accelerate itself has saved a model or an optimizer."""
    def plain() -> None:
        names = sorted(name for name in (os.listdir(folder) if os.path.isdir(folder) else []) if _PLAIN.fullmatch(name))
        if names:
            raise Error("already exists", f"{folder} has {', '.join(names)}, which accelerate has saved without UniShard", hint)

    ranks.together("looking at the folder", plain)


def _newest(accelerator: Any) -> str:
    """Returns the checkpoint with the highest number of those that accelerate names itself."""
    if not accelerator.project_configuration.automatic_checkpoint_naming:
        raise Error("invalid argument", "no folder is named", "pass input_dir, or set automatic_checkpoint_naming")
    place = os.path.join(accelerator.project_dir, "checkpoints")
    numbers = [int(name.removeprefix("checkpoint_")) for name in (os.listdir(place) if os.path.isdir(place) else [])
               if name.removeprefix("checkpoint_").isdecimal()]
    if not numbers:
        raise Error("not found", f"{place} has no checkpoint", "save one first")
    return os.path.join(place, f"checkpoint_{max(numbers)}")


def _steps(optimizer: Any) -> int:
    """Returns the most steps that the optimizer has done with a parameter, as far as it counts them."""
    states = optimizer.state.values() if optimizer is not None else []
    return max((int(state["step"]) for state in states if "step" in state), default=0)


def _text(path: Optional[Path_]) -> Optional[str]:
    return None if path is None else os.fspath(path)


def _place(folder: str, number: int) -> str:
    return os.path.join(folder, f"unishard_{number}" if number else "unishard")


def _prepared(accelerator: Any) -> tuple[list[Any], list[Any]]:
    models, optimizers = list(accelerator._models), [getattr(one, "optimizer", one) for one in accelerator._optimizers]
    if optimizers and len(optimizers) != len(models):
        raise Error("unsupported", f"the accelerator has prepared {len(models)} models and {len(optimizers)} optimizers",
                    "prepare one optimizer for each model, or save them with unishard.torch.save()")
    return models, optimizers


def _patched(models: list[Any], options: dict[str, Any]) -> bool:
    engines = [one for one in models if hasattr(one, "zero_optimization_stage")]
    if engines:
        from .. import deepspeed

        for engine in engines:
            deepspeed.patch(engine, _is_inside=True, **options)
    return bool(engines)


@contextlib.contextmanager
def _without(accelerator: Any) -> Iterator[None]:
    """Hides models and optimizers from the accelerator, so that it saves and loads the rest."""
    kept = accelerator._models, accelerator._optimizers
    accelerator._models, accelerator._optimizers = [], []
    try:
        yield
    finally:
        accelerator._models, accelerator._optimizers = kept
