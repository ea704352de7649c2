"""Runs the program `unishard` in the place of Python: `python -m unishard verify runs/gpt`."""

import os
import sys

from ._place import program


def main() -> None:
    _become("unishard")


def zero_to_fp32() -> None:
    """The program under DeepSpeed's name for this verb: `zero_to_fp32 runs/gpt model.safetensors`."""
    _become("zero_to_fp32")


def _become(name: str) -> None:
    os.execv(program(), [name, *sys.argv[1:]])


if __name__ == "__main__":
    main()
