# SPDX-License-Identifier: Apache-2.0
"""Elements repeated, picked, padded, flipped and put together; running sums; sums of products by index names."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorbackend import dtypes
from tensorbackend.errors import ShapeError, complain
from tensorbackend.function import type_check
from tensorbackend.function.trees import Rule, Traced
from tensorbackend.function.variable import Variable
from tensorbackend.functions import picking, shapes
from tensorbackend.functions.arguments import Array, Sizes
from tensorbackend.functions.losses import check_classes, expect_labels, picked
from tensorbackend.graph import composite as o
from tensorbackend.graph import contraction, indexing, ranges
from tensorbackend.graph.indexing import as_integers, pad_parts, pad_places, pad_widths, repeated_places
from tensorbackend.graph.parts import Parts
from tensorbackend.graph.repeating import repeated, tiled
from tensorbackend.graph.structure import normalize_axes, one_axis

__all__ = [
    "bias", "cumprod", "cumsum", "diagonal", "dstack", "einsum", "flip", "fliplr", "flipud", "hstack",
    "linear_interpolate", "pad", "pad_sequence", "permutate", "repeat", "scale", "select_item", "tensordot", "tile",
    "transpose_sequence", "vstack",
]  # fmt: skip

# Repeated


def tile(x: Array, reps: int | Sequence[int]) -> Variable:
    """x repeated `reps` times along each axis, as a whole; new axes come in front. Raises `ValueError` for less than 0
    times."""
    reps = (reps,) if isinstance(reps, (int, np.integer)) else tuple(reps)
    if min(reps, default=0) < 0:
        raise ValueError(complain("tile: reps", str(reps), "0 or more each"))
    return _TILE(x, reps=indexing.whole("tile", reps))


_TILE = Rule("tile", lambda x, reps: tiled(x, reps), names=("x",))


def repeat(x: Array, repeats: int | Sequence[int], axis: int | None = None) -> Variable:
    """Each entry along `axis` (None: of all elements) repeated, so many times all, or each as often as it says. Raises
    `ValueError` for other numbers than ints of 0 or more, one or one for each entry."""
    if axis is None:
        return repeat(shapes.flatten(x), repeats, 0)
    axis = one_axis("repeat", axis, len(x.shape))
    if not isinstance(repeats, (int, np.integer)):
        places = repeated_places(repeats, x.shape[axis])
        return picking.get_item(x, (slice(None),) * axis + (places,))
    ranges.check("repeat", "an int of 0 or more", repeats=repeats)
    return _REPEAT(x, repeats=int(repeats), axis=axis)


_REPEAT = Rule("repeat", lambda x, repeats, axis: repeated(x, repeats, axis), names=("x",))


# Put together


def hstack(xs: Sequence[Array]) -> Variable:
    """Arrays one after the other along the second axis (the first of vectors)."""
    return shapes.joined("hstack", xs, 0 if len(xs) and len(xs[0].shape) == 1 else 1)


def vstack(xs: Sequence[Array]) -> Variable:
    """Arrays one after the other along the first axis; vectors as rows."""
    if len({tuple(x.shape) for x in xs}) == 1 and len(xs[0].shape) == 1:
        return shapes.stacked("vstack", xs, 0)
    return shapes.joined("vstack", [shapes.expand_dims(x, 0) if len(x.shape) == 1 else x for x in xs], 0)


def dstack(xs: Sequence[Array]) -> Variable:
    """Arrays one after the other along the third axis, which those of fewer axes get."""
    return shapes.joined("dstack", [_with_three(x) for x in xs], 2)


def _with_three(x: Any) -> Any:
    rank = len(x.shape)
    if rank >= 3:
        return x
    return shapes.reshape(x, (*x.shape, 1) if rank == 2 else (1, x.shape[0] if rank else 1, 1))


# Picked and turned


def flip(x: Array, axis: Sizes | None) -> Variable:
    """The entries along an axis, or several (None: all), in reverse order."""
    if axis is None or isinstance(axis, (tuple, list)):
        axes = normalize_axes("flip", None if axis is None else tuple(axis), len(x.shape))
        return shapes.part(x, tuple(_REVERSED if a in axes else _WHOLE for a in range(len(x.shape))))
    return _flipped("flip", x, axis)


def _flipped(name: str, x: Any, axis: int) -> Variable:
    place = one_axis(name, axis, len(x.shape))
    return shapes.part(x, (_WHOLE,) * place + (_REVERSED,))


_WHOLE, _REVERSED = indexing.hashable((slice(None), slice(None, None, -1)))


def fliplr(x: Array) -> Variable:
    """The columns in reverse order."""
    return _flipped("fliplr", x, 1)


def flipud(x: Array) -> Variable:
    """The rows in reverse order."""
    return _flipped("flipud", x, 0)


def permutate(x: Array, indices: Any, axis: int = 0, inv: bool = False) -> Variable:
    """The entries along an axis in the order of `indices`, or with `inv` in the order of which that is the inverse.

    Raises `ValueError` unless `indices` has each place once.
    """
    axis = one_axis("permutate", axis, len(x.shape))
    indices = indices.array if isinstance(indices, Variable) else indices
    places = as_integers("permutate: indices", indices.get() if hasattr(indices, "structure") else indices)
    there = np.arange(x.shape[axis])
    if places.dtype.kind not in "iu" or not np.array_equal(np.sort(places, axis=None), there) or places.ndim != 1:
        raise ValueError(complain("permutate: indices", f"{places}", f"each of 0 to {x.shape[axis] - 1} once"))
    return picking.get_item(x, (slice(None),) * axis + (np.argsort(places) if inv else places,))


def diagonal(x: Array, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Variable:
    """The diagonal of two axes, as the last axis of the result. Raises `ShapeError` where both are one."""
    ranges.check("diagonal", "an int", offset=offset)
    rank = len(x.shape)
    axis1, axis2 = (one_axis("diagonal", axis, rank) for axis in (axis1, axis2))
    if axis1 == axis2:
        raise ShapeError(complain("diagonal: axes", f"{axis1} and {axis2}", "two different ones"))
    return _DIAGONAL(x, offset=int(offset), axes=(axis1, axis2))


_DIAGONAL = Rule("diagonal", contraction.diagonal, names=("x",))


def _check_select(in_types: Any) -> None:
    x, t = in_types
    type_check.expect(x.ndim == 2, t.ndim == 1, x.shape[0] == t.shape[0])
    expect_labels(t)


def _placed(g: Any, x: Any, t: Any) -> Any:
    return picked(o.broadcast_to(o.reshape(g, (g.shape[0], 1)), x.shape), t)


def _selected(x: Any, t: Any) -> Any:
    n, classes = x.shape
    if not classes or t.dtype == np.uint64:  # which, in a sum with places, becomes float64
        return o.sum(picked(x, t), 1, False)
    known = (t >= 0) & (t < classes)
    places = o.positions(x.structure.table, 0, (n,)) * classes + o.where(known, t, 0)
    nothing = math.nan if dtypes.is_float(x.dtype) else 0
    return o.where(known, o.take(o.reshape(x, (n * classes,)), places, 0), nothing)


_SELECT = Rule(
    "select_item",
    _selected,
    lambda g, y, x, t: (_placed(g, x, t), None),
    _check_select,
    ("x", "t"),
)


def select_item(x: Array, t: Array) -> Variable:
    """x[i, t[i]] of x (N, C) and integers t (N,). Where t[i] is no column, numbers and the row's gradient are NaN and
    integers 0; in debug mode it raises `IndexError`."""
    check_classes("select_item", x, t)
    return _SELECT(x, t)


# Padded


def pad(x: Array, pad_width: Any, mode: str = "constant", constant_values: float = 0.0) -> Variable:
    """x with more entries around it: (before, after) for each axis, one pair for all, or one number.

    `mode` is 'constant', 'edge', 'reflect', 'symmetric' or 'wrap', as in NumPy. Raises `ValueError` for another, for
    widths that are no such integers of 0 or more, and for a constant that integers of x's type do not hold.
    """
    ranges.check("pad", "a number", constant_values=constant_values)
    widths = pad_widths(pad_width, len(x.shape))
    if mode == "constant":
        return _PAD(x, widths=widths, value=_held("pad: constant_values", constant_values, x.dtype))
    return (_PAD_LOOKED_UP if isinstance(x, Traced) else _PAD_BY)(x, widths=widths, mode=mode)


def _held(label: str, value: Any, dtype: Any) -> float | int:
    """A number as an array of a type gets it. Raises `ValueError` for one that integers do not hold."""
    if dtypes.is_float(dtype):
        return float(value)
    try:
        return dtype.type(value.item() if isinstance(value, np.generic) else value).item()
    except (OverflowError, ValueError):
        raise ValueError(complain(label, repr(value), f"a number that {dtype} holds")) from None


def _padded_by(x: Any, widths: tuple[tuple[int, int], ...], mode: str) -> Any:
    """The part in the middle, and around it parts of the same array turned or repeated."""
    found = pad_parts(x.shape, widths, mode)
    if found is None:
        return _looked_up(x, widths, mode)
    shape = tuple(before + n + after for n, (before, after) in zip(x.shape, widths))
    return Parts(shape, x.dtype, [(there, o.broadcast_to(o.slice(x, here), part)) for there, here, part in found])


def _looked_up(x: Any, widths: tuple[tuple[int, int], ...], mode: str) -> Any:
    for axis, places in pad_places(x.shape, widths, mode):
        x = o.take(x, places, axis)
    return x


_PAD_BY = Rule("pad", _padded_by, names=("x",))
_PAD_LOOKED_UP = Rule("pad", _looked_up, names=("x",))


def _padded(x: Any, widths: tuple[tuple[int, int], ...], value: float) -> Any:
    shape = tuple(before + n + after for n, (before, after) in zip(x.shape, widths))
    key = tuple(slice(before, before + n) for n, (before, _) in zip(x.shape, widths))
    whole = o.unslice(x, shape, key)
    if value == 0:
        return whole
    inside = o.unslice(o.where(x == x, 1.0, 1.0), shape, key)
    return o.where(inside != 0, whole, value if dtypes.is_float(x.dtype) else x.dtype.type(value))


_PAD = Rule("pad", _padded, lambda g, y, x, widths, value: (_cut(g, x, widths),), None, ("x",))


def _cut(g: Any, x: Any, widths: tuple[tuple[int, int], ...]) -> Any:
    return o.slice(g, tuple(slice(before, before + n) for n, (before, _) in zip(x.shape, widths)))


def _expect_sequences(name: str, xs: Any) -> None:
    """Raise `ShapeError` for a sequence without a first axis."""
    for x in xs:
        if not x.shape:
            raise ShapeError(complain(f"{name}: a sequence", "shape ()", "(n, …)"))


def pad_sequence(xs: Sequence[Array], length: int | None = None, padding: float = 0) -> Variable:
    """Arrays (n, …) of several lengths as one (B, length, …), filled up behind; None: the length of the longest.

    Raises `ValueError` where one is longer than `length`, and for a `padding` that integers do not hold, `TypeError`
    for none and for several shapes behind the first axis.
    """
    ranges.check("pad_sequence", "a number", padding=padding)
    if length is not None:
        ranges.check("pad_sequence", "an int of 0 or more", length=length)
    _expect_sequences("pad_sequence", xs)
    longest = max((x.shape[0] for x in xs), default=0) if length is None else length
    if any(x.shape[0] > longest for x in xs):
        raise ValueError(complain("pad_sequence: length", str(longest), f"{max(x.shape[0] for x in xs)} or more"))
    for x in xs:
        _held("pad_sequence: padding", padding, x.dtype)
    widths = [[(0, longest - x.shape[0]), *[(0, 0)] * (len(x.shape) - 1)] for x in xs]
    return shapes.stacked("pad_sequence", [pad(x, w, "constant", padding) for x, w in zip(xs, widths)])


def transpose_sequence(xs: Sequence[Array]) -> tuple[Variable, ...]:
    """Sequences (n, …), the longest first, as their first entries, their second entries, and so on, each (B, …) for
    those that are so long. Raises `ValueError` for another order, `InvalidType` for entries of several shapes."""
    _expect_sequences("transpose_sequence", xs)
    lengths = [x.shape[0] for x in xs]
    if sorted(lengths, reverse=True) != lengths:
        raise ValueError(complain("transpose_sequence: lengths", str(lengths), "the longest first"))
    steps = range(lengths[0] if lengths else 0)
    return tuple(
        shapes.stacked("transpose_sequence", [picking.get_item(x, k) for x, n in zip(xs, lengths) if n > k])
        for k in steps
    )


# Running sums and products

_CUMSUM = Rule("cumsum", lambda x, axis: o.cumsum(x, axis), names=("x",))
_CUMPROD = Rule("cumprod", lambda x, axis: o.cumprod(x, axis), names=("x",))


def cumsum(x: Array, axis: int | None = None) -> Variable:
    """Sums of the entries up to each along an axis (None: of all elements in C order)."""
    if axis is None:
        return cumsum(shapes.flatten(x), 0)
    return _CUMSUM(x, axis=one_axis("cumsum", axis, len(x.shape)))


def cumprod(x: Array, axis: int | None = None) -> Variable:
    """Products of the entries up to each along an axis (None: of all elements in C order). The gradient is right where
    there are zeros, too."""
    if axis is None:
        return cumprod(shapes.flatten(x), 0)
    return _CUMPROD(x, axis=one_axis("cumprod", axis, len(x.shape)))


# Interpolated, scaled

_INTERPOLATE = Rule("linear_interpolate", lambda p, x, y: p * x + (1 - p) * y, names=("p", "x", "y"))
_SCALE = Rule("scale", lambda x, y, axis: x * _along(y, x, axis), names=("x", "y"))
_BIAS = Rule("bias", lambda x, y, axis: x + _along(y, x, axis), names=("x", "y"))


def _along(y: Any, x: Any, axis: int) -> Any:
    return o.reshape(y, (1,) * axis + y.shape + (1,) * (len(x.shape) - axis - len(y.shape)))


def linear_interpolate(p: Array, x: Array, y: Array) -> Variable:
    """p x + (1 - p) y."""
    return _INTERPOLATE(p, x, y)


def scale(x: Array, y: Array, axis: int = 1) -> Variable:
    """x times y, whose axes are those of x from `axis` on."""
    return _SCALE(x, y, axis=_axis_of("scale", x, y, axis))


def bias(x: Array, y: Array, axis: int = 1) -> Variable:
    """x plus y, whose axes are those of x from `axis` on."""
    return _BIAS(x, y, axis=_axis_of("bias", x, y, axis))


def _axis_of(name: str, x: Any, y: Any, axis: int) -> int:
    axis = one_axis(name, axis, len(x.shape)) if len(x.shape) else 0
    if tuple(x.shape[axis : axis + len(y.shape)]) != tuple(y.shape):
        raise ValueError(complain(f"{name}: shapes", f"{y.shape} at axis {axis} of {x.shape}", "those axes' lengths"))
    return axis


# Sums of products

_EINSUM = Rule("einsum", lambda *operands, expression: contraction.einsum(expression, operands))
_TENSORDOT = Rule("tensordot", lambda a, b, axes: contraction.tensordot(a, b, axes), names=("a", "b"))


def einsum(subscripts: str, *operands: Array) -> Variable:
    """The sum of products that NumPy's `einsum` names, such as 'ij,jk->ik'; `...` stands for further axes.

    Products of two operands are matrix products; more are taken from left to right. Raises `ShapeError` for index
    names that do not fit the operands.
    """
    return _EINSUM(*operands, expression=subscripts)


def tensordot(a: Array, b: Array, axes: Any = 2) -> Variable:
    """Sums of products over the last `axes` axes of `a` and the first of `b`, or over (axes of a, axes of b).

    Raises `ShapeError` for axes of different lengths.
    """
    if isinstance(axes, (list, tuple)):
        axes = tuple(tuple(k) if isinstance(k, (list, tuple)) else k for k in axes)
    return _TENSORDOT(a, b, axes=axes)
