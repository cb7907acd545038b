# SPDX-License-Identifier: Apache-2.0
"""Indexing by arrays and masks goes through the host: the index and the values as NumPy takes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tensorbackend import dtypes
from tensorbackend.backends.plans import quiet_number
from tensorbackend.errors import ShapeError, complain
from tensorbackend.graph import composite
from tensorbackend.graph.indexing import as_array, refuse_mask
from tensorbackend.graph.optree import Operators, OpTreeNode
from tensorbackend.graph.tensor import Tensor, check_cast

if TYPE_CHECKING:
    from tensorbackend.backends.base import Backend

__all__ = ["filled", "host_key", "host_picked", "host_values", "picked_shape"]


def host_key(key: Any) -> Any:
    """An index with tensors replaced by host arrays; a row or column of indices becomes 1-D. Raises `IndexError` for
    unsigned places beyond signed ones, which NumPy would count from the end of an axis, and `TypeError` for masked
    arrays."""
    parts = key if isinstance(key, tuple) else (key,)
    host = tuple(_host_index(k) if isinstance(k, Tensor) else k for k in parts)
    for k in host:
        refuse_mask("index", k)
        if getattr(k, "dtype", None) == np.uint64 and np.max(k, initial=0) > np.iinfo(np.int64).max:
            raise IndexError(complain("index: out of range", f"{np.max(k)}", "places on the axes"))
    return host if isinstance(key, tuple) else host[0]


def host_picked(values: np.ndarray, key: Any) -> np.ndarray:
    """What an index picks. Raises `IndexError` for what is no index, and for places and masks that do not fit."""
    try:
        return values[key]
    except (IndexError, ValueError) as error:
        given = f"{key!r} of shape {values.shape}: {error}"[:400]
        hint = "ints, slices, ..., None, and arrays of ints or of bools"
        raise IndexError(complain("index: not one of this tensor", given, hint)) from None


def _host_index(k: Tensor) -> np.ndarray:
    values = k.get()
    flat = k._min_dims == 2 and values.ndim == 2 and 1 in values.shape and values.dtype != np.bool_
    return values.reshape(-1) if flat else values


def filled(target: Tensor, key: Any, value: Any) -> OpTreeNode | None:
    """What `target[key] = value` makes of the target as a tree, where that is a number at the places of a mask of the
    backend's own, which then need not come to the host."""
    mask = key[0] if isinstance(key, tuple) and len(key) == 1 else key
    if not isinstance(mask, Tensor) or mask.dtype != dtypes.BOOL or mask.shape != target.shape:
        return None
    if type(value) not in (bool, int, float) or target.dtype == np.uint64:  # whose numbers are not all Python's
        return None
    return composite.where(mask, quiet_number(value, dtypes.compute(target.dtype)).item(), target)


def picked_shape(shape: tuple[int, ...], key: Any) -> tuple[int, ...]:
    """The shape of what an index of host arrays picks of an array. Raises `IndexError`."""
    if isinstance(key, np.ndarray) and key.dtype.kind in "iu" and shape and _all_within(key, shape[0]):
        return (*key.shape, *shape[1:])
    if isinstance(key, np.ndarray) and key.dtype == np.bool_ and key.shape == shape[: key.ndim]:
        return (int(np.count_nonzero(key)), *shape[key.ndim :])
    return host_picked(np.broadcast_to(np.False_, shape), key).shape


def _all_within(places: np.ndarray, length: int) -> bool:
    return places.size == 0 or bool(-length <= places.min() and places.max() < length)


def host_values(backend: Backend, dtype: np.dtype, shape: tuple[int, ...], value: Any) -> np.ndarray:
    """A value (tensor, op-tree, number, array) as host numbers of `dtype`, broadcast to `shape`.

    Raises `ShapeError` where it does not broadcast, `OverflowError` for a number that does not fit, and as `check_cast`
    where its type does not.
    """
    values = backend._host_view(backend.evaluate(value)) if isinstance(value, Operators) else value
    if not isinstance(values, (bool, int, float)):
        values = as_array("assignment", values)
        check_cast(dtype, values)
        values = values if values.ndim or isinstance(value, Operators) else values[()]
    if not isinstance(values, np.ndarray):
        values = np.asarray(quiet_number(values, dtypes.compute(dtype)))
    column = values.ndim == 2 and values.shape[1] == 1 and len(shape) == 1  # what a rank rule makes of one axis
    if column and isinstance(value, Operators) and value.structure.min_dims == 2:
        values = values.reshape(-1)
    try:
        values = np.broadcast_to(values, shape)
    except ValueError:
        given = f"{values.shape} into {shape}"
        raise ShapeError(complain("assignment: shapes do not fit", given, "a shape that broadcasts")) from None
    with np.errstate(all="ignore"):
        return dtypes.cast(values, dtype)
