"""Accelerate with UniShard checkpoints.

    unishard.integrations.accelerate.save_state(accelerator, "runs/job/step10")
    unishard.integrations.accelerate.load_state(accelerator, "runs/job/step10")

The folder has accelerate's other files (schedulers, samplers, random states, registered objects); models and optimizers are UniShard
checkpoints within it, which any number of ranks loads. Plain, DDP, FSDP2 and DeepSpeed.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from typing import Any, Optional, Union

from accelerate import Accelerator  # type: ignore[import-untyped,unused-ignore]

from .. import _ranks as ranks
from .. import torch as jobs
from .._errors import Error

Path_ = Union[str, os.PathLike[str]]
# Models and optimizers as accelerate names them: files, and folders of FSDP.
_PLAIN = re.compile(r"(model|pytorch_model|optimizer)(_\d+)?(-\d+-of-\d+)?(\.safetensors|\.bin)|pytorch_model_fsdp(_\d+|\.bin)|optimizer_\d+")


def save_state(accelerator: Accelerator, output_dir: Optional[Path_] = None, *, step: Optional[int] = None, **options: Any) -> str:
    """Saves what accelerator.save_state() saves. All ranks call it. Returns the folder.

    output_dir: may be left out where the ProjectConfiguration names checkpoints itself. step: recorded as that of the checkpoints;
    default: the steps that each optimizer counts. options: arguments of unishard.torch.save().
    As accelerate does, it replaces the state that the folder has from an earlier save, but not one that was saved without UniShard.
    Raises Error on every rank.
    """
    models, optimizers = _prepared(accelerator)
    if _patched(models, options):
        return str(accelerator.save_state(_text(output_dir)))
    if output_dir is not None:
        _require_one_state(os.fspath(output_dir), "save to another folder, or move these files away; nothing was saved")
    with _without(accelerator):
        folder = str(accelerator.save_state(_text(output_dir)))
    for number, model in enumerate(models):
        optimizer = optimizers[number] if optimizers else None
        jobs.save(_place(folder, number), model, optimizer, step=_steps(optimizer) if step is None else step,
                  _is_inside=True, **options)
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
    for number, model in enumerate(models):
        jobs.load(_place(folder, number), model, optimizers[number] if optimizers else None)
    with _without(accelerator):
        accelerator.load_state(folder)


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
