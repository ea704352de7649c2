"""Runs the program `unishard` in the place of Python: `python -m unishard verify runs/gpt`."""

import os
import sys

from ._program import program


def main() -> None:
    path = str(program())
    os.execv(path, ["unishard", *sys.argv[1:]])


if __name__ == "__main__":
    main()
