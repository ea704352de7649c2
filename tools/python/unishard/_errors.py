"""The exception of this package."""

from __future__ import annotations

from typing import Optional


class Error(Exception):
    """What UniShard reports: its text names the file, the tensor and the byte.

    code: the name of the kind of error, for example "corrupt", "not found" or "busy"; ErrorCode in unishard/format/error.hpp lists them.
    message: what failed and where.
    hint: the remedy to suggest; may be empty.
    tensor: name and state of the tensor that was read, or None.
    status: exit status of the program, for an error of one of its verbs; else None.
    """

    def __init__(self, code: str, message: str, hint: str = "", *, tensor: Optional[tuple[str, str]] = None,
                 status: Optional[int] = None) -> None:
        super().__init__(f"{message} ({hint})" if hint else message)
        self.code = code
        self.message = message
        self.hint = hint
        self.tensor = tensor
        self.status = status

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (self.code, self.message, self.hint, self.tensor, self.status)


def _rebuild(code: str, message: str, hint: str, tensor: Optional[tuple[str, str]], status: Optional[int]) -> Error:
    return Error(code, message, hint, tensor=tensor, status=status)
