# SPDX-License-Identifier: Apache-2.0
"""Values with error bounds, and comparisons that say where and by how much they fail."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

WIDE = np.dtype(np.longdouble)
"""The oracle's type for floats: 64 bits of mantissa on x86, so that float64 can be judged too."""

BOOL = np.dtype(np.bool_)


@dataclass
class Bounded:
    """An array and how far a correct evaluation may be from it.

    `value` is WIDE for floats and of `dtype`'s compute type otherwise; where `error` is 0 the value is exact, where it
    is infinite nothing is known. `dtype` is the type that the expression has by the rules.
    """

    value: np.ndarray
    error: np.ndarray
    dtype: np.dtype

    def stored(self, dtype: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """What storing as `dtype` may give: the lowest and highest values, and where they are known."""
        dtype = np.dtype(dtype)
        known = self.error < np.inf
        e = np.where(known, self.error, 0)
        if self.value.dtype != WIDE:
            stored = converted(self.value, dtype)
            return stored, stored, known
        through = compute(self.dtype)
        low, high = (converted(_narrow(self.value + d, through), dtype) for d in (-e, e))
        if dtype == BOOL:
            known &= (low == high) & ((e == 0) | (np.abs(self.value) > e))  # one end may underflow to 0
        return low, high, known

    def broadcast_to(self, shape: tuple[int, ...]) -> Bounded:
        """The same repeated to a shape; leading axes of length 1 are dropped first, as assignment does."""
        extra = max(self.value.ndim - len(shape), 0)
        value, error = (np.broadcast_to(x.reshape(x.shape[extra:]), shape) for x in (self.value, self.error))
        return Bounded(value, error, self.dtype)


def assert_bounded(actual: np.ndarray, expected: Bounded) -> float:
    """Fail unless a stored result lies within the oracle's bounds; returns the part of elements that were judged.

    A zero that is exact must have its sign too.
    """
    expected = expected.broadcast_to(actual.shape)
    low, high, known = expected.stored(actual.dtype)
    with np.errstate(all="ignore"):
        a, lo, hi = (converted(x, WIDE) for x in (actual, low, high))
        good = ((lo <= a) & (a <= hi)) | (np.isnan(lo) & np.isnan(hi) & np.isnan(a)) | ~known
        if is_float(actual.dtype):
            good &= (np.signbit(a) == np.signbit(lo)) | (a != 0) | (lo != hi) | (expected.error > 0)
    if not good.all():
        raise AssertionError(_difference(good, actual, low, high))
    return float(known.mean()) if known.size else 1.0


def compute(dtype: np.dtype) -> np.dtype:
    """The type that values of a type are computed in: float32 for halves."""
    return np.dtype(np.float32) if is_float(dtype) and dtype.itemsize == 2 else dtype


def is_float(dtype: np.dtype) -> bool:
    """Whether a type is a floating one."""
    return dtype.kind == "f" or dtype.name == "bfloat16"


def _narrow(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Extended values rounded to a floating compute type."""
    with np.errstate(all="ignore"):
        return values.astype(dtype) if is_float(dtype) else values


def converted(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Values stored as a type, by the documented rules: saturate, truncate, NaN to 0, halves through float32."""
    with np.errstate(all="ignore"):
        if dtype == BOOL:
            return values != 0
        if dtype.kind in "iu" and is_float(values.dtype):
            info = np.iinfo(dtype)
            whole = np.trunc(np.where(np.isnan(values), 0, values).astype(WIDE))
            return np.array([int(min(max(v, info.min), info.max)) for v in whole.ravel()], dtype).reshape(whole.shape)
        if is_float(dtype) and dtype.itemsize == 2:
            return values.astype(np.float32).astype(dtype)
        half = is_float(values.dtype) and values.dtype.itemsize == 2
        return values.astype(np.float32).astype(dtype) if half else values.astype(dtype)


def spacing(value: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The distance to the next number of a type."""
    size = np.minimum(np.abs(value), np.finfo(dtype).max).astype(dtype)
    return np.where(np.isfinite(value), np.spacing(size).astype(WIDE), 0)


def unsigned_zero(dtype: np.dtype) -> np.ndarray:
    """An error that makes the sign of a zero unknown to what follows."""
    return WIDE.type(np.finfo(dtype).smallest_subnormal)


def doubt(name: str, args: list[Bounded]) -> np.ndarray:
    """Infinite where the truth of a comparison or test hangs on the errors."""
    if name in ("eq", "ne", "lt", "le", "gt", "ge"):
        x, y = args
        total = x.error + y.error
        gap = np.abs(x.value.astype(WIDE) - y.value.astype(WIDE))
        return np.where((total > 0) & ~(gap > total), np.inf, 0)
    if name.startswith("logical"):
        return sum(np.where((a.error > 0) & ~(np.abs(a.value) > a.error), np.inf, 0) for a in args)
    return np.where(args[0].error == np.inf, np.inf, 0)


def assert_close(actual: Any, expected: Any, relative: float = 0.0, absolute: Any = 0.0) -> None:
    """Fail unless |actual - expected| <= absolute + relative |expected| everywhere, of one shape; NaN equals NaN."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.shape == expected.shape, f"shape {actual.shape}, expected {expected.shape}"
    with np.errstate(all="ignore"):
        a, e = converted(actual, WIDE), converted(expected, WIDE)
        margin = np.where(np.isfinite(e), absolute + relative * np.abs(e), 0)
        good = (a == e) | (np.isnan(a) & np.isnan(e)) | (np.abs(a - e) <= margin)
    if not good.all():
        raise AssertionError(_difference(good, actual, expected, expected))


def _difference(good: np.ndarray, actual: np.ndarray, low: np.ndarray, high: np.ndarray) -> str:
    places = np.argwhere(~good)
    rows = [f"{len(places)} of {good.size} elements differ (shape {actual.shape}, {actual.dtype})"]
    for place in map(tuple, places[:5].tolist()):
        rows.append(f"  at {place}: {actual[place]!r}, expected {low[place]!r} to {high[place]!r}")
    return "\n".join(rows)
