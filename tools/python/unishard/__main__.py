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
    path = program()
    try:
        os.execv(path, [name, *sys.argv[1:]])
    except OSError as error:
        sys.stderr.write(f"unishard: {path}: {error.strerror}; install the package from a wheel, or set UNISHARD_LIBRARY_DIR to the folder bin "
                         "of a build tree\n")
        sys.exit(3)


if __name__ == "__main__":
    main()
