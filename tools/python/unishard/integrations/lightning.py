"""Lightning with UniShard checkpoints, whatever the strategy that writes one file from rank 0 (one device, DDP).

    trainer = Trainer(plugins=[unishard.integrations.lightning.CheckpointIO()])
    trainer.fit(model, ckpt_path="checkpoints/epoch=0-step=100.ckpt")
    model = unishard.integrations.lightning.load_from_checkpoint(Model, "checkpoints/epoch=0-step=100.ckpt")

Model.load_from_checkpoint() itself asks no plug-in, so it opens files of Lightning only; the function above takes both.
A checkpoint is a folder of the name that Lightning gives the file. Parameters and the states that an optimizer has for them are tensors
of the checkpoint; loops, callbacks, schedules and hyper-parameters are its client state. Files of Lightning itself still load.
DeepSpeedStrategy and FSDPStrategy write folders by themselves and take no plug-in; unishard.deepspeed.patch() serves the former.
"""

from __future__ import annotations

import inspect
import io
import os
import shutil
from pathlib import Path
from typing import Any, Optional, TypeVar, Union

import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO

from .. import _checkpoint, _native
from .._errors import Error
from .._objects import from_json, inline_tensor, to_json
from .._parts import Part, write_shard

Path_ = Union[str, os.PathLike[str]]
Module = TypeVar("Module")
_STATES = "optimizer_states"


class CheckpointIO(TorchCheckpointIO):
    """The plug-in. compress: "none", "zstd" or "auto", with a level as in "zstd:3". Not thread-safe."""

    def __init__(self, *, compress: str = "none") -> None:
        super().__init__()
        self._compress = compress

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Path_, storage_options: Optional[Any] = None) -> None:
        """Saves what Lightning passes as a checkpoint in the folder `path`. Raises Error; then readers see the older one."""
        if storage_options is not None:
            raise Error("invalid argument", "storage_options are not supported")
        place, tensors = Path(path), _Tensors(checkpoint)
        options = {"compression": self._compress, "move_latest": False, "inside": True}
        transaction = _native.Save(str(place.parent), place.name, tensors.catalog, options)
        try:
            transaction.publish([write_shard(transaction.place, tensors.catalog, 0, tensors.parts(), options)])
        finally:
            transaction.close()

    def load_checkpoint(self, path: Path_, map_location: Optional[Any] = None, weights_only: Optional[bool] = None) -> dict[str, Any]:
        """Returns what save_checkpoint() got, its tensors on the CPU. Nothing is executed, whatever weights_only says."""
        if not (Path(path) / "manifest.json").exists():
            found: dict[str, Any] = super().load_checkpoint(Path(path), map_location, weights_only)
            return found
        with _checkpoint.open(path) as checkpoint:
            values = checkpoint.client_state
            keys = {key: tuple(tensor) for key, tensor in values["tensors"].items()}
            loaded: dict[str, Any] = from_json(values["content"], lambda key: checkpoint[keys[key]].torch())
        return loaded

    def remove_checkpoint(self, path: Path_) -> None:
        """Removes the checkpoint: first its name, so that nobody sees a part of it."""
        if not (Path(path) / "manifest.json").exists():
            super().remove_checkpoint(Path(path))
            return
        removed = Path(f"{os.fspath(path)}.removed-{os.getpid()}")
        os.rename(path, removed)
        shutil.rmtree(removed)


def load_from_checkpoint(module: type[Module], path: Path_, **arguments: Any) -> Module:
    """Returns what module.load_from_checkpoint(path, **arguments) returns for a checkpoint of the plug-in or of Lightning.

    module: a LightningModule or LightningDataModule. Memory: the checkpoint, twice.
    """
    load = getattr(module, "load_from_checkpoint")
    if not (Path(path) / "manifest.json").exists():
        return load(path, **arguments)  # type: ignore[no-any-return]
    content = io.BytesIO()
    torch.save(CheckpointIO().load_checkpoint(path), content)
    content.seek(0)
    if "weights_only" in inspect.signature(load).parameters:
        arguments["weights_only"] = False  # what torch.save has just made here
    return load(content, **arguments)  # type: ignore[no-any-return]


class _Tensors:
    """The tensors of Lightning's dict as a catalog: key in the dict, name and state."""

    def __init__(self, checkpoint: dict[str, Any]) -> None:
        self._values: dict[tuple[str, str], torch.Tensor] = {}
        keys: dict[str, tuple[str, str]] = {}
        owners = _owners(checkpoint)
        places: dict[Any, tuple[str, str]] = {}

        def keep(path: str, tensor: torch.Tensor) -> Optional[dict[str, Any]]:
            key = owners.get(path, (path.removeprefix("."), "extra"))
            if key[1] == "step" and tensor.ndim == 0:  # a counter, which is no tensor in a file of Lightning's either
                return inline_tensor(tensor)
            place = tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype
            keys[path] = places.setdefault(place, key) if tensor.numel() else key  # tied weights are stored once
            if keys[path] == key:
                self._values[key] = tensor
            return None

        content = to_json(dict(checkpoint), "", keep)
        rows = [{"name": name, "state": state, "dtype": str(value.dtype).removeprefix("torch."), "shape": list(value.shape)}
                for (name, state), value in self._values.items()]
        self.catalog = {"tensors": rows, "aliases": [], "step": int(checkpoint.get("global_step", 0)), "world_size": 1, "stage": 0,
                        "client_state": {"content": content, "tensors": keys},
                        "producer": {"library": "lightning", "version": checkpoint.get("pytorch-lightning_version")}}

    def parts(self) -> list[Part]:
        return [Part((number, 0, value.numel()), value, 0) for number, value in enumerate(self._values.values()) if value.numel()]


def _owners(checkpoint: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Returns name and state of the tensors, by their paths in the dict, where they are weights or belong to one parameter.

    Optimizers number parameters. Where shapes and order allow only one choice of names, they get them.
    """
    weights = checkpoint.get("state_dict", {})
    shapes = {name: tuple(value.shape) for name, value in weights.items()
              if isinstance(value, torch.Tensor) and not name.endswith(("running_mean", "running_var"))}
    owners, trained = {}, set()
    for number, optimizer in enumerate(checkpoint.get(_STATES, [])):
        moments = {index: {state: value for state, value in values.items() if isinstance(value, torch.Tensor)}
                   for index, values in optimizer.get("state", {}).items()}
        found = {index: [tuple(value.shape) for value in values.values() if value.ndim > 0] for index, values in sorted(moments.items())}
        wanted = {index: one[0] for index, one in found.items() if one}
        named = _only_choice(wanted, shapes)
        for index, name in named.items():
            trained.add(name)
            for state in moments[index]:
                owners[f".{_STATES}.{number}.state.{index}.{state}"] = (name, state)
    for name, value in weights.items():
        is_master = name in trained and isinstance(value, torch.Tensor) and value.dtype == torch.float32
        owners[f".state_dict.{name}"] = (name, "fp32" if is_master else "weights")
    return owners


def _only_choice(wanted: dict[int, tuple[int, ...]], shapes: dict[str, tuple[int, ...]]) -> dict[int, str]:
    """Returns a name for each index, in order and of its shape; nothing when there are several choices, or none."""
    def first_fit(indices: list[int], names: list[str]) -> dict[int, str]:
        chosen, left = {}, iter(names)
        for index in indices:
            name = next((one for one in left if shapes[one] == wanted[index]), None)
            if name is not None:
                chosen[index] = name
        return chosen

    forwards = first_fit(list(wanted), list(shapes))
    backwards = first_fit(list(reversed(wanted)), list(reversed(shapes)))
    return forwards if forwards == backwards and len(forwards) == len(wanted) else {}
