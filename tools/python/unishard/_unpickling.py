"""Objects that a checkpoint holds as torch.save has made them. Making them again can run any code that the file names, unless they
consist of data alone."""

from __future__ import annotations

import codecs
import io
import re
from typing import Any

import numpy as np
import torch

from ._errors import Error
from ._objects import _PLAIN


def _numpy_makers() -> list[Any]:
    """Returns what pickles of numpy's scalars and arrays call."""
    core = getattr(np, "_core", None) or np.core
    makers = [np.ndarray, np.dtype, core.multiarray._reconstruct, core.multiarray.scalar, codecs.encode]
    return makers + [getattr(np.dtypes, name) for name in dir(np.dtypes) if name.endswith("DType")]


def require_data(content: bytes, key: str) -> None:
    """Raises Error unless the object is made of tensors, numbers, texts, containers and the plain objects of _PLAIN."""
    allowed = [one for one in dict.fromkeys(_PLAIN.values()) if isinstance(one, type)]
    try:
        with torch.serialization.safe_globals(allowed + _numpy_makers()):
            torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds for damaged and for refused pickles
        named = re.search(r"GLOBAL (\S+)", str(error))
        raise Error("unsupported", f"the object {key} is more than data ({named.group(1) if named else type(error).__name__}), so loading it "
                    "could run code of the file",
                    "if you trust the checkpoint: Reader(path, weights_only=False)") from None
