"""Reads checkpoints of any format, and runs UniShard's tools on them.

    import unishard

    with unishard.open("runs/gpt") as checkpoint:
        weight = checkpoint["h.0.attn.qkv.weight"].numpy()
        moment = checkpoint["h.0.attn.qkv.weight", "exp_avg"][10:20]

    report = unishard.verify("runs/gpt", deep=True)
    unishard.reshard("runs/gpt", "runs/gpt8", world_size=8)
"""

from ._checkpoint import Checkpoint, Stats, Tensor, open
from ._errors import Error
from ._program import convert, diff, inspect, program, prune, report, reshard, verify, zero_to_fp32

__version__ = "0.1.0"
__all__ = ["Checkpoint", "Error", "Stats", "Tensor", "convert", "diff", "inspect", "open", "program", "prune", "report",
           "reshard", "verify", "zero_to_fp32"]
