"""Reads checkpoints of any format, and runs UniShard's tools on them.

    import unishard

    with unishard.open("runs/gpt") as checkpoint:
        weight = checkpoint["h.0.attn.qkv.weight"].numpy()
        moment = checkpoint["h.0.attn.qkv.weight", "exp_avg"][10:20]

    report = unishard.verify("runs/gpt", deep=True)
    unishard.reshard("runs/gpt", "runs/gpt8", world_size=8)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._checkpoint import Checkpoint, Stats, Tensor, open
    from ._errors import Error
    from ._program import convert, diff, inspect, program, prune, report, reshard, verify, zero_to_fp32

__version__ = "0.1.0"
__all__ = ["Checkpoint", "Error", "Stats", "Tensor", "convert", "diff", "inspect", "open", "program", "prune", "report",
           "reshard", "verify", "zero_to_fp32"]

_MODULES = {**dict.fromkeys(("Checkpoint", "Stats", "Tensor", "open"), "._checkpoint"), "Error": "._errors"}


def __getattr__(name: str) -> Any:
    """Imports what a name of the package needs when it is used first, so that the program `unishard` starts without it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULES.get(name, "._program"), __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
