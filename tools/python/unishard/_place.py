"""Where the library and the program of this package are. Imports little, because the program's start waits for it."""

from __future__ import annotations

import os


def folder() -> str:
    """Returns the folder of the library: the package's own, or that of a build tree in UNISHARD_LIBRARY_DIR."""
    return os.environ.get("UNISHARD_LIBRARY_DIR") or os.path.dirname(os.path.abspath(__file__))


def program() -> str:
    """Returns the path of the program that belongs to this package."""
    carried = os.path.join(folder(), "bin", "unishard")
    return carried if os.path.exists(carried) else os.path.join(folder(), "unishard")  # a build tree has both in one folder
