# SPDX-License-Identifier: Apache-2.0
"""Sizes of convolutions and poolings: what follows from lengths, windows, strides and padding, and what is refused.

Letters are those of the contract: N images; C maps of D x H x W before, K maps of M x P x Q after; filters or windows
of T x R x S (and J maps, for pooling). N is the last axis of every image, K of every filter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tensorbackend.errors import ShapeError, complain

__all__ = ["ConvGeometry", "Pad", "PoolGeometry", "each_tap", "output_length", "pad_pair", "positive", "share_inside",
           "spans_inside"]  # fmt: skip

Pad = tuple[int, int]
"""Zeros (for pooling: nothing) before and after an axis."""


FARTHEST = 1 << 62
"""Places that kernels count before an axis are fewer."""
WIDEST = 1 << 48
"""Elements of images with the padding before them, of which convolutions may need a copy, are fewer."""


def positive(name: str, **sizes: Any) -> list[int]:
    """The sizes as ints of at least 1. Raises `ShapeError` naming the first that is not one."""
    for size, value in sizes.items():
        if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < 1:
            raise ShapeError(complain(f"{name}: {size}", repr(value), "an int of at least 1"))
    return [int(value) for value in sizes.values()]


def pad_pair(name: str, pad: Any) -> Pad:
    """A pad, one number for both ends or a pair (before, after), as a pair. Raises `ShapeError` for anything else, and
    for a first window that lies too far from an axis to be counted."""
    ends = tuple(pad) if isinstance(pad, (tuple, list)) else (pad, pad)
    whole = all(isinstance(n, (int, np.integer)) and not isinstance(n, bool) and n >= 0 for n in ends)
    if len(ends) != 2 or not whole:
        raise ShapeError(complain(f"{name}: padding", repr(pad), "an int of at least 0, or a pair (before, after)"))
    if ends[0] >= FARTHEST:
        raise ShapeError(complain(f"{name}: padding before an axis", f"{ends[0]}", f"less than {FARTHEST}"))
    return int(ends[0]), int(ends[1])


def output_length(length: int, window: int, pad: Pad, stride: int, pooling: bool = False, caffe: bool = False,
                  what: str = "output_dim: padding") -> int:  # fmt: skip
    """How many windows of `window` cells fit on an axis; it may be zero or negative.

    floor((length - window + pad) / stride) + 1; for pooling in Caffe's mode the ceiling, less a last window that lies
    wholly in padding. Raises `ShapeError` when pooling's padding, which messages call `what`, is not below the window.
    """
    if pooling and max(pad) >= window:
        raise ShapeError(complain(what, f"{max(pad)} with windows of {window}", "less than the window"))
    room = length - window + sum(pad)
    if not (caffe and pooling):
        return room // stride + 1
    size = -(-room // stride) + 1
    return size - 1 if sum(pad) > 0 and (size - 1) * stride >= length + pad[0] else size


@dataclass(frozen=True)
class _Images:
    """What geometries of images have in common: N images of C maps of D x H x W before, and K of M x P x Q after."""

    N: int
    C: int
    D: int
    H: int
    W: int
    K: int
    M: int
    P: int
    Q: int

    @property
    def dimI(self) -> tuple[int, ...]:
        """The shape of the input."""
        return self.C, self.D, self.H, self.W, self.N

    @property
    def dimO(self) -> tuple[int, ...]:
        """The shape of the output."""
        return self.K, self.M, self.P, self.Q, self.N


@dataclass(frozen=True)
class ConvGeometry(_Images):
    """A convolution's sizes. `strides`, `pads` (before, after) and `dilations` are for depth, height and width.

    Filters are T x R x S. Map k of the output sees the C / groups maps of group k // (K / groups).
    """

    T: int
    R: int
    S: int
    strides: tuple[int, int, int] = (1, 1, 1)
    pads: tuple[Pad, Pad, Pad] = ((0, 0), (0, 0), (0, 0))
    dilations: tuple[int, int, int] = (1, 1, 1)
    groups: int = 1

    @property
    def dimF(self) -> tuple[int, ...]:
        """The shape of the filters."""
        return self.C // self.groups, self.T, self.R, self.S, self.K

    @property
    def image(self) -> tuple[int, int, int]:
        """The lengths of an input map."""
        return self.D, self.H, self.W

    @property
    def result(self) -> tuple[int, int, int]:
        """The lengths of an output map."""
        return self.M, self.P, self.Q

    @property
    def window(self) -> tuple[int, int, int]:
        """The lengths of a filter."""
        return self.T, self.R, self.S

    def __str__(self) -> str:
        sizes = " ".join(f"{'x'.join(map(str, dim))}" for dim in (self.dimI, self.dimF))
        return f"{sizes} strides {self.strides} pads {self.pads} dilations {self.dilations} groups {self.groups}"

    @property
    def flops(self) -> int:
        """Multiplications and additions of a pass, padding counted."""
        return 2 * math.prod(self.dimO) * math.prod(self.dimF[:-1])

    def check_padded(self, name: str) -> None:
        """Raise `ShapeError` for images that padding makes larger than can be."""
        padded = [n + before for n, (before, _) in zip(self.image, self.pads)]
        if self.C * self.N * math.prod(padded) >= WIDEST:
            given = f"{' x '.join(map(str, padded))}, {self.C} maps of {self.N} images"
            raise ShapeError(complain(f"{name}: padded images", given, f"less than {WIDEST} elements", "less padding"))

    def without_idle(self) -> ConvGeometry:
        """The same with strides and dilations as far as they matter: one of more than an axis has leads beyond its end,
        and a filter of one cell has nothing to dilate."""
        ends = [n + before for n, (before, _) in zip(self.image, self.pads)]
        dilations = tuple(min(d, end) if taps > 1 else 1 for d, end, taps in zip(self.dilations, ends, self.window))
        return replace(self, strides=tuple(map(min, self.strides, ends)), dilations=dilations)

    def idle_first(self) -> tuple[ConvGeometry, tuple[int, ...]]:
        """The same with axes of one place and one tap before the others, and the order of depth, height and width.

        Operands lie in memory as they did. Kernels run along the width: what has depth alone would be many short runs.
        """
        befores = (before for before, _ in self.pads)
        idle = [axis == (1, 1, 1, 0) for axis in zip(self.image, self.result, self.window, befores)]
        order = tuple(sorted(range(3), key=lambda axis: not idle[axis]))
        names = ("D", "H", "W"), ("M", "P", "Q"), ("T", "R", "S")
        lengths = {group[to]: getattr(self, group[axis]) for group in names for to, axis in enumerate(order)}
        strides, pads, dilations = (tuple(x[n] for n in order) for x in (self.strides, self.pads, self.dilations))
        return replace(self, **lengths, strides=strides, pads=pads, dilations=dilations), order

    @property
    def is_product(self) -> bool:
        """Whether it is a matrix product: filters have, along the first axes, a cell for each place of the images and,
        along the others, one cell, at every place."""
        axes = zip(self.image, self.result, self.window, self.strides, self.pads, self.dilations)
        whole, one = [], []
        for n, m, cells, stride, (before, after), dilation in axes:
            whole.append(n == cells and m == dilation == 1 and before == 0)
            one.append(cells == stride == 1 and before == after == 0)
        return self.groups == 1 and any(all(whole[:n]) and all(one[n:]) for n in range(4))

    @property
    def is_tiled(self) -> bool:
        """Whether windows lie side by side, or have one cell: each input meets one output, at one tap, or none. Then it
        is a matrix product too, of images whose windows are taken apart."""
        axes = zip(self.window, self.strides, self.pads, self.dilations)
        apart = (pad == (0, 0) and (cells == 1 or cells == stride and gap == 1) for cells, stride, pad, gap in axes)
        return self.groups == 1 and all(apart)


@dataclass(frozen=True)
class PoolGeometry(_Images):
    """A pooling's sizes; `op` is max, avg or l2. Windows are J maps of T x R x S.

    `strides` and `pads` (before, after) are for maps, depth, height and width.
    """

    op: str
    J: int
    T: int
    R: int
    S: int
    strides: tuple[int, int, int, int]
    pads: tuple[Pad, Pad, Pad, Pad]

    @property
    def window(self) -> tuple[int, int, int, int]:
        """The lengths of a window."""
        return self.J, self.T, self.R, self.S

    @property
    def steps(self) -> tuple[int, ...]:
        """The strides as far as they matter: one of more than an axis has is for a single window."""
        return tuple(min(s, n + before) for s, n, (before, _) in zip(self.strides, self.dimI, self.pads))

    @property
    def cells(self) -> int:
        """The cells of a window."""
        return math.prod(self.window)


def _taps(length: int, result: int, offset: int, stride: int) -> tuple[slice, slice]:
    """The outputs whose window has its cell number `offset` (less padding) inside an axis, and those cells.

    Output p reads cell p stride + offset; both slices have the same number of entries, perhaps none.
    """
    first = max(0, -(offset // stride))
    last = min(result, (length - 1 - offset) // stride + 1)
    if last <= first:
        return slice(0, 0), slice(0, 0)
    start = first * stride + offset
    return slice(first, last), slice(start, start + (last - first - 1) * stride + 1, stride)


def spans_inside(firsts: np.ndarray, count: int, step: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    """From which on and before which of `count` places, `step` apart from each of `firsts` on, they lie on an axis."""
    return np.maximum(0, -(firsts // step)), np.minimum(count, (length - 1 - firsts) // step + 1)


def share_inside(firsts: np.ndarray, count: int, step: int, length: int) -> float:
    """Of `count` places that are `step` apart, from each of `firsts` on, the share that lies on an axis."""
    begins, ends = spans_inside(firsts, count, step, length)
    return float(np.maximum(ends - begins, 0).sum() / (count * len(firsts)))


def each_tap(lengths: Sequence[int], results: Sequence[int], window: Sequence[int], strides: Sequence[int],
             pads: Sequence[Pad], dilations: Sequence[int]) -> Any:  # fmt: skip
    """For each cell of a window (in C order): its index, the outputs that have it inside the image, and their cells."""
    for cell in np.ndindex(*window):
        pairs = [
            _taps(n, m, c * d - pad[0], s)
            for n, m, c, s, pad, d in zip(lengths, results, cell, strides, pads, dilations)
        ]
        if all(outputs.stop > outputs.start for outputs, _ in pairs):
            yield cell, tuple(p[0] for p in pairs), tuple(p[1] for p in pairs)
