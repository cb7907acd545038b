# SPDX-License-Identifier: Apache-2.0
"""Index and stride arithmetic: which view an index, a reshape or a transpose makes. No data is touched."""

from __future__ import annotations

import functools
import itertools
import math
import operator
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensorbackend.errors import ShapeError, complain

__all__ = [
    "SliceKey", "as_array", "as_integers", "basic", "check_rank", "combs", "contiguous_strides", "dense_strides",
    "extent", "hashable", "is_fancy", "meet", "memory_order", "nested", "overlaps_itself", "pad_parts", "pad_places",
    "pad_widths", "repeated_places", "reshaped", "runs", "unhashed", "view_strides", "whole", "without_leading",
]  # fmt: skip

Shape = tuple[int, ...]
Widths = tuple[tuple[int, int], ...]
MAX_RANK = 16
MOST_PARTS = 81
"""Parts up to which padding writes each for itself; beyond it looks elements up, axis by axis."""
_INTS = frozenset((int,))
_KNOWN = _INTS | {type(None)}
_PLAIN = frozenset((int, slice))  # of an index: one for each axis
_BASIC = _PLAIN | {type(None), type(Ellipsis)}


@dataclass(frozen=True)
class SliceKey:
    """A slice that can be hashed (Python's own cannot before 3.12): start, stop, step."""

    indices: tuple


def hashable(key: Any) -> tuple:
    """A basic index as a tuple that can be part of a dictionary's key. Raises `TypeError` for a slice of other numbers
    than integers, which dictionaries would take for those."""
    parts = key if isinstance(key, tuple) else (key,)
    return tuple([SliceKey(_ends(k)) if isinstance(k, slice) else k for k in parts])


def unhashed(key: tuple) -> tuple:
    """The index of which `hashable` made `key`."""
    return tuple([slice(*k.indices) if isinstance(k, SliceKey) else k for k in key])


def _ends(k: slice) -> tuple:
    ends = k.start, k.stop, k.step
    return ends if _KNOWN.issuperset(map(type, ends)) else tuple(n if n is None else operator.index(n) for n in ends)


def whole(name: str, numbers: Any) -> tuple:
    """Lengths or axes as ints, which can be part of a dictionary's key. Raises `TypeError` for other numbers, which
    dictionaries would take for those."""
    try:
        numbers = tuple(numbers)
        return numbers if _INTS.issuperset(map(type, numbers)) else tuple(int(operator.index(n)) for n in numbers)
    except TypeError:
        raise TypeError(complain(f"{name}: lengths and axes must be integers", str(numbers), "several ints")) from None


def check_rank(name: str, rank: int) -> None:
    """Raise `ShapeError` for more axes than tensors can have."""
    if rank > MAX_RANK:
        raise ShapeError(complain(f"{name}: too many axes", f"{rank}", f"at most {MAX_RANK}"))


def contiguous_strides(shape: Shape) -> Shape:
    """The strides, in elements, of a C-ordered array without gaps."""
    strides, step = [], 1
    for length in reversed(shape):
        strides.append(step)
        step *= max(length, 1)
    return tuple(reversed(strides))


def memory_order(shape: Shape, strides: Shape) -> Shape:
    """The axes of an array as they lie in memory, the outermost first; those of length 1 stay at their places.

    C order for an array with gaps, repeated or turned axes.
    """
    plain = tuple(range(len(shape)))
    long = [axis for axis in plain if shape[axis] != 1]
    turned = iter(sorted(long, key=lambda axis: -strides[axis]))
    order = tuple(axis if shape[axis] == 1 else next(turned) for axis in plain)
    dense = contiguous_strides(tuple(shape[axis] for axis in order))
    return order if all(shape[a] == 1 or strides[a] == n for a, n in zip(order, dense)) else plain


def dense_strides(shape: Shape, order: Shape) -> Shape:
    """The strides, in elements, of an array without gaps whose axes lie in memory in an order."""
    strides = dict(zip(order, contiguous_strides(tuple(shape[axis] for axis in order))))
    return tuple(strides[axis] for axis in range(len(shape)))


def extent(shape: Shape, strides: Shape, itemsize: int) -> tuple[int, int]:
    """The byte offsets of the lowest and one past the highest byte of a view, from its first element."""
    if 0 in shape:
        return 0, 0
    ends = [(length - 1) * stride for length, stride in zip(shape, strides)]
    return sum(e for e in ends if e < 0) * itemsize, (sum(e for e in ends if e > 0) + 1) * itemsize


def nested(shape: Shape, strides: Shape) -> bool:
    """Whether each axis steps over all that shorter steps reach, so that no two elements share memory."""
    reach = 0
    for step, length in sorted((abs(t), n) for n, t in zip(shape, strides) if n != 1):
        if step <= reach:
            return 0 in shape
        reach += step * (length - 1)
    return True


def combs(shape: Shape, strides: Shape, itemsize: int) -> bytes:
    """The combs in which a view lies, as (period, width) in bytes: from its lowest byte on it touches, of each period,
    no more than the first `width` bytes, fewer than all. Pairs of 64-bit integers, for native code too.
    """
    steps = sorted((abs(t) * itemsize, n) for n, t in zip(shape, strides) if n > 1 and t)
    found, width = [], itemsize
    for i, (step, length) in enumerate(steps):
        if step > width and all(outer % step == 0 for outer, _ in steps[i:]):
            found += [step, width]
        width += step * (length - 1)
    return struct.pack(f"{len(found)}q", *found)


def without_leading(shape: Shape, rank: int) -> Shape:
    """A shape without its axes beyond `rank`, where all of these are of length 1; else as it is."""
    more = len(shape) - rank
    return shape[more:] if more > 0 and set(shape[:more]) == {1} else shape


def meet(start: int, stop: int, ours: bytes, other: int, end: int, theirs: bytes) -> bool:
    """Whether views from `start` to `stop` and from `other` to `end`, in bytes, with these combs, share memory: their
    extents overlap, and they do not keep apart as columns of one matrix, or steps of one buffer, do. Where that is hard
    to tell, the answer is yes."""
    return start < end and other < stop and not _mesh(ours, theirs, other - start)


def _mesh(x: bytes, y: bytes, distance: int) -> bool:
    """Whether two views keep apart as the teeth of two combs of one period do, where their extents overlap; `distance`
    is that of their lowest bytes, y's less x's."""
    ours, theirs = (struct.unpack(f"{len(c) // 8}q", c) for c in (x, y))
    for period, width in zip(ours[::2], ours[1::2]):
        for other, wide in zip(theirs[::2], theirs[1::2]):
            if period == other and width <= distance % period <= period - wide:
                return True
    return False


def overlaps_itself(shape: Shape, strides: Shape) -> bool:
    """Whether two elements of a view share memory."""
    if nested(shape, strides):
        return False
    steps = tuple(map(abs, strides))
    places = np.zeros(extent(shape, steps, 1)[1], bool)
    np.lib.stride_tricks.as_strided(places, shape, steps)[...] = True
    return np.count_nonzero(places) < math.prod(shape)


def is_fancy(key: Any) -> bool:
    """Whether an index picks by arrays or masks rather than by integers, slices, `...` and new axes."""
    parts = key if isinstance(key, tuple) else (key,)
    if _BASIC.issuperset(map(type, parts)):
        return False
    return any(not (k is None or k is Ellipsis or isinstance(k, slice) or _is_int(k)) for k in parts)


def _is_int(k: Any) -> bool:
    return isinstance(k, (int, np.integer)) and not _is_truth(k)


def _is_truth(k: Any) -> bool:
    return isinstance(k, (bool, np.bool_))


def expand(key: Any, rank: int, consumed: int | None = None) -> tuple:
    """`key` with its ellipsis replaced by whole slices, one entry for each of `rank` axes (new axes beside)."""
    parts = key if isinstance(key, tuple) else (key,)
    plain = _PLAIN.issuperset(map(type, parts))
    if consumed is not None:
        used = consumed
    else:
        used = len(parts) if plain else sum(not (k is None or k is Ellipsis or _is_truth(k)) for k in parts)
    if used > rank:
        raise IndexError(complain("index: too many indices", f"{used} for {rank} axes", f"at most {rank}"))
    whole = (slice(None),) * (rank - used)
    places = [] if plain else [i for i, k in enumerate(parts) if k is Ellipsis]
    if len(places) > 1:
        raise IndexError(complain("index: more than one ellipsis", str(parts), "at most one"))
    at = places[0] if places else len(parts)
    return (*parts[:at], *whole, *parts[at + 1 :])


def basic(key: Any, shape: Shape, strides: Shape, min_dims: int) -> tuple[Shape, Shape, int]:
    """The view that integers, slices, `...` and new axes make: its shape, strides, and offset in elements.

    An integer drops its axis unless the rank would fall below `min_dims`; then the axis stays with length 1.
    Raises `IndexError` for an integer out of range or too many indices.
    """
    parts = expand(key, len(shape))
    droppable = max(len(parts) - min_dims, 0)
    new_shape: list[int] = []
    new_strides: list[int] = []
    offset, axis = 0, 0
    for part in parts:
        if part is None:
            new_shape.append(1)
            new_strides.append(0)
            continue
        length, stride = shape[axis], strides[axis]
        axis += 1
        if isinstance(part, slice):
            start, stop, step = part.indices(length)
            count = max(0, math.ceil((stop - start) / step))
            offset += start * stride if count else 0
            new_shape.append(count)
            new_strides.append(stride * step if count > 1 else stride)  # of one element, by any step
            continue
        i = operator.index(part)
        if not -length <= i < length:
            raise IndexError(
                complain("index: out of range", f"{i} on an axis of length {length}", f"-{length} to {length - 1}")
            )
        offset += (i % length) * stride
        if droppable:
            droppable -= 1
        else:
            new_shape.append(1)
            new_strides.append(stride)
    check_rank("index", len(new_shape))
    return tuple(new_shape), tuple(new_strides), 0 if 0 in new_shape else offset


def reshaped(shape: Shape, wanted: Sequence[int]) -> Shape:
    """`wanted` with its -1 worked out. Raises `ShapeError` when the sizes differ or the axes are too many."""
    check_rank("reshape", len(wanted))
    try:
        result = list(map(operator.index, wanted))
    except TypeError:
        raise TypeError(
            complain("reshape: lengths must be integers", str(tuple(wanted)), "ints, one may be -1")
        ) from None
    size = math.prod(shape)
    if result.count(-1) == 1:
        rest = math.prod(n for n in result if n != -1)
        if rest > 0 and size % rest == 0:
            result[result.index(-1)] = size // rest
    if min(result, default=0) < 0 or math.prod(result) != size:
        raise ShapeError(
            complain(
                "reshape: sizes differ", f"{shape} ({size} elements) to {tuple(wanted)}", f"a shape of {size} elements"
            )
        )
    return tuple(result)


def view_strides(shape: Shape, strides: Shape, wanted: Shape) -> Shape | None:
    """The strides under which `wanted` reads the same elements in C order, or None when a copy is needed."""
    if math.prod(shape) == 0:
        return contiguous_strides(wanted)
    axes = [(n, s) for n, s in zip(shape, strides) if n != 1]
    result = [0] * len(wanted)
    position = 0
    target = 0
    while target < len(wanted):
        if wanted[target] == 1:
            target += 1
            continue
        if position >= len(axes):
            return None
        length, stride = axes[position]
        last = position
        goal = wanted[target]
        first = target
        while length != goal:
            if length < goal:
                last += 1
                if last >= len(axes) or axes[last - 1][1] != axes[last][0] * axes[last][1]:
                    return None
                length *= axes[last][0]
            else:
                target += 1
                goal *= wanted[target]
        stride = axes[last][1]
        for axis in range(target, first - 1, -1):
            result[axis] = stride
            stride *= wanted[axis]
        position = last + 1
        target += 1
    return tuple(result)


def as_array(name: str, x: Any, dtype: Any = None) -> np.ndarray:
    """Host data as NumPy's array. Raises `ShapeError` for lists whose entries differ in length, `TypeError` for masked
    arrays."""
    refuse_mask(name, x)
    try:
        return np.asarray(x, dtype)
    except ValueError as error:
        raise ShapeError(complain(f"{name}: not an array", str(error), "rows of equal length")) from None


def as_integers(name: str, x: Any) -> np.ndarray:
    """As `as_array`, where integers are wanted: a list of none is of integers, not of floats as for NumPy."""
    return as_array(name, x, np.int64 if isinstance(x, (list, tuple)) and not x else None)


def refuse_mask(name: str, x: Any) -> None:
    """Raise `TypeError` for a masked array, whose mask would be lost."""
    if isinstance(x, np.ma.MaskedArray):
        given = f"masked array of shape {x.shape}"
        raise TypeError(complain(f"{name}: a masked array", given, "an array without a mask", ".filled(value)"))


def pad_widths(pad_width: Any, rank: int) -> Widths:
    """Entries (before, after) each axis, of a pair for each, one pair for all or one number. Raises `ValueError` for
    what is no such integers of 0 or more."""
    if pad_width.__class__ is int and pad_width >= 0:
        return ((pad_width, pad_width),) * rank
    given = as_array("pad: widths", pad_width)
    pairs = given.shape in ((), (1,), (2,), (1, 2), (rank, 1), (rank, 2))
    if not pairs or given.dtype.kind not in "iu" or (given < 0).any():
        expected = f"integers of 0 or more: one, a pair, or {rank} pairs"
        raise ValueError(complain("pad: widths", f"{pad_width}", expected))
    return tuple((before, after) for before, after in np.broadcast_to(given, (rank, 2)).tolist())


def repeated_places(repeats: Any, length: int) -> np.ndarray:
    """The places along an axis of which each is repeated. Raises `ValueError` for other numbers than ints of 0 or more,
    one for all or one for each."""
    times = as_integers("repeat: repeats", repeats)
    if times.dtype.kind not in "iu" or times.ndim > 1 or times.size not in (1, length) or times.min(initial=0) < 0:
        raise ValueError(complain("repeat: repeats", f"{repeats}", f"an int of 0 or more, or {length} of them"))
    return np.repeat(np.arange(length, dtype=np.int64), times)


def pad_places(shape: Shape, widths: Widths, mode: str) -> list[tuple[int, np.ndarray]]:
    """(axis, places) of the entries that padding by a mode other than 'constant' takes, axis by axis. Raises
    `ValueError` for another mode, `ShapeError` for axes without entries."""
    if mode not in ("edge", "reflect", "symmetric", "wrap"):
        raise ValueError(complain("pad: mode", repr(mode), "constant, edge, reflect, symmetric or wrap"))
    wanted = [axis for axis, pair in enumerate(widths) if any(pair)]
    if any(shape[axis] == 0 for axis in wanted):
        raise ShapeError(complain(f"pad: {mode} of no entries", f"widths {widths} of {shape}", "an axis that has some"))
    return [(axis, np.pad(np.arange(shape[axis], dtype=np.int64), widths[axis], mode)) for axis in wanted]


def runs(places: Sequence[int]) -> list[tuple[slice, slice, int]]:
    """Places along an axis as runs of equal steps of 1, -1 or 0: (where among the places, which of the axis, how many;
    of step 0 the axis has one)."""
    found = []
    begin = 0
    while begin < len(places):
        first, end = places[begin], begin + 1
        step = places[end] - first if end < len(places) else 0
        step = step if abs(step) <= 1 else 0
        while end < len(places) and places[end] == first + step * (end - begin):
            end += 1
        last = first + step * (end - begin - 1)
        part = slice(first, last - 1 if last else None, -1) if step < 0 else slice(first, last + 1)
        found.append((slice(begin, end), part, end - begin))
        begin = end
    return found


@functools.lru_cache(maxsize=256)
def pad_parts(shape: Shape, widths: Widths, mode: str) -> list[tuple[tuple, tuple, Shape]] | None:
    """The parts that padding by a mode other than 'constant' is made of: (which part of the result, which of the array,
    the shape that this is broadcast to); None for more than `MOST_PARTS`. Raises as `pad_places`."""
    found = dict(pad_places(shape, widths, mode))
    axes = [runs(found[a].tolist()) if a in found else [(slice(0, n), slice(0, n), n)] for a, n in enumerate(shape)]
    if math.prod(map(len, axes)) > MOST_PARTS:
        return None
    return [tuple(zip(*part)) or ((), (), ()) for part in itertools.product(*axes)]  # type: ignore[misc]
