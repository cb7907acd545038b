# SPDX-License-Identifier: Apache-2.0
"""What `be.xp` has of NumPy beside arithmetic: arrays joined, cut, repeated and cut to triangles, and what goes through
the host.

Cuts are views where NumPy's are; the rest are expressions, or looked up by places that follow from the shapes.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tensorbackend import dtypes
from tensorbackend.backends.numpy_like import result
from tensorbackend.errors import ShapeError, complain
from tensorbackend.graph import composite
from tensorbackend.graph.indexing import repeated_places
from tensorbackend.graph.optree import Operators
from tensorbackend.graph.repeating import repeated, tiled
from tensorbackend.graph.structure import normalize_axes, one_axis

__all__ = ["Arranging", "THROUGH_HOST", "sortable", "through_host"]


class Arranging:
    """Functions that arrange; `ArrayModule` inherits them."""

    backend: Any
    array: Callable[..., Any]
    asarray: Callable[..., Any]
    concatenate: Callable[..., Any]
    reshape: Callable[..., Any]
    take: Callable[..., Any]
    zeros: Callable[..., Any]

    # More axes, and joined

    def atleast_1d(self, *arrays: Any) -> Any:
        """Numbers as arrays of one axis, all else as it is; a tuple for several."""
        return _each(lambda a: a if a.shape else a.reshape(1), map(self.asarray, arrays))

    def atleast_2d(self, *arrays: Any) -> Any:
        """As `atleast_1d`, and vectors as rows."""
        return _each(lambda a: a if len(a.shape) > 1 else a.reshape(1, -1), map(self.asarray, arrays))

    def atleast_3d(self, *arrays: Any) -> Any:
        """As `atleast_1d`; vectors have axes of length 1 before and behind, matrices one behind."""
        return _each(lambda a: a if len(a.shape) > 2 else a.reshape(_deep(a.shape)), map(self.asarray, arrays))

    def vstack(self, arrays: Sequence[Any]) -> Any:
        """Arrays below each other: along axis 0, vectors as rows."""
        return self.concatenate([self.atleast_2d(a) for a in arrays], 0)

    def hstack(self, arrays: Sequence[Any]) -> Any:
        """Arrays beside each other: along axis 1, vectors along their only one."""
        parts = [self.atleast_1d(a) for a in arrays]
        return self.concatenate(parts, 0 if parts and len(parts[0].shape) == 1 else min(len(parts), 1))

    def dstack(self, arrays: Sequence[Any]) -> Any:
        """Arrays behind each other: along axis 2."""
        return self.concatenate([self.atleast_3d(a) for a in arrays], 2 if len(arrays) else 0)

    def column_stack(self, arrays: Sequence[Any]) -> Any:
        """Arrays beside each other, vectors as columns."""
        parts = [self.asarray(a) for a in arrays]
        parts = [a if len(a.shape) > 1 else a.reshape(-1, 1) for a in parts]
        return self.concatenate(parts, 1 if parts else 0)

    # Cut

    def split(self, a: Any, indices_or_sections: Any, axis: int = 0) -> list[Any]:
        """Equal parts along an axis, so many, or those that begin at the places given; views. Raises `ValueError`
        where the length does not divide."""
        return self._parts(np.split, "split", a, indices_or_sections, axis)

    def array_split(self, a: Any, indices_or_sections: Any, axis: int = 0) -> list[Any]:
        """As `split`, where the first parts may be longer by one."""
        return self._parts(np.array_split, "array_split", a, indices_or_sections, axis)

    def _parts(self, cut: Callable[..., Any], name: str, a: Any, sections: Any, axis: int) -> list[Any]:
        """NumPy cuts the places along the axis, and says what cannot be."""
        a = self.asarray(a)
        axis = one_axis(name, axis, len(a.shape))
        sections = sections.get() if isinstance(sections, Operators) else sections
        try:
            parts = cut(np.arange(a.shape[axis]), sections)
        except (TypeError, ValueError, ZeroDivisionError):
            given = f"{sections!r} of an axis of length {a.shape[axis]}"
            expected = "places, or a number of parts of 1 or more" + " that divides it" * (name == "split")
            raise ValueError(complain(f"{name}: parts", given, expected)) from None
        slices = [slice(int(p[0]), int(p[-1]) + 1) if p.size else slice(0, 0) for p in parts]
        return [a[(slice(None),) * axis + (s,)] for s in slices]

    def flip(self, a: Any, axis: Any = None) -> Any:
        """The entries along axes (None: all) in reverse, as a view."""
        a = self.asarray(a)
        wanted = normalize_axes("flip", tuple(axis) if isinstance(axis, list) else axis, len(a.shape))
        return a[tuple(slice(None, None, -1) if k in wanted else slice(None) for k in range(len(a.shape)))]

    def diag(self, v: Any, k: int = 0) -> Any:
        """A matrix of zeros with the vector v as its k-th diagonal, counted to the right; of a matrix, that diagonal.
        Raises `ShapeError` for other ranks."""
        v, k = self.asarray(v), operator.index(k)
        if len(v.shape) not in (1, 2):
            raise ShapeError(complain("diag", f"shape {v.shape}", "a vector or a matrix"))
        rows, columns = v.shape if len(v.shape) == 2 else (v.shape[0] + abs(k),) * 2
        first = max(k, 0) + max(-k, 0) * columns
        count = max(0, min(rows - max(-k, 0), columns - max(k, 0)))
        places = slice(first, first + count * (columns + 1), columns + 1) if count else slice(0, 0)
        if len(v.shape) == 2:
            return result(v.ravel()[places])
        out = self.zeros((rows, columns), v.dtype)
        out.ravel()[places] = v
        return out

    def tril(self, m: Any, k: int = 0) -> Any:
        """The last two axes up to the k-th diagonal, zeros above it; a vector is each of the rows."""
        return self._triangle("tril", m, k, lambda column, row: column <= row)

    def triu(self, m: Any, k: int = 0) -> Any:
        """The last two axes from the k-th diagonal on, zeros below it; a vector is each of the rows."""
        return self._triangle("triu", m, k, lambda column, row: column >= row)

    def _triangle(self, name: str, m: Any, k: int, kept: Callable[[Any, Any], Any]) -> Any:
        m = self.asarray(m)
        if not m.shape:
            raise ShapeError(complain(name, "a number", "a matrix, or a vector"))
        rows, columns = m.shape[-2:] if len(m.shape) > 1 else m.shape * 2
        table, k = self.backend.structures, max(-rows, min(operator.index(k), columns))
        row, column = composite.positions(table, 0, (rows, 1)), composite.positions(table, 1, (1, columns))
        return result(composite.where(kept(column, row + k), m, m.dtype.type(0)), m.dtype)

    # Repeated

    def tile(self, a: Any, reps: Any) -> Any:
        """The whole repeated so many times along each axis; new axes come in front. Raises `ValueError` for less than 0
        times."""
        a = self.asarray(a)
        reps = tuple(map(operator.index, reps if isinstance(reps, (tuple, list)) else (reps,)))
        if min(reps, default=0) < 0:
            raise ValueError(complain("tile: reps", f"{reps}", "0 or more each"))
        return result(tiled(a, reps))

    def repeat(self, a: Any, repeats: Any, axis: int | None = None) -> Any:
        """Each entry along an axis (None: of all elements) repeated, so many times all, or each as often as it says.
        Raises `ValueError` for other numbers than integers of 0 or more, one or one for each entry."""
        a = self.asarray(a)
        a = a if a.shape and axis is not None else a.ravel()
        axis = one_axis("repeat", axis or 0, len(a.shape))
        if repeats.__class__ is int and repeats >= 0:
            return result(repeated(a, repeats, axis))
        return self.take(a, repeated_places(_on_host(repeats), a.shape[axis]), axis)

    def roll(self, a: Any, shift: Any, axis: Any = None) -> Any:
        """The entries moved on by `shift` places along an axis (None: all elements, in C order), round its end; several
        of either go in pairs. Raises `ValueError` where there are not as many."""
        a = self.asarray(a)
        if axis is None:
            return self.roll(a.ravel(), shift, 0).reshape(a.shape)
        shifts, axes = (tuple(x) if isinstance(x, (tuple, list)) else (x,) for x in (shift, axis))
        count = max(len(shifts), len(axes))
        if not count or {len(shifts), len(axes)} - {1, count}:
            raise ValueError(complain("roll: shifts and axes", f"{shift} and {axis}", "as many, or one of either"))
        for each, along in zip(shifts * (count // len(shifts)), axes * (count // len(axes))):
            a = self._rolled(a, operator.index(each), one_axis("roll", along, len(a.shape)))
        return a

    def _rolled(self, a: Any, shift: int, axis: int) -> Any:
        """The entries moved on along one axis."""
        end = a.shape[axis] - shift % max(a.shape[axis], 1)
        before = (slice(None),) * axis
        return self.concatenate([a[(*before, slice(end, None))], a[(*before, slice(0, end))]], axis)

    # Grids

    def linspace(self, start: Any, stop: Any, num: int = 50, endpoint: bool = True, dtype: Any = None) -> Any:
        """`num` numbers at equal distances from `start` to `stop`, which is one of them if `endpoint`."""
        kind = self.backend.default_dtype if dtype is None else dtypes.as_dtype(dtype)
        whole = kind if dtypes.is_integer(kind) else None  # rounded down, as NumPy does it
        return self.array(np.linspace(start, stop, operator.index(num), endpoint, dtype=whole), kind)

    def meshgrid(self, *xi: Any, indexing: str = "xy") -> tuple[Any, ...]:
        """Vectors as coordinates of a grid: an array each, over all of them. With 'xy' the first is along axis 1, with
        'ij' each along its own. Raises `ValueError` for another indexing."""
        if indexing not in ("xy", "ij"):
            raise ValueError(complain("meshgrid: indexing", repr(indexing), "'xy' or 'ij'"))
        vectors = [self.asarray(x).ravel() for x in xi]
        order = list(range(len(vectors)))
        if indexing == "xy" and len(order) > 1:
            order[:2] = 1, 0
        shape = tuple(vectors[k].shape[0] for k in order)
        along = [self.reshape(v, tuple(-1 if axis == k else 1 for axis in order)) for k, v in enumerate(vectors)]
        return tuple(result(composite.broadcast_to(v, shape)) for v in along)


def _each(function: Callable[[Any], Any], arrays: Any) -> Any:
    """The results for arrays: of one itself, else a tuple."""
    found = tuple(map(function, arrays))
    return found[0] if len(found) == 1 else found


def _deep(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """The shape of three axes of a number, a vector or a matrix."""
    return (*shape, 1) if len(shape) == 2 else (1, *(shape or (1,)), 1)


# Through the host

THROUGH_HOST = {
    "unique": True, "median": True, "percentile": True, "quantile": True, "histogram": False, "searchsorted": False,
    "bincount": False, "nonzero": False, "flatnonzero": False, "argwhere": False, "count_nonzero": False,
    "isclose": False, "allclose": False, "array_equal": False,
}  # fmt: skip
"""Functions that NumPy runs on the host, and whether their numbers are of the array's type; those of integers' averages
are of the default type."""


def sortable(values: np.ndarray) -> np.ndarray:
    """Host values as NumPy sorts them with NaN last: that of bfloat16 it leaves anywhere."""
    return values.astype(np.float32) if values.dtype == dtypes.BFLOAT16 else values


def through_host(name: str, typed: bool) -> Callable[..., Any]:
    """NumPy's function of that name, for arrays of a module."""

    def function(self: Any, a: Any, *others: Any, **options: Any) -> Any:
        if options.get("out") is not None:
            raise TypeError(complain(f"{name}: out", type(options["out"]).__name__, "None: the result is a new array"))
        a = self.asarray(a)
        mean = a.dtype if dtypes.is_float(a.dtype) else self.backend.default_dtype
        named = {key: _on_host(x) for key, x in options.items()}
        found = getattr(np, name)(sortable(a.get()), *map(_on_host, others), **named)

        def as_array(x: Any) -> Any:
            if isinstance(x, (tuple, list)):
                return tuple(map(as_array, x))
            if not isinstance(x, (np.ndarray, np.generic)):
                return x
            return self.array(x, mean if typed and x.dtype.kind == "f" else x.dtype)

        return as_array(found)

    function.__name__, function.__doc__ = name, f"NumPy's `{name}`, with its arguments. The host runs it and reads `a`."
    return function


def _on_host(x: Any) -> Any:
    return sortable(x.get()) if isinstance(x, Operators) else x
