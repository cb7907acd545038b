# SPDX-License-Identifier: Apache-2.0
"""Comparison of arrays wherever they are."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorbackend.function import arrays
from tensorbackend.function.variable import Variable

__all__ = ["assert_allclose"]


def _host(x: Any) -> np.ndarray:
    raw = x._known() if isinstance(x, Variable) else x
    return np.asarray(arrays.moved(arrays.plain(raw), None) if arrays.is_array(raw) else raw)


def assert_allclose(x: Any, y: Any, atol: float = 1e-5, rtol: float = 1e-4, verbose: bool = True) -> None:
    """Raise `AssertionError` unless |x - y| <= atol + rtol |y| everywhere; NaN equals NaN.

    `x` and `y` are variables, NumPy arrays, tensors of any backend, or numbers. The message names shapes, dtypes and
    the worst element; with `verbose` it shows the arrays too.
    """
    a, b = _host(x), _host(y)
    wide = [v.astype(np.float64) for v in (a, b)]
    try:
        np.testing.assert_allclose(*wide, atol=atol, rtol=rtol, verbose=verbose)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{_difference(a, b, *wide, atol, rtol)}") from None


def _difference(a: np.ndarray, b: np.ndarray, x: np.ndarray, y: np.ndarray, atol: float, rtol: float) -> str:
    lines = [f"x: shape {a.shape}, {a.dtype}", f"y: shape {b.shape}, {b.dtype}"]
    if a.shape == b.shape and a.size:
        with np.errstate(invalid="ignore"):
            excess = np.abs(x - y) - (atol + rtol * np.abs(y))
        excess = np.where((x == y) | (np.isnan(x) & np.isnan(y)), -np.inf, np.where(np.isnan(excess), np.inf, excess))
        worst = np.unravel_index(int(np.argmax(excess)), a.shape)
        lines.append(f"worst at {tuple(map(int, worst))}: {a[worst]!r} and {b[worst]!r}")
    return "\n".join(lines)
