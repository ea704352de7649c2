"""Decides which rank writes which elements of tensors that several ranks hold in parts. Pure functions, without torch."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

# A replicated tensor of fewer elements is written by one rank; larger ones are shared out in multiples of _BLOCK elements.
_SHARED_ELEMENTS = 1 << 16
_BLOCK = 1024


class Box(NamedTuple):
    """A part of a tensor: the elements offset[i] <= index[i] < offset[i] + sizes[i]."""

    offset: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def elements(self) -> int:
        return math.prod(self.sizes)


def run_elements(box: Box, shape: tuple[int, ...]) -> int:
    """Returns how many elements of the box lie side by side, in the box and in the whole tensor."""
    run = 1
    for axis in reversed(range(len(shape))):
        run *= box.sizes[axis]
        if box.sizes[axis] != shape[axis]:
            break
    return run


def runs(box: Box, shape: tuple[int, ...]) -> Iterable[tuple[int, int]]:
    """Yields the box as ranges [begin, end) of the whole tensor's elements, in order; neighbours are one range."""
    length = run_elements(box, shape)
    if box.elements == 0:
        return
    strides = [math.prod(shape[axis + 1:]) for axis in range(len(shape))]
    for number in range(box.elements // length):
        rest, begin = number * length, 0
        for axis in reversed(range(len(shape))):
            rest, index = divmod(rest, box.sizes[axis])
            begin += (box.offset[axis] + index) * strides[axis]
        yield begin, begin + length


def own_share(box: Box, shape: tuple[int, ...], holders: list[int], rank: int, number: int) -> tuple[int, int]:
    """Returns the elements [begin, end) of a box, counted within it, that `rank` writes, one of the `holders` of the same box.

    number: of the tensor; small tensors and boxes of many ranges go to the holders in turn.
    """
    count, elements = len(holders), box.elements
    if count == 1:
        return 0, elements
    if elements < _SHARED_ELEMENTS or run_elements(box, shape) != elements:
        return (0, elements) if holders[number % count] == rank else (0, 0)
    place = holders.index(rank)
    blocks = -(-elements // _BLOCK)
    return min(elements, blocks * place // count * _BLOCK), min(elements, blocks * (place + 1) // count * _BLOCK)
