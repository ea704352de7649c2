"""What an index reads of a tensor: boxes into place, or spans of bounded size from which the elements are taken."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

_SPAN_BYTES = 32 << 20  # of what is read beside the result
_GAP_BYTES = 1 << 20  # the largest chunk: more than this between two elements is not read with them

Values = np.ndarray[Any, Any]
# Reads the box (offsets, sizes), of at least one element, into the memory at an address.
ReadBox = Callable[[Sequence[int], Sequence[int], int], None]


class Axis(NamedTuple):
    """The indices begin, begin + step, ... on one axis."""

    begin: int
    count: int
    step: int

    @property
    def span(self) -> int:
        return (self.count - 1) * self.step + 1

    def part(self, first: int, count: int) -> Axis:
        return Axis(self.begin + first * self.step, count, self.step if count > 1 else 1)


def read(index: Any, shape: tuple[int, ...], dtype: Any, read_box: ReadBox) -> Values:
    """Returns the elements at `index` (integers, slices and `...`) of a tensor, in a new array that is C-contiguous.

    Memory: the result, a copy of it when a step is negative, and 32 MiB. Raises IndexError or TypeError for a wrong index.
    """
    items = _expanded(index, shape)
    axes, order = [], []
    for item, length in zip(items, shape):
        chosen = range(*item.indices(length)) if isinstance(item, slice) else range(item, item + 1)
        is_backward = len(chosen) > 1 and chosen.step < 0
        ascending = chosen[::-1] if is_backward else chosen
        axes.append(Axis(ascending.start, len(ascending), ascending.step if len(ascending) > 1 else 1))
        order.append(slice(None, None, -1 if is_backward else 1) if isinstance(item, slice) else 0)
    values = np.empty([axis.count for axis in axes], dtype=dtype)
    if values.size:
        strides = [math.prod(shape[axis + 1:]) * values.itemsize for axis in range(len(shape))]
        _fill(values, axes, strides, read_box)
    return np.ascontiguousarray(values[tuple(order)]).reshape([axis.count for axis, one in zip(axes, order) if isinstance(one, slice)])


def _fill(out: Values, axes: list[Axis], strides: list[int], read_box: ReadBox) -> None:
    """Reads the elements of `axes` into `out`. `strides` are bytes from one index to the next."""
    if out.flags.c_contiguous and all(axis.step == 1 for axis in axes):
        read_box([axis.begin for axis in axes], [axis.count for axis in axes], out.ctypes.data)
        return
    for place, axis in enumerate(axes):
        if (axis.step - 1) * strides[place] > _GAP_BYTES:
            _fill_parts(out, axes, strides, read_box, place, 1)
            return
    spans = [axis.span for axis in axes]
    if math.prod(spans) * out.itemsize > _SPAN_BYTES:
        place = next(place for place, axis in enumerate(axes) if axis.count > 1)
        _fill_parts(out, axes, strides, read_box, place, (axes[place].count + 1) // 2)
        return
    read = np.empty(spans, dtype=out.dtype)
    read_box([axis.begin for axis in axes], spans, read.ctypes.data)
    out[...] = read[tuple(slice(None, None, axis.step) for axis in axes)]


def _fill_parts(out: Values, axes: list[Axis], strides: list[int], read_box: ReadBox, place: int, count: int) -> None:
    """Does the work of _fill() in parts of `count` indices of one axis."""
    for first in range(0, axes[place].count, count):
        part = axes[place].part(first, min(count, axes[place].count - first))
        within = (slice(None),) * place + (slice(first, first + part.count),)
        _fill(out[within], [*axes[:place], part, *axes[place + 1:]], strides, read_box)


def _expanded(index: Any, shape: tuple[int, ...]) -> list[Any]:
    """Returns one integer, not negative, or one slice for each axis."""
    given = list(index) if isinstance(index, tuple) else [index]
    dots = [place for place, item in enumerate(given) if item is Ellipsis]
    if len(dots) > 1:
        raise IndexError("an index has at most one ...")
    place = dots[0] if dots else len(given)
    missing = len(shape) - (len(given) - len(dots))
    if missing < 0:
        raise IndexError(f"{len(given) - len(dots)} indices for {len(shape)} dimensions")
    given[place:place + len(dots)] = [slice(None)] * missing
    items: list[Any] = []
    for axis, item in enumerate(given):
        if isinstance(item, slice):
            items.append(item)
            continue
        try:
            number = operator.index(item)
        except TypeError:
            raise TypeError(f"an index is made of integers, slices and ..., not {type(item).__name__}") from None
        if isinstance(item, (bool, np.bool_)):
            raise TypeError("an index is made of integers, slices and ..., not bool")
        if not -shape[axis] <= number < shape[axis]:
            raise IndexError(f"index {number} of axis {axis}, which has {shape[axis]} elements")
        items.append(number % shape[axis])
    return items
