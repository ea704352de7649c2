"""Open checkpoints and their tensors."""

from __future__ import annotations

import dataclasses
import difflib
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Optional, Union

import numpy as np

from . import _slices
from ._errors import Error
from ._html import checkpoint_html
from ._native import Handle
from ._shards import Box, first_element, run_elements

if TYPE_CHECKING:
    import torch

# The states that hold the values of a parameter or buffer, in the order in which a bare name is looked up.
_WEIGHT_STATES = ("fp32", "weights", "buffer")
# dtypes that numpy itself does not have: the unsigned integer with the same bits.
_BITS = {"bfloat16": np.uint16, "float8_e4m3fn": np.uint8, "float8_e5m2": np.uint8, "float8_e4m3fnuz": np.uint8,
         "float8_e5m2fnuz": np.uint8, "float8_e8m0fnu": np.uint8}

Key = tuple[str, str]


@dataclasses.dataclass(frozen=True)
class Stats:
    """Statistics of all elements of a tensor, as they were recorded when it was saved."""

    count: int
    nan: int
    inf: int
    min: float  # of the finite elements
    max: float
    norm: float  # L2 norm of the finite elements


class Tensor:
    """A tensor of a checkpoint. Only the elements that an index asks for are read, and only when they are asked for.

    name, state: for example ("h.0.attn.weight", "exp_avg").
    dtype: name in torch, for example "bfloat16". shape: tuple of int. nbytes: bytes of all elements.
    group: number of the parameter group, or None. frozen: True for a parameter that is not trained.
    derived: True for 16-bit weights that are rounded from the fp32 state when they are read.
    crc64: CRC-64/XZ of all bytes, 16 hexadecimal digits, or None where the format records none.
    Thread safety: all members are thread-safe; reading releases the interpreter's lock.
    """

    def __init__(self, checkpoint: Checkpoint, number: int, described: Mapping[str, Any]) -> None:
        self._checkpoint = checkpoint
        self._number = number
        self.name: str = described["name"]
        self.state: str = described["state"]
        self.dtype: str = described["dtype"]
        self.shape: tuple[int, ...] = tuple(described["shape"])
        self.nbytes: int = described["bytes"]
        self.group: Optional[int] = described["group"] if described["group"] >= 0 else None
        self.frozen: bool = described["frozen"]
        self.derived: bool = described["derived"]
        self.crc64: Optional[str] = described["crc64"]
        stats = described["stats"]
        self.stats: Optional[Stats] = stats and Stats(stats["count"], stats["nan"], stats["inf"], stats["min"], stats["max"],
                                                      math.sqrt(stats["sum_squares"]))

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def __repr__(self) -> str:
        return f"<Tensor {self.name} [{self.state}] {self.dtype} {self.shape}>"

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a tensor without dimensions has no length")
        return self.shape[0]

    def __getitem__(self, index: Any) -> np.ndarray[Any, Any]:
        return self.numpy(index)

    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> np.ndarray[Any, Any]:
        if copy is False:
            raise ValueError("the elements are in a file: reading them makes a copy")
        values = self.numpy()
        return values if dtype is None else values.astype(dtype)

    def numpy(self, index: Any = ...) -> np.ndarray[Any, Any]:
        """Reads the elements at `index` (integers, slices and `...`) into a new array, with at most 32 MiB of memory beside it.

        Raises TypeError for bfloat16 and 8-bit floats unless the package ml_dtypes is installed; IndexError for a wrong index; Error.
        """
        values = self.bits(index)
        return values.view(_extended_dtype(self)) if self.dtype in _BITS else values

    def torch(self, index: Any = ...) -> torch.Tensor:
        """Reads the elements at `index` into a new torch tensor of this tensor's dtype, on the CPU."""
        import torch

        values = self.bits(index)
        if values.dtype == np.uint16:  # older torch has no uint16
            values = values.view(np.int16)
        dtype: torch.dtype = getattr(torch, self.dtype)
        return torch.from_numpy(values).view(dtype)

    def _read_into(self, begin: int, elements: int, address: int) -> None:
        """Reads elements [begin, begin + elements) into the memory at `address`, which the caller keeps alive."""
        self._checkpoint._read(self, begin, elements, address)

    def _read_box_into(self, offsets: Sequence[int], sizes: Sequence[int], address: int) -> None:
        """Reads a box, of at least one element, into the memory at `address`, which the caller keeps alive."""
        self._checkpoint._read_box(self, offsets, sizes, address)

    def bits(self, index: Any = ...) -> np.ndarray[Any, Any]:
        """Reads as numpy() does; bfloat16 gives uint16, and 8-bit floats give uint8, with the same bits."""
        return _slices.read(index, self.shape, np.dtype(_BITS.get(self.dtype, self.dtype)), self._read_part)

    def _read_part(self, offsets: Sequence[int], sizes: Sequence[int], address: int) -> None:
        """Does the work of _read_box_into(); a range of elements is read as one, along the file's own chunks."""
        box = Box(tuple(offsets), tuple(sizes))
        if run_elements(box, self.shape) == box.elements:
            self._read_into(first_element(box, self.shape), box.elements, address)
        else:
            self._read_box_into(offsets, sizes, address)


class _Tensors(Mapping[Key, Tensor]):
    """All tensors by (name, state), in the order of the checkpoint."""

    def __init__(self, tensors: Mapping[Key, Tensor]) -> None:
        self._tensors = tensors

    def __getitem__(self, key: Key) -> Tensor:
        return self._tensors[key]

    def __iter__(self) -> Iterator[Key]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __repr__(self) -> str:
        return f"<{len(self)} tensors>"


class Checkpoint:
    """A checkpoint of any format, open for reading. unishard.open() makes it; it is a context manager.

    path: what was opened. tag: its tag, or None. format: for example "native", "deepspeed" or "dcp".
    step, world_size, stage: of the run that saved it. identity: 16 hexadecimal digits that are equal for equal states of any world
    size and format, or None where the format records no digests.
    tensors: mapping from (name, state) to Tensor. aliases: second names of parameters (tied weights) and what they mean.
    groups, scheduler, loss_scaler, data_position, rng, client_state, config, producer: what the trainer stored, or None.
    losses: what the files hold and cannot be read: dicts with "role" ("weight", "state", ...), "name", "why" and perhaps "shape".
    notes: sentences on what the files hold beside that.
    Pickling: what a process unpickles is the same checkpoint, opened again there.
    Thread safety: all members are thread-safe. After a fork, open the checkpoint again in the child.
    """

    def __init__(self, path: str, tag: Optional[str], threads: int, assume_model_order: bool = False) -> None:
        self._handle: Optional[Handle] = Handle(path, tag, assume_model_order)
        self._assume_model_order = assume_model_order
        self._given: str = os.path.abspath(path) if os.path.exists(path) else path
        self._threads = threads
        described = self._handle.describe()
        self.path: str = described["path"]
        self.tag: Optional[str] = described["tag"]
        self.format: str = described["format"]
        self.step: int = described["step"]
        self.world_size: int = described["world_size"]
        self.stage: int = described["stage"]
        self.identity: Optional[str] = described["identity"]
        self.notes: list[str] = described["notes"]
        self.losses: list[dict[str, Any]] = described["losses"]
        self.aliases: dict[str, str] = dict(described["aliases"])
        self.tensors: Mapping[Key, Tensor] = _Tensors(
            {(row["name"], row["state"]): Tensor(self, number, row) for number, row in enumerate(described["tensors"])})
        self.groups: Any = described["groups"]
        self.scheduler: Any = described["scheduler"]
        self.loss_scaler: Any = described["loss_scaler"]
        self.data_position: Any = described["data_position"]
        self.rng: Any = described["rng"]
        self.client_state: Any = described["client_state"]
        self.config: Any = described["config"]
        self.producer: Any = described["producer"]
        self._states: dict[str, list[str]] = {}
        for name, state in self.tensors:
            self._states.setdefault(name, []).append(state)

    def __reduce__(self) -> tuple[Any, ...]:
        return _opened_again, (self._given, self.tag, self._threads, self.identity, self._assume_model_order)

    def __repr__(self) -> str:
        return f"<Checkpoint {self.path} ({self.format}, {len(self._states)} names, {len(self.tensors)} tensors)>"

    def _repr_html_(self) -> str:
        return checkpoint_html(self)

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends reading. Reads that run on other threads finish; later ones raise ValueError. May be called again."""
        self._handle = None

    def verify_reads(self) -> None:
        """Compares the checksums that reads have left open, and reads the rest of the bytes that they cover. Not beside a read.

        A checksum of a torch.save file or a DeepSpeed folder covers many parameters, and can be compared once all of its bytes are
        read; those of UniShard's own chunks are compared by each read. Raises Error, "corrupt", naming file and tensors.
        """
        self._verify_reads(0, [self._read_parts()])

    def names(self) -> list[str]:
        """Returns the names of all parameters and buffers, without aliases."""
        return list(self._states)

    def states(self, name: str) -> list[str]:
        """Returns the states of a parameter, for example ["fp32", "exp_avg", "exp_avg_sq"]."""
        return list(self._states[self._resolved(name)])

    def __iter__(self) -> Iterator[str]:
        return iter(self._states)

    def __contains__(self, key: object) -> bool:
        if isinstance(key, str):
            return self.aliases.get(key, key) in self._states
        return isinstance(key, tuple) and len(key) == 2 and (self.aliases.get(key[0], key[0]), key[1]) in self.tensors

    def __getitem__(self, key: Union[str, Key]) -> Tensor:
        """Returns the tensor of a name and state. A name alone means its values: fp32 masters where there are, else weights.

        Raises KeyError, with the nearest name.
        """
        if not isinstance(key, str) and not (isinstance(key, tuple) and len(key) == 2):
            raise TypeError(f"a tensor is asked for by its name or by (name, state), not by {type(key).__name__}")
        name, state = (key, None) if isinstance(key, str) else key
        states = self._states[self._resolved(name)]
        if state is None:
            state = next((one for one in _WEIGHT_STATES if one in states), states[0])
        if state not in states:
            raise KeyError(f"{name} has no state {state}; its states are {', '.join(states)}")
        return self.tensors[self.aliases.get(name, name), state]

    def _resolved(self, name: str) -> str:
        target = self.aliases.get(name, name)
        if target not in self._states:
            near = difflib.get_close_matches(name, self._states, 1)
            raise KeyError(f"there is no tensor {name}" + (f"; do you mean {near[0]}?" if near else ""))
        return target

    def _read_parts(self) -> str:
        return self._open_handle().read_parts()

    def _verify_reads(self, rank: int, parts: list[str]) -> None:
        """Does verify_reads() for several ranks; parts: _read_parts() of all."""
        self._open_handle().verify_reads(rank, parts, self._threads)

    def _open_handle(self) -> Handle:
        handle = self._handle
        if handle is None:
            raise ValueError(f"the checkpoint {self.path} is closed")
        return handle

    def _read(self, tensor: Tensor, begin: int, elements: int, address: int) -> None:
        size = elements * (tensor.nbytes // tensor.size) if tensor.size else 0
        self._open_handle().read(tensor._number, begin, begin + elements, address, size, self._threads, (tensor.name, tensor.state))

    def _read_box(self, tensor: Tensor, offsets: Sequence[int], sizes: Sequence[int], address: int) -> None:
        size = math.prod(sizes) * (tensor.nbytes // tensor.size)
        self._open_handle().read_box(tensor._number, offsets, sizes, address, size, self._threads, (tensor.name, tensor.state))


def open(path: Union[str, bytes, os.PathLike[str]], *, tag: Optional[str] = None, threads: Optional[int] = None,
         assume_model_order: bool = False) -> Checkpoint:
    """Opens a checkpoint of any format that UniShard reads: UniShard, DeepSpeed, DCP/FSDP, torch.save, safetensors, HDF5,
    .npz and GGUF.

    path: a file or folder, or ORG/NAME in the local cache of the Hugging Face hub.
    tag: chooses one of several checkpoints in a folder; default: what `latest` names.
    threads: most threads that one read uses; default: one per processor, at most 8.
    assume_model_order: gives an optimizer's numbered states to the parameters in the model's order, also where another order fits.
    Reads tables and no payload. Every later read compares the checksums that the format stores.
    Raises Error, for example with the code "not found" or "corrupt".
    """
    if threads is None:
        threads = min(8, os.cpu_count() or 1)
    if threads < 1:
        raise ValueError("threads must be at least 1")
    return Checkpoint(os.fsdecode(path), tag, threads, assume_model_order)


def _opened_again(path: str, tag: Optional[str], threads: int, identity: Optional[str], assume_model_order: bool = False) -> Checkpoint:
    checkpoint = Checkpoint(path, tag, threads, assume_model_order)
    if checkpoint.identity != identity:
        raise Error("mismatch", f"{path} holds another checkpoint than the one that was pickled", "open it again")
    return checkpoint


def _extended_dtype(tensor: Tensor) -> Any:
    try:
        import ml_dtypes  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        raise TypeError(f"{tensor.name} [{tensor.state}] has the dtype {tensor.dtype}, which numpy does not have: install ml_dtypes, "
                        "or call .torch() or .bits()") from None
    return np.dtype(getattr(ml_dtypes, tensor.dtype))
