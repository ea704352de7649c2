"""Python values as the JSON of a catalog's sections, and back.

The JSON is the one that UniShard makes of pickles (MAPPING.md): {"$type": ...} for what JSON lacks, {"$tensor": name} for a
tensor. Only plain data is made again: a checkpoint cannot name a class or function that is called.
"""

from __future__ import annotations

import argparse
import collections
import copyreg
import datetime
import decimal
import enum
import fractions
import math
import pathlib
import types
from collections.abc import Callable
from typing import Any, Optional

import numpy as np
import torch

from ._errors import Error

# Classes whose objects are data, by the names that their pickles have.
_PLAIN: dict[str, Any] = {
    "argparse.Namespace": argparse.Namespace, "types.SimpleNamespace": types.SimpleNamespace, "builtins.xrange": range,
    "builtins.slice": slice, "datetime.date": datetime.date, "datetime.datetime": datetime.datetime, "datetime.time": datetime.time,
    "datetime.timedelta": datetime.timedelta, "datetime.timezone": datetime.timezone, "decimal.Decimal": decimal.Decimal,
    "builtins.range": range, "fractions.Fraction": fractions.Fraction, "pathlib.PosixPath": pathlib.PurePosixPath,
    "pathlib.PurePosixPath": pathlib.PurePosixPath, "pathlib.WindowsPath": pathlib.PureWindowsPath,
    "pathlib.PureWindowsPath": pathlib.PureWindowsPath, "numpy.dtype": np.dtype}
# Classes of which a defaultdict may make its values.
_FACTORIES: dict[str, Any] = {
    "builtins.bool": bool, "builtins.dict": dict, "builtins.float": float, "builtins.int": int, "builtins.list": list, "builtins.set": set,
    "builtins.str": str, "builtins.tuple": tuple, "collections.Counter": collections.Counter,
    "collections.OrderedDict": collections.OrderedDict}
_SCALAR, _ARRAY = "numpy.core.multiarray.scalar", "numpy.core.multiarray._reconstruct"
_NUMBERS = "biufcSU"  # kinds of numpy's types that are numbers or texts
_DEPTH = 200
Keep = Callable[[str, torch.Tensor], Optional[dict[str, Any]]]


def to_json(value: Any, path: str, keep: Keep) -> Any:
    """Returns the value as JSON. `path` names it in messages; keep(path, tensor) is called for each tensor in it, and may return its JSON.

    Raises Error for an object that is not plain data.
    """
    if path.count(".") > _DEPTH:
        raise Error("invalid argument", f"{path[:200]}... is nested too deeply, or contains itself")
    if value is None or isinstance(value, bool) or type(value) is str and is_text(value):
        return value
    kind = type(value)
    if kind is int:
        return value if -2**63 <= value < 2**63 else {"$type": "int", "dec": str(value)}
    if kind is float:
        return value if math.isfinite(value) else {"$type": "float", "value": repr(value)}
    if kind is str:
        return {"$type": "str", "hex": value.encode("utf-8", "surrogatepass").hex()}
    if kind in (bytes, bytearray):
        return {"$type": kind.__name__, "hex": value.hex()}
    if kind is complex:
        return {"$type": "complex", "value": [to_json(one, path, keep) for one in (value.real, value.imag)]}
    if kind is list:
        return _items(value, path, keep)
    if kind in (tuple, set, frozenset, torch.Size):
        return {"$type": "torch.Size" if kind is torch.Size else kind.__name__, "items": _items(value, path, keep)}
    if kind is dict and all(type(key) is str and not key.startswith("$") and is_text(key) for key in value):
        return {key: to_json(one, f"{path}.{key}", keep) for key, one in value.items()}
    if kind is collections.defaultdict and (value.default_factory is None or value.default_factory in _FACTORIES.values()):
        pairs = [[to_json(key, path, keep), to_json(one, f"{path}.{key}", keep)] for key, one in value.items()]
        factory = next((name for name, one in _FACTORIES.items() if one is value.default_factory), None)
        out = {"$type": "collections.defaultdict", "pairs": pairs}
        return {**out, "args": {"$type": "tuple", "items": [{"$type": "global", "name": factory}]}} if factory else out
    if kind in (dict, collections.OrderedDict, collections.Counter):
        pairs = [[to_json(key, path, keep), to_json(one, f"{path}.{key}", keep)] for key, one in value.items()]
        return {"$type": "builtins.dict" if kind is dict else f"collections.{kind.__name__}", "pairs": pairs}
    if isinstance(value, torch.dtype):
        return {"$type": "torch.dtype", "value": str(value)}
    if isinstance(value, torch.device):
        return {"$type": "torch.device", "value": str(value)}
    if isinstance(value, torch.Tensor):
        inline = keep(path, value.detach())
        return {"$tensor": path} if inline is None else inline
    base = next((one for one in (str, int, float, dict, list, tuple) if isinstance(value, one)), None)
    if base is not None and not isinstance(value, np.generic):  # members of an enumeration, named tuples and the like
        return to_json(base(value.value if isinstance(value, enum.Enum) else value), path, keep)
    return _object(value, path, keep)


def simple_json(value: Any, path: str) -> Any:
    """Returns settings as JSON: tuples are lists, dtypes texts and tensors of one element numbers."""
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return value.item()
    if isinstance(value, dict):
        return {str(key): simple_json(one, f"{path}.{key}") for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [simple_json(one, f"{path}.{number}") for number, one in enumerate(value)]
    return str(value) if isinstance(value, torch.dtype) else to_json(value, path, refuse_tensor)


def from_json(value: Any, tensor: Callable[[str], torch.Tensor]) -> Any:
    """Returns the value that to_json() described; tensor(name) gives its tensors. What is no plain data stays JSON."""
    if isinstance(value, list):
        return [from_json(one, tensor) for one in value]
    if not isinstance(value, dict):
        return value
    kind = "tensor" if next(iter(value), None) == "$tensor" else value.get("$type")
    if kind is None:
        return {key: from_json(one, tensor) for key, one in value.items()}
    try:
        return _typed(kind, value, tensor)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError) as error:
        raise Error("corrupt", f"a value of the checkpoint's state is no {kind}: {error}") from None


def inline_tensor(tensor: torch.Tensor) -> dict[str, Any]:
    """Returns the JSON of a small tensor with its bytes."""
    content = tensor.cpu().contiguous().reshape(-1).view(torch.uint8)
    return {"$type": "torch.Tensor", "dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape),
            "hex": bytes(content.tolist()).hex()}


def is_text(value: str) -> bool:
    """Returns false for a text with half a surrogate pair, as a file name that is not UTF-8 has, which JSON cannot hold."""
    return value.isascii() or not any("\ud800" <= one <= "\udfff" for one in value)


def no_tensors(name: str) -> torch.Tensor:
    """The second argument of from_json() for values that hold no tensors."""
    raise Error("corrupt", f"the tensor {name} is in a value of the checkpoint that holds no tensors")


def refuse_tensor(path: str, tensor: torch.Tensor) -> None:
    """The last argument of to_json() for values that may not hold tensors."""
    raise Error("unsupported", f"{path} is a tensor of shape {tuple(tensor.shape)}, and not a number or text")


def _items(values: Any, path: str, keep: Keep) -> list[Any]:
    return [to_json(one, f"{path}.{number}", keep) for number, one in enumerate(values)]


def _object(value: Any, path: str, keep: Keep) -> Any:
    """Describes an object of _PLAIN, a numpy scalar or a numpy array by what its pickle would call."""
    kind = type(value)
    if kind is np.ndarray and value.dtype.kind in _NUMBERS:
        shape, fortran, content = value.shape, bool(value.flags.f_contiguous and not value.flags.c_contiguous), value.tobytes("A")
        args: tuple[Any, ...] = ((0,), b"b")
        state = to_json((1, shape, value.dtype, fortran, content), path, keep)
        return {"$type": "object", "name": _ARRAY, "args": [{"$type": "global", "name": "numpy.ndarray"}, *_items(args, path, keep)],
                "state": state}
    if isinstance(value, np.generic) and value.dtype.kind in _NUMBERS:
        return {"$type": "object", "name": _SCALAR, "args": _items((value.dtype, value.tobytes()), path, keep)}
    if isinstance(value, np.dtype) and value.kind in _NUMBERS:
        name: Any = "numpy.dtype"
    else:
        name = next((name for name, one in _PLAIN.items() if kind.__name__ == name.rsplit(".", 1)[1] and issubclass(kind, one)), None)
    if name is None:
        raise Error("invalid argument", f"{path} is a {kind.__module__}.{kind.__qualname__}, which is no plain data")
    if kind in (range, slice):  # Python 2's name of range is that of protocol 2
        return {"$type": "object", "name": "builtins.xrange" if kind is range else name, "args": [value.start, value.stop, value.step]}
    call, args, *rest = value.__reduce_ex__(2)
    if call is copyreg.__newobj__:  # type: ignore[attr-defined,unused-ignore]
        args = args[1:]
    out = {"$type": "object", "name": name}
    if args:
        out["args"] = _items(args, path, keep)
    if rest and rest[0] is not None:
        out["state"] = to_json(rest[0], path, keep)
    return out


def _typed(kind: str, value: dict[str, Any], tensor: Callable[[str], torch.Tensor]) -> Any:
    if kind == "tensor":
        return tensor(value["$tensor"])
    if kind == "torch.Tensor":  # a small one, whose bytes are in the text
        dtype, content = getattr(torch, value["dtype"]), bytearray.fromhex(value["hex"])
        return torch.frombuffer(content, dtype=torch.uint8).view(dtype).reshape(value["shape"]) if content else torch.empty(
            value["shape"], dtype=dtype)
    if kind == "int":
        return int(value["dec"]) if "dec" in value else int.from_bytes(bytes.fromhex(value["hex_le"]), "little", signed=True)
    if kind == "float":
        return float(value["value"])
    if kind == "str":
        return bytes.fromhex(value["hex"]).decode("utf-8", "surrogatepass")
    if kind in ("bytes", "bytearray"):
        content = bytes.fromhex(value["hex"])
        return content if kind == "bytes" else bytearray(content)
    if kind == "complex":
        real, imaginary = (from_json(one, tensor) for one in value["value"])
        return complex(real, imaginary)
    if kind in ("tuple", "set", "frozenset", "torch.Size"):
        make: Any = {"tuple": tuple, "set": set, "frozenset": frozenset, "torch.Size": torch.Size}[kind]
        return make(from_json(value["items"], tensor))
    if kind == "collections.defaultdict":
        factory = value["args"]["items"][0] if "args" in value else None
        if factory is not None and factory.get("name") not in _FACTORIES:
            return value
        return collections.defaultdict(factory and _FACTORIES[factory["name"]], _pairs(value, tensor))
    if kind in ("builtins.dict", "collections.OrderedDict", "collections.Counter"):
        make = {"builtins.dict": dict, "collections.OrderedDict": collections.OrderedDict, "collections.Counter": collections.Counter}[kind]
        return make(dict(_pairs(value, tensor)))
    if kind == "torch.dtype":
        dtype = getattr(torch, value["value"].removeprefix("torch."))
        if not isinstance(dtype, torch.dtype):
            raise ValueError(value["value"])
        return dtype
    if kind == "torch.device":
        return torch.device(value["value"])
    return _plain(value, tensor) if kind == "object" else value


def _pairs(value: dict[str, Any], tensor: Callable[[str], torch.Tensor]) -> list[tuple[Any, Any]]:
    return [(from_json(key, tensor), from_json(one, tensor)) for key, one in value["pairs"]]


def _plain(value: dict[str, Any], tensor: Callable[[str], torch.Tensor]) -> Any:
    name = value.get("name")
    if name == _ARRAY:
        _, shape, dtype, fortran, content = from_json(value["state"], tensor)
        return np.frombuffer(content, _checked(dtype)).reshape(shape, order="F" if fortran else "C").copy("A")
    if name not in _PLAIN and name != _SCALAR:
        return value
    args, state = from_json(value.get("args", []), tensor), from_json(value.get("state"), tensor)
    if name == _SCALAR:
        dtype, content = args
        return np.frombuffer(content, _checked(dtype))[0]
    if name == "numpy.dtype":
        return _checked(np.dtype(args[0]).newbyteorder(state[1]) if state and state[1] in "<>" else np.dtype(args[0]))
    made = _PLAIN[name](*args)
    if name in ("argparse.Namespace", "types.SimpleNamespace"):
        made.__dict__.update(state or {})
    if name in ("pathlib.PosixPath", "pathlib.WindowsPath"):
        return pathlib.Path(made) if isinstance(pathlib.Path(), _PLAIN[name]) else made
    return made


def _checked(dtype: Any) -> np.dtype[Any]:
    if not isinstance(dtype, np.dtype) or dtype.kind not in _NUMBERS or dtype.itemsize == 0:
        raise ValueError(f"{dtype} is no type of numbers or texts")
    return dtype
