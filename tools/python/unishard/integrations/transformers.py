"""Hugging Face's Trainer with UniShard checkpoints.

    trainer = unishard.integrations.transformers.patch(Trainer(...))
    trainer.train(resume_from_checkpoint=True)

A folder checkpoint-<N> keeps the Trainer's other files (config, tokenizer, scheduler, random states, trainer_state.json). Weights and
optimizer are a UniShard checkpoint within it, which any number of ranks loads. Plain, DDP, FSDP2 and DeepSpeed runs.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any, Optional, Union

import torch
import torch.distributed as dist
from transformers import Trainer
from transformers.trainer_pt_utils import remove_dummy_checkpoint
from transformers.utils import SAFE_WEIGHTS_NAME, WEIGHTS_NAME

from .. import _checkpoint
from .. import torch as jobs
from .._errors import Error

_OPTIMIZER, _SCHEDULER, _STATE = "optimizer.pt", "scheduler.pt", "trainer_state.json"


def patch(trainer: Trainer, **options: Any) -> Trainer:
    """Makes the trainer save and load UniShard checkpoints. Returns it. Call it before train().

    options: arguments of unishard.torch.save(), for example compress="zstd"; keep_last is the trainer's save_total_limit.
    train(resume_from_checkpoint=True) takes the newest checkpoint that is complete: a save that was killed does not count. Folders that
    the trainer wrote without patch() are still loaded. train() without it fails where output_dir has checkpoints of another run.
    save_model() and save_only_model write the model as before, without UniShard.
    Not thread-safe. Raises Error for a trainer with FSDP1 or SageMaker.
    """
    if isinstance(trainer, _Mixin):
        raise Error("invalid argument", "the trainer is patched already")
    plugin = getattr(trainer.accelerator.state, "fsdp_plugin", None)
    if plugin is not None and getattr(plugin, "fsdp_version", 2) != 2:
        raise Error("unsupported", "the trainer uses FSDP1", "set fsdp_version: 2 in fsdp_config")
    kind = type(trainer)
    trainer.__class__ = type(f"UniShard{kind.__name__}", (_Mixin, kind), {"unishard_options": options})
    prepare = trainer.accelerator.prepare

    def prepare_and_patch(*parts: Any, **settings: Any) -> Any:
        prepared = prepare(*parts, **settings)
        for one in prepared if isinstance(prepared, tuple) else (prepared,):
            _patch_engine(one, options)
        return prepared

    trainer.accelerator.prepare = prepare_and_patch
    return trainer


def last_checkpoint(output_dir: Union[str, os.PathLike[str]]) -> Optional[str]:
    """Returns the newest checkpoint-<N> below the folder whose save was completed; None when there is none."""
    numbered = [(int(found[1]), path) for path in Path(output_dir).glob("checkpoint-*")
                if (found := re.fullmatch(r"checkpoint-(\d+)", path.name))]
    return next((str(path) for _, path in sorted(numbered, reverse=True) if _is_complete(path)), None)


def _is_complete(folder: Path) -> bool:
    try:
        json.loads((folder / _STATE).read_text())  # the trainer writes it last
    except (OSError, ValueError):
        return False
    return True


def _has_unishard(folder: Union[str, os.PathLike[str]]) -> bool:
    # A save that was killed leaves `<tag>.partial-<id>`, which is no checkpoint.
    return any(".partial-" not in path.parent.name for path in Path(folder).glob("*/manifest.json"))


def _require_one_state(folder: Union[str, os.PathLike[str]]) -> None:
    if _has_unishard(folder) and Path(folder, _OPTIMIZER).exists():
        raise Error("mismatch", f"{folder} has a UniShard checkpoint, and {_OPTIMIZER}, which was saved without UniShard",
                    "move the older of the two away")


def _require_one_save(folder: Union[str, os.PathLike[str]]) -> None:
    """Raises Error where the Trainer's files and the UniShard checkpoint are those of two saves."""
    if not _has_unishard(folder) or not _is_complete(Path(folder)):
        return
    recorded = json.loads(Path(folder, _STATE).read_text()).get("global_step")
    with _checkpoint.open(folder) as checkpoint:
        if recorded != checkpoint.step:
            raise Error("mismatch", f"{folder}: {_STATE} is of step {recorded}, and the UniShard checkpoint {checkpoint.tag} of step "
                        f"{checkpoint.step}", "files of two checkpoints were mixed: copy the whole folder again")


def _patch_engine(one: Any, options: dict[str, Any]) -> None:
    if hasattr(one, "save_checkpoint") and hasattr(one, "zero_optimization_stage"):
        from .. import deepspeed

        deepspeed.patch(one, _is_inside=True, **options)


class _Mixin(Trainer):
    """The methods of a Trainer that decide what is in a checkpoint."""

    unishard_options: dict[str, Any]
    _unishard_has_begun = False

    def train(self: Any, resume_from_checkpoint: Any = None, *others: Any, **settings: Any) -> Any:
        if resume_from_checkpoint is True:
            resume_from_checkpoint = last_checkpoint(self.args.output_dir) or True
        if not resume_from_checkpoint:
            self._require_own_checkpoints()
        elif isinstance(resume_from_checkpoint, (str, os.PathLike)):
            _require_one_state(resume_from_checkpoint)
            if not self.is_deepspeed_enabled:  # an engine counts its own steps
                _require_one_save(resume_from_checkpoint)
        self._unishard_has_begun = True
        return super().train(resume_from_checkpoint, *others, **settings)

    def _require_own_checkpoints(self: Any) -> None:
        """Raises Error where this trainer would replace, and by save_total_limit remove, the checkpoints of another run."""
        newest = last_checkpoint(self.args.output_dir)
        may_replace = self._unishard_has_begun or getattr(self.args, "overwrite_output_dir", False)
        if newest is not None and not may_replace:
            raise Error("already exists", f"{self.args.output_dir} has the checkpoints of a run, the newest of which is {newest}",
                        "go on with train(resume_from_checkpoint=True), or use another output_dir; nothing was changed")

    def save_model(self: Any, output_dir: Optional[str] = None, _internal_call: bool = False) -> None:
        if not _internal_call or output_dir is None or self.args.save_only_model or hasattr(self.model, "peft_config"):
            super().save_model(output_dir, _internal_call=_internal_call)
            return
        if self.args.should_save:  # a folder that is written again is not complete until the end
            Path(output_dir, _STATE).unlink(missing_ok=True)
        self._save(output_dir, state_dict={})  # the files beside the weights
        remove: Any = remove_dummy_checkpoint
        remove(self.args.should_save, output_dir, [WEIGHTS_NAME, SAFE_WEIGHTS_NAME])

    def _save_optimizer_and_scheduler(self: Any, output_dir: str) -> None:
        if self.is_deepspeed_enabled:  # the engine is patched
            super()._save_optimizer_and_scheduler(output_dir)
            return
        jobs.save(output_dir, self.model_wrapped, _plain(self.optimizer), step=self.state.global_step, _is_inside=True,
                  **self.unishard_options)
        if self.args.should_save:
            Path(output_dir, _OPTIMIZER).unlink(missing_ok=True)  # that of this folder before patch()
            torch.save(self.lr_scheduler.state_dict(), os.path.join(output_dir, _SCHEDULER))

    def _save_rng_state(self: Any, output_dir: str) -> None:
        super()._save_rng_state(output_dir)
        if dist.is_initialized():  # trainer_state.json, which makes the checkpoint complete, must be the last file of all ranks
            dist.barrier()

    def _load_from_checkpoint(self: Any, resume_from_checkpoint: str, model: Optional[torch.nn.Module] = None) -> None:
        if _has_unishard(resume_from_checkpoint):
            jobs.load(resume_from_checkpoint, model or self.model)
        else:
            super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _load_best_model(self: Any) -> None:
        if _has_unishard(self.state.best_model_checkpoint) and not self.is_deepspeed_enabled:
            jobs.load(self.state.best_model_checkpoint, self.model_wrapped)
        else:
            super()._load_best_model()

    def _load_optimizer_and_scheduler(self: Any, checkpoint: Optional[str]) -> None:
        if checkpoint is None or self.is_deepspeed_enabled or not _has_unishard(checkpoint):
            super()._load_optimizer_and_scheduler(checkpoint)
            return
        jobs.load(checkpoint, self.model_wrapped, _plain(self.optimizer))
        self.lr_scheduler.load_state_dict(torch.load(os.path.join(checkpoint, _SCHEDULER), map_location="cpu", weights_only=True))


def _plain(optimizer: Any) -> torch.optim.Optimizer:
    """Returns the optimizer of torch that accelerate has wrapped."""
    plain: torch.optim.Optimizer = getattr(optimizer, "optimizer", optimizer)
    return plain
