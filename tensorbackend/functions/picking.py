# SPDX-License-Identifier: Apache-2.0
"""Indexing: parts by slices, elements by masks and arrays of places, and sums at such places.

However many arrays an index has, it is one look-up: the axes that they index become one, their places one array of
places along it. So elements stay on their device, and sums come in the order of the places. The host looks at masks
alone, for how many elements they pick.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorbackend import dtypes
from tensorbackend.errors import complain
from tensorbackend.function import arrays
from tensorbackend.function.trees import Rule
from tensorbackend.function.variable import Variable, as_variable
from tensorbackend.functions import elementwise, shapes
from tensorbackend.functions.arguments import Array
from tensorbackend.graph import composite as o
from tensorbackend.graph import indexing
from tensorbackend.graph.optree import Operators

__all__ = ["get_item", "scatter_add"]

_TAKE = Rule("get_item", lambda x, places, axis: o.take(x, places, axis), names=("x", "indices"))
_PUT = Rule("scatter_add", lambda x, places, shape, axis: o.put(x, places, shape, axis), names=("x", "indices"))
_PUT_PART = Rule("scatter_add", lambda x, shape, key: o.unslice(x, shape, indexing.unhashed(key)), names=("x",))


def _joined(*places: Any, lengths: tuple[int, ...]) -> Any:
    """Places on several axes as places on the one that they become, beyond its end where one is outside its axis."""
    joined, inside = 0, True
    for at, length in zip(places, lengths):
        joined = joined * length + o.where(at < 0, at + length, at)
        inside = (at >= -length) & (at < length) & inside
    return o.where(inside, joined, math.prod(lengths))


_JOINED = Rule("get_item", _joined)


def _joined_on_host(places: list[np.ndarray], lengths: tuple[int, ...]) -> np.ndarray:
    """As `_joined`, of places that have been looked at: one array goes to a device, not several."""
    joined: Any = 0
    for at, length in zip(places, lengths):
        joined = joined * length + np.where(at < 0, length, 0) + at.astype(np.int64)
    return np.asarray(joined)


class _Lookup:
    """An index with arrays, for `x` of a shape: a part by slices, its axes in another order, and a look-up along one
    axis. Raises `IndexError` for what is no index of such an array."""

    def __init__(self, x: Variable, key: tuple) -> None:
        self.shape = x.shape
        self._backend = arrays.backend_of(x._known())
        parts, places = _by_axis(key, x.shape)
        self.whole = all(part == slice(None) for part in parts)
        self.part = indexing.hashable(parts)
        sliced = indexing.basic(parts, x.shape, (0,) * len(x.shape), 0)[0]
        axes = [axis for axis, _ in places]
        rest = [axis for axis in range(len(sliced)) if axis not in axes]
        beside = axes == list(range(axes[0], axes[0] + len(axes)))
        self.axis = axes[0] if beside else 0
        self.order = (*rest[: self.axis], *axes, *rest[self.axis :])
        self.turned = tuple(sliced[axis] for axis in self.order)
        self.lengths = tuple(sliced[axis] for axis in axes)
        behind = self.turned[self.axis + len(axes) :]
        self.merged = (*self.turned[: self.axis], math.prod(self.lengths), *behind)
        self.places = self._joined([array for _, array in places])
        self.result = (*self.merged[: self.axis], *self.places.shape, *behind)

    def _joined(self, places: list[Any]) -> Any:
        """The places along the axis that is looked up, where x is."""
        on_host = len(places) > 1 and all(isinstance(k, np.ndarray) for k in places)
        if on_host and len({k.shape for k in places} - {()}) <= 1:
            places = [_joined_on_host(places, self.lengths)]
        found = [arrays.moved(arrays.plain(k), self._backend) for k in places]
        if len(found) == 1:
            return found[0]
        return _JOINED(*(shapes.cast(_signed(k), np.int64) for k in found), lengths=self.lengths)

    def picked(self, x: Variable) -> Variable:
        """The elements of x at the places."""
        part = x if self.whole else shapes.part(x, self.part)
        return _TAKE(_arranged(part, self.order, self.merged), self.places, axis=self.axis)

    def put(self, y: Variable) -> Variable:
        """Zeros of x's shape with elements added at the places."""
        merged = _PUT(shapes.broadcast_to(y, self.result), self.places, shape=self.merged, axis=self.axis)
        part = _arranged(_arranged(merged, range(len(self.merged)), self.turned), np.argsort(self.order).tolist())
        return part if self.whole else _PUT_PART(part, shape=self.shape, key=self.part)


def _arranged(x: Variable, order: Sequence[int], shape: tuple[int, ...] | None = None) -> Variable:
    """x with its axes in an order, and then of a shape (None: as it is)."""
    turned = x if list(order) == list(range(len(x.shape))) else shapes.transpose(x, order)
    return turned if shape in (None, turned.shape) else shapes.reshape(turned, shape)


def _by_axis(key: tuple, shape: tuple[int, ...]) -> tuple[tuple, list[tuple[int, Any]]]:
    """An index as slices and new axes, and for axes of the part that these make, arrays of places. Beside arrays,
    integers are arrays too, as in NumPy."""
    consumed = sum(k.ndim if _is_mask(k) else k is not None and k is not Ellipsis for k in key)
    parts: list[Any] = []
    places: list[tuple[int, Any]] = []
    for k in indexing.expand(key, len(shape), consumed):
        if k is None or isinstance(k, slice):
            parts.append(k)
            continue
        axis = sum(p is not None for p in parts)
        for found in _masked(k, shape[axis : axis + k.ndim]) if _is_mask(k) else [_place(k, shape[axis])]:
            places.append((len(parts), found))
            parts.append(slice(None))
    return tuple(parts), places


def _is_mask(k: Any) -> bool:
    return getattr(k, "dtype", None) == np.bool_ and len(k.shape) > 0


def _is_truth(k: Any) -> bool:
    return isinstance(k, bool) or (getattr(k, "dtype", None) == np.bool_ and not k.shape)


def _masked(mask: Any, lengths: tuple[int, ...]) -> tuple[np.ndarray, ...]:
    """The places where a mask is true, an array for each of its axes."""
    if tuple(mask.shape) != tuple(lengths):
        raise IndexError(complain("index: a mask of another shape", f"{mask.shape}", f"{tuple(lengths)}"))
    return np.nonzero(mask if isinstance(mask, np.ndarray) else mask.get())


def _place(k: Any, length: int) -> Any:
    """Places along an axis of a length, an array of integers; those on a device are looked at there."""
    array = k if hasattr(k, "shape") else np.asarray(k)
    if array.dtype == np.bool_ and not array.shape:
        given = f"a single truth value, {bool(array if isinstance(array, (np.ndarray, np.generic)) else array.get())}"
        raise IndexError(complain("index: no places", given, "integers or masks; a truth value only by itself"))
    if not dtypes.is_integer(array.dtype):
        raise IndexError(complain("index: an array of another type", f"{array.dtype}", "integers, or truth values"))
    host = isinstance(array, (np.ndarray, np.generic))
    if host and array.size and not -length <= array.min() <= array.max() < length:
        given = f"{array.min()} to {array.max()} on an axis of length {length}"
        raise IndexError(complain("index: out of range", given, f"-{length} to {length - 1}"))
    return array


def _signed(places: Any) -> Any:
    """Places as int64 has them: larger ones, which a cast would count from the end, stay beyond any axis."""
    return elementwise.minimum(places, np.iinfo(np.int64).max) if places.dtype == np.uint64 else places


def _key(name: str, x: Variable, slices: Any) -> tuple:
    """An index of `x` as a tuple, lists as arrays, variables as their arrays. Raises `TypeError` for tensors of another
    backend than that of x."""
    key = tuple(_index(k) for k in (slices if isinstance(slices, tuple) else (slices,)))
    data = x._known()
    home = arrays.backend_of(data)
    for k in key if home is not None else ():  # places for NumPy's arrays may come from anywhere, as for NumPy
        if isinstance(k, Operators) and k.backend is not home:
            given = f"{arrays.described(data)} and {arrays.described(k)}"
            raise arrays.different_kinds(f"{name}: an index of", given)
    return key


def _index(k: Any) -> Any:
    k = k.array if isinstance(k, Variable) else k
    return indexing.as_integers("indices", k) if isinstance(k, list) else k


def get_item(x: Array, slices: Any) -> Variable:
    """The part that an index picks: integers, slices, None, `...`, integer arrays and masks, as in NumPy.

    A single truth value is an axis in front, of length 1 or 0. Raises `IndexError` for places outside, for arrays of
    other types, and masks of other shapes, `TypeError` for tensors of another backend than that of the tensor x.
    """
    if not indexing.is_fancy(slices):
        return shapes.part(x, indexing.hashable(slices))
    x = as_variable(x)
    key = _key("get_item", x, slices)
    if len(key) == 1 and _is_truth(key[0]):
        whole = shapes.part(x, indexing.hashable((None,)))
        held = key[0].get() if hasattr(key[0], "get") else key[0]
        return whole if held else shapes.part(whole, indexing.hashable((slice(0),)))
    if len(key) == 1 and x.shape and not _is_mask(key[0]):  # rows: nothing to arrange
        places = arrays.moved(arrays.plain(_place(key[0], x.shape[0])), arrays.backend_of(x._known()))
        return _TAKE(x, places, axis=0)
    return _Lookup(x, key).picked(x)


def scatter_add(a: Array, slices: Any, b: Array) -> Variable:
    """a with b added at the places of an index; places that are named twice get both. Raises as `get_item`."""
    a, b = as_variable(a), as_variable(b)
    key = _key("scatter_add", a, slices)
    b = shapes.cast(b, dtypes.promote([a.dtype, b.dtype], [int], dtypes.FLOAT32))  # b's own type may not hold the sums
    if indexing.is_fancy(key):
        return elementwise.add(a, _Lookup(a, key).put(b))
    part = indexing.basic(key, a.shape, (0,) * len(a.shape), 0)[0]
    return elementwise.add(a, _PUT_PART(shapes.broadcast_to(b, part), shape=a.shape, key=indexing.hashable(key)))
