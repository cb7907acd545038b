# SPDX-License-Identifier: Apache-2.0
"""The oracle's reductions and primitives, with bounds that follow from the number of roundings."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from tensorbackend import ops
from tensorbackend.testing.bounds import WIDE, Bounded, doubt, is_float, unsigned_zero


def reduce(op: ops.Op, x: Bounded, axes: tuple[int, ...], read: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """The value and error of a reduction of `x`, cast to the compute type `read`, over `axes`; the axes stay."""
    if not axes:
        known = np.where(x.error == np.inf, np.inf, 0)
        if op.dtype == "index":
            return np.zeros(x.value.shape, np.int64), known
        return (x.value != 0, doubt("logical_not", [x])) if op.dtype == "truth" else (x.value, x.error)
    count = math.prod(x.value.shape[a] for a in axes)
    return _REDUCTIONS[op.name](x, axes, read, count)


def _sum(x: Bounded, axes: tuple, read: np.dtype, count: int) -> tuple[np.ndarray, np.ndarray]:
    total = x.value.sum(axis=axes, keepdims=True, dtype=x.value.dtype)
    error = x.error.sum(axis=axes, keepdims=True)
    if not is_float(read):
        return total, error
    sizes = np.where(np.isfinite(x.value), np.abs(x.value), 0).sum(axis=axes, keepdims=True) + error
    # Float32 adds up in pairs or wider; float64 in any order.
    roundings = math.log2(count + 1) + 8 if read == np.float32 else count
    error = error + (sizes * roundings * np.finfo(read).eps + unsigned_zero(read)) * ((count > 1) | (total == 0))
    return total, np.where(sizes >= np.finfo(read).max, np.inf, error)


def _prod(x: Bounded, axes: tuple, read: np.dtype, count: int) -> tuple[np.ndarray, np.ndarray]:
    total = x.value.prod(axis=axes, keepdims=True, dtype=x.value.dtype)
    unknown = np.where(np.isinf(x.error).any(axis=axes, keepdims=True), np.inf, 0)
    if not is_float(read):
        return total, unknown
    size = np.abs(x.value)
    moved = (size + np.where(np.isinf(x.error), 0, x.error)).prod(axis=axes, keepdims=True)
    error = np.where(np.isfinite(total), moved - np.abs(total), 0)
    if count == 1:
        return total, error + unknown
    error = error + np.abs(total) * count * np.finfo(read).eps + unsigned_zero(read)
    most = np.where(np.isfinite(size), np.maximum(size, 1), 1).prod(axis=axes, keepdims=True)
    least = np.where(size > 0, np.minimum(size, 1), 1).prod(axis=axes, keepdims=True)
    outside = (most > np.finfo(read).max) | (least * (1 - count * np.finfo(read).eps) < np.finfo(read).tiny)
    return total, np.where(outside | np.isnan(error), np.inf, error) + unknown


def _extreme(function: Callable) -> Callable:
    def reduce(x: Bounded, axes: tuple, read: np.dtype, count: int) -> tuple[np.ndarray, np.ndarray]:
        error = x.error.max(axis=axes, keepdims=True)
        total = function(x.value, axis=axes, keepdims=True)
        zero = unsigned_zero(read) * (total == 0) if is_float(read) and count > 1 else 0
        return total, error + zero

    return reduce


def _position(largest: bool) -> Callable:
    def reduce(x: Bounded, axes: tuple, read: np.dtype, count: int) -> tuple[np.ndarray, np.ndarray]:
        last = tuple(range(x.value.ndim - len(axes), x.value.ndim))
        rows = (*_without(x.value.shape, axes), count)
        value, error = (np.moveaxis(a, axes, last).reshape(rows) for a in (x.value, x.error))
        place = (np.argmax if largest else np.argmin)(value, axis=-1)
        best, slack = (np.take_along_axis(a, place[..., None], -1) for a in (value, error))
        rivals = ~(np.abs(best.astype(WIDE) - value) > slack + error) & (slack + error > 0)
        rivals |= np.isinf(error)
        rivals &= np.arange(value.shape[-1]) != place[..., None]
        unsure = rivals.any(-1) | np.isinf(slack[..., 0])
        shape = tuple(1 if a in axes else n for a, n in enumerate(x.value.shape))
        return place.astype(np.int64).reshape(shape), np.where(unsure, np.inf, 0).reshape(shape)

    return reduce


def _without(shape: tuple, axes: tuple) -> tuple:
    return tuple(n for a, n in enumerate(shape) if a not in axes)


def _logical(function: Callable) -> Callable:
    def reduce(x: Bounded, axes: tuple, read: np.dtype, count: int) -> tuple[np.ndarray, np.ndarray]:
        unsure = doubt("logical_not", [x]).sum(axis=axes, keepdims=True)
        return function(x.value != 0, axis=axes, keepdims=True), unsure

    return reduce


_REDUCTIONS: dict[str, Callable] = {
    "sum": _sum, "prod": _prod, "max": _extreme(np.max), "min": _extreme(np.min), "argmax": _position(True),
    "argmin": _position(False), "any": _logical(np.any), "all": _logical(np.all),
}  # fmt: skip


def _dot(x: Bounded, y: Bounded) -> tuple[np.ndarray, np.ndarray]:
    total = np.matmul(x.value, y.value)
    if not is_float(x.dtype):
        return total, np.matmul(x.error, np.ones(y.error.shape)) + np.matmul(np.ones(x.error.shape), y.error)
    sizes = [np.where(np.isfinite(a.value), np.abs(a.value), 0) for a in (x, y)]
    first, second = (np.where(np.isinf(a.error), 0, a.error) for a in (x, y))
    error = np.matmul(sizes[0] + first, second) + np.matmul(first, sizes[1])
    whole = np.matmul(sizes[0], sizes[1]) + error
    error = error + whole * (x.value.shape[-1] + 1) * np.finfo(x.dtype).eps + unsigned_zero(x.dtype)
    unknown = [np.isinf(a.error).astype(WIDE) for a in (x, y)]
    lost = np.matmul(unknown[0], np.ones_like(unknown[1])) + np.matmul(np.ones_like(unknown[0]), unknown[1]) > 0
    return total, np.where(lost | (whole >= np.finfo(x.dtype).max), np.inf, error)


def _cumsum(x: Bounded, axis: int) -> tuple[np.ndarray, np.ndarray]:
    total = np.cumsum(x.value, axis=axis, dtype=x.value.dtype)
    error = np.cumsum(x.error, axis=axis)
    if not is_float(x.dtype):
        return total, error
    sizes = np.cumsum(np.where(np.isfinite(x.value), np.abs(x.value), 0), axis=axis) + error
    error = error + sizes * x.value.shape[axis] * np.finfo(x.dtype).eps + unsigned_zero(x.dtype)
    return total, np.where(sizes >= np.finfo(x.dtype).max, np.inf, error)


def _cumprod(x: Bounded, axis: int) -> tuple[np.ndarray, np.ndarray]:
    total = np.cumprod(x.value, axis=axis, dtype=x.value.dtype)
    if not is_float(x.dtype):
        return total, np.zeros_like(x.error)
    with np.errstate(over="ignore", invalid="ignore"):
        sizes = np.cumprod(np.abs(x.value) + x.error, axis=axis)
        count = x.value.shape[axis]
        error = sizes * (1 + np.finfo(x.dtype).eps) ** count - np.abs(total) + unsigned_zero(x.dtype)
    return total, np.where(~np.isfinite(sizes) | (sizes >= np.finfo(x.dtype).max), np.inf, error)


def _take(x: Bounded, places: Bounded, axis: int) -> tuple[np.ndarray, np.ndarray]:
    return np.take(x.value, places.value, axis), np.take(x.error, places.value, axis)


PRIMITIVES: dict[str, Callable] = {"dot": _dot, "cumsum": _cumsum, "cumprod": _cumprod, "take": _take}
