# SPDX-License-Identifier: Apache-2.0
"""Loop nests: in which order a kernel walks its space, and which values belong to which loop.

The plan of loops depends on structure alone (which strides are 0, 1 or other), so one printed kernel serves all sizes.
Three forms cover every kernel:

- map: no reduction; the innermost axis is the one along which most of what is read and written is contiguous;
- rows: the contiguous axis is reduced; one row at a time, pass by pass, while it stays in cache;
- columns: the contiguous axis is kept; a strip of columns at a time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from tensorbackend import dtypes
from tensorbackend.graph.loops import collapse
from tensorbackend.graph.plan import Instruction, Kernel, Ref

__all__ = ["Nest", "Pattern", "Spread", "nest"]

MAP, ROWS, COLUMNS = "map", "rows", "columns"
MANY = 16
"""Rows that are worth to go side by side."""
SHORT = 64
"""Elements of a row up to which many rows are reduced side by side."""
TURNED_BYTES = 48 << 10
"""Bytes of all short rows that are turned at a time, about: they should stay in the first two caches."""
MOST_TURNED = 512 << 10
"""Bytes of them at most: they lie on the stack."""
NEAR = 8
"""Elements up to which those that follow each other share lines of the cache."""


class Spread(NamedTuple):
    """An input of a map of joined rows that is read through a buffer: its memory does not run on as the result's does.

    The buffer has one element for each of the result, row after row. `form` says whether all rows are alike (`period`),
    or all elements of a row (`repeat`), or neither (`rows`); `along` is the stride from row to row, `across` in a row.
    """

    slot: int
    form: str
    along: int
    across: int


@dataclass
class Nest:
    """A kernel with its axes in loop order: `kept` outer axes, then `reduced` outer axes, then the `inner` axis.

    It is collapsed, so that axes of length 1 have stride 0.

    `tiled` is the last kept axis of a map when an input is contiguous along it instead of the inner axis: such a map
    goes by square tiles, which are turned in cache.

    `short` is the reduced axis of columns that are short rows side by side: operands that are contiguous along it are
    turned in cache, too, `pitch` rows at a time.

    `near` says that a map over rows stays in the caches and is printed for that (`codegen/near.py`).

    `width` is the length of the rows that the inner axis of a map is joined of, if it is (`codegen/joined.py`), and
    `spread` are the inputs that are read through buffers, as if their memory ran on along it. `copies` says that short
    rows are moved as they are.
    """

    kernel: Kernel
    form: str
    kept: list[int]
    reduced: list[int]
    inner: int
    tiled: int | None = None
    width: int = 0
    spread: tuple[Spread, ...] = ()
    copies: bool = False
    short: int | None = None
    near: bool = False

    def turned(self, ref: Ref) -> bool:
        """Whether an input is read, or an output of short rows written, through a turned tile."""
        along = self.tiled if self.short is None else self.short
        if along is None or ref.strides[along] != 1:
            return False
        return ref.shape[self.inner] != 1 and ref.strides[self.inner] not in (0, 1)

    def laid(self, ref: Ref) -> bool:
        """Whether an output is written through a turned tile: of short rows alone."""
        return self.short is not None and self.turned(ref)

    @property
    def pitch(self) -> int:
        """How many short rows are turned at a time."""
        return 128 if SHORT * 128 * self.turned_bytes <= TURNED_BYTES else 64

    @property
    def turned_bytes(self) -> int:
        """Bytes of one element of all operands that are turned."""
        return sum(ref.dtype.itemsize for ref in self.kernel.operands if self.turned(ref))

    @property
    def spread_slots(self) -> set[int]:
        """The inputs that are read through buffers."""
        return {one.slot for one in self.spread}

    @property
    def fits_near(self) -> bool:
        """Whether `near` rows can be printed: a map reads and stores elements of 4 or 8 bytes side by side."""
        along = [ref for ref in self.kernel.operands if ref.shape[self.inner] != 1 and ref.strides[self.inner] != 0]
        sizes = {ref.dtype.itemsize for ref in along}
        if self.form != MAP or not self.kept or self.tiled is not None or sizes not in ({4}, {8}):
            return False
        stores = all(ref.shape[self.inner] != 1 and ref.strides[self.inner] == 1 for ref, _ in self.kernel.outputs)
        values = [i for i in self.kernel.body if self.varies(i)]
        known = all(i.kind in ("load", "op", "cast") or (i.kind == "source" and i.op.name == "index") for i in values)
        return stores and known and all(ref.strides[self.inner] == 1 for ref in along)

    @property
    def by_row(self) -> bool:
        """Whether its loops along the inner axis are as long as that is, many times: neither one long run of elements,
        nor rows that are filled up or printed for their length."""
        several = bool(self.kept or self.reduced) and not self.width and not self.near
        return self.form != ROWS and several and self.short is None

    @property
    def passes(self) -> int:
        """How many times the reduced axes are walked before the outputs."""
        return max((i.stage for i in self.kernel.body), default=0)

    def varies(self, i: Instruction) -> bool:
        """Whether a value changes along the inner axis."""
        return i.shape[self.inner] != 1

    def is_full(self, i: Instruction) -> bool:
        """Whether a value changes along a reduced axis."""
        return any(i.shape[a] != 1 for a in self.kernel.axes)

    def pattern(self) -> Pattern:
        """The nest without its sizes."""
        kernel = self.kernel
        shapes = {shape: _shape_pattern(shape) for shape in {kernel.shape, *(i.shape for i in kernel.body)}}
        return Pattern(
            shapes[kernel.shape],
            kernel.axes,
            tuple([i._replace(shape=shapes[i.shape]) for i in kernel.body]),
            tuple(map(_ref_pattern, kernel.inputs)),
            tuple([dtype for _, dtype in kernel.scalars]),
            len(kernel.draws),
            tuple([(_ref_pattern(ref), value) for ref, value in kernel.outputs]),
            kernel.in_place,
            self.form,
            tuple(self.kept),
            tuple(self.reduced),
            self.inner,
            self.tiled,
            bool(self.width),
            tuple([s._replace(along=0, across=0) for s in self.spread]),
            self.copies,
            self.short,
            self.near,
        )


class Pattern(NamedTuple):
    """A nest and its kernel without sizes, places and leaves: all that the text of a kernel may depend on.

    Lengths and strides are 0, 1, or 2 for all others.
    """

    shape: tuple[int, ...]
    axes: tuple[int, ...]
    body: tuple[Instruction, ...]
    inputs: tuple[Ref, ...]
    scalars: tuple[np.dtype, ...]
    draws: int
    outputs: tuple[tuple[Ref, int], ...]
    in_place: bool
    form: str
    kept: tuple[int, ...]
    reduced: tuple[int, ...]
    inner: int
    tiled: int | None
    width: bool
    spread: tuple[Spread, ...]
    copies: bool
    short: int | None
    near: bool

    def nest(self) -> Nest:
        """A nest of this pattern."""
        scalars, draws = [(0, dtype) for dtype in self.scalars], [0] * self.draws
        kernel = Kernel(self.shape, self.axes, list(self.body), list(self.inputs), scalars, draws, list(self.outputs),
                        "", self.in_place)  # fmt: skip
        loops = self.form, list(self.kept), list(self.reduced), self.inner, self.tiled
        return Nest(kernel, *loops, int(self.width), self.spread, self.copies, self.short, self.near)


def _shape_pattern(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple([min(n, 2) for n in shape])


def _ref_pattern(ref: Ref) -> Ref:
    strides = tuple([s if s in (0, 1) else 2 for s in ref.strides])
    return Ref(0, _shape_pattern(ref.shape), strides, 0, ref.dtype)


def nest(kernel: Kernel, side_by_side: bool = False) -> Nest:
    """The loop nest of a kernel; its axes are collapsed first. Reductions of one element each are a map.

    `side_by_side`: many rows of fewer elements than `SHORT` are reduced so, as columns.
    """
    kernel = _moving_bits(collapse(kernel))
    if kernel.axes and all(kernel.shape[a] == 1 for a in kernel.axes):
        kernel = collapse(replace(kernel, axes=(), body=[i._replace(stage=0) for i in kernel.body], cache={}))
    inner = _inner(kernel)
    short = None
    if side_by_side and inner in kernel.axes and kernel.shape[inner] < SHORT and len(kernel.axes) == 1:
        many = next((a for a in reversed(range(len(kernel.shape))) if a != inner and kernel.shape[a] >= MANY), None)
        if many is not None:
            inner, short = many, inner
    form = MAP if not kernel.axes else ROWS if inner in kernel.axes else COLUMNS
    kept = [a for a in range(len(kernel.shape)) if a not in kernel.axes and a != inner]
    reduced = [a for a in kernel.axes if a != inner]
    across = [a for a in kept for ref in kernel.inputs if form == MAP and _turned(ref, a, inner)]
    if across:
        kept = [a for a in kept if a != across[0]] + [across[0]]
    found = Nest(kernel, form, kept, reduced, inner, across[0] if across else None, short=short)
    return found if short is None or SHORT * found.pitch * found.turned_bytes <= MOST_TURNED else nest(kernel)


def _moving_bits(kernel: Kernel) -> Kernel:
    """The kernel, or where it only moves halves, one that moves words: theirs need not be widened for it."""
    moved = [kernel.inputs[i.slot].dtype for i in kernel.body if i.kind == "load"]
    alike = len({*moved, *(ref.dtype for ref in kernel.operands)}) == 1
    if kernel.axes or len(moved) != len(kernel.body) or not alike or not dtypes.is_half(moved[0]):
        return kernel
    word = np.dtype(np.uint16)
    body = [i._replace(dtype=word, half=False) for i in kernel.body]
    inputs = [ref._replace(dtype=word) for ref in kernel.inputs]
    outputs = [(ref._replace(dtype=word), value) for ref, value in kernel.outputs]
    return replace(kernel, body=body, inputs=inputs, outputs=outputs, cache={})


def _turned(ref: Ref, axis: int, inner: int) -> bool:
    wide = ref.shape[axis] >= 8 and ref.shape[inner] >= 8
    return wide and ref.strides[axis] == 1 and ref.strides[inner] not in (0, 1)


def _inner(kernel: Kernel) -> int:
    """The axis along which most references are contiguous, or nearly, outputs counting double; the last of equals.

    Of a map those along which outputs are: what is read may lie across.
    """
    written = [ref for ref, _ in kernel.outputs]

    def score(axis: int) -> tuple[float, float, int]:
        into = sum(_unit(ref, axis) for ref in written)
        return 0 if kernel.axes else into, 2 * into + sum(_unit(ref, axis) for ref in kernel.inputs), axis

    best = max(range(len(kernel.shape)), key=score)
    places = any(i.kind == "reduce" and i.op.dtype == "index" for i in kernel.body)
    return max(kernel.axes) if places and best in kernel.axes else best  # the first of equals is found in C order


def _unit(ref: Ref, axis: int) -> float:
    """How much is gained by going along an axis: only that along which a reference's elements lie nearest."""
    step = abs(ref.strides[axis])
    nearest = min((abs(s) for s in ref.strides if s), default=0)
    return math.prod(ref.shape) ** 0.5 / step if step and step == nearest <= NEAR else 0
