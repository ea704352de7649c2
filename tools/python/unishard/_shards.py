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


def first_element(box: Box, shape: tuple[int, ...]) -> int:
    """Returns the number of the box's first element in the whole tensor."""
    return sum(low * math.prod(shape[axis + 1:]) for axis, low in enumerate(box.offset))


def own_share(box: Box, shape: tuple[int, ...], holders: list[int], rank: int, number: int) -> tuple[int, int]:
    """Returns the elements [begin, end) of a box, counted within it, that `rank` writes, one of the `holders` of the same box.

    number: of the tensor; small tensors go to the holders in turn. The share of a box that is no range is a box too (part_of()).
    """
    count, elements = len(holders), box.elements
    if count == 1:
        return 0, elements
    if elements < _SHARED_ELEMENTS:
        return (0, elements) if holders[number % count] == rank else (0, 0)
    place = holders.index(rank)
    unit = _BLOCK if run_elements(box, shape) == elements else _row_elements(box)
    units = -(-elements // unit)
    return min(elements, units * place // count * unit), min(elements, units * (place + 1) // count * unit)


def part_of(box: Box, first: int, last: int) -> Box:
    """Returns the elements [first, last) of a box, counted within it, as a box. They are whole rows of its first axis with several."""
    axis = next((one for one, size in enumerate(box.sizes) if size > 1), 0)
    row = _row_elements(box)
    offset, sizes = list(box.offset), list(box.sizes)
    offset[axis] += first // row
    sizes[axis] = (last - first) // row
    return Box(tuple(offset), tuple(sizes))


def _row_elements(box: Box) -> int:
    """Returns the elements for each index of the first axis on which the box has several."""
    axis = next((one for one, size in enumerate(box.sizes) if size > 1), 0)
    return math.prod(box.sizes[axis + 1:])
