# SPDX-License-Identifier: Apache-2.0
"""Matrix products and what is made of them."""

from __future__ import annotations

import math
from typing import Any

from tensorbackend.function import type_check
from tensorbackend.function.trees import Rule
from tensorbackend.function.variable import Variable
from tensorbackend.functions.arguments import Array
from tensorbackend.graph import composite as o
from tensorbackend.graph import ranges

__all__ = ["batch_matmul", "linear", "matmul"]


def product(a: Any, b: Any) -> Any:
    """The tree of NumPy's `matmul`: vectors are a row or a column, leading axes broadcast."""
    left, right = len(a.shape) == 1, len(b.shape) == 1
    a = o.reshape(a, (1, *a.shape)) if left else a
    b = o.reshape(b, (*b.shape, 1)) if right else b
    y = o.dot(a, b)
    if not (left or right):
        return y
    return o.reshape(y, y.shape[:-2] + (() if left else y.shape[-2:-1]) + (() if right else y.shape[-1:]))


def _turned(x: Any, wanted: bool) -> Any:
    return o.swap_last(x) if wanted and len(x.shape) > 1 else x


def _matmul(a: Any, b: Any, transa: bool, transb: bool, transout: bool) -> Any:
    return _turned(product(_turned(a, transa), _turned(b, transb)), transout)


def _check_matmul(in_types: Any, transa: bool = False, transb: bool = False, transout: bool = False) -> None:
    a, b = in_types
    type_check.expect(a.ndim >= 1, b.ndim >= 1, a.dtype == b.dtype)
    inner_a = a.shape[a.ndim.value - 1 - (transa and a.ndim.value > 1)]
    inner_b = b.shape[max(b.ndim.value - 2, 0) + (transb and b.ndim.value > 1)]
    if inner_a.value != inner_b.value:  # both shapes are to be seen
        shapes = type_check.make_variable((a.shape.value, b.shape.value), "(a.shape, b.shape)")
        type_check.expect(type_check.Claim(False, f"{inner_a.text} == {inner_b.text}", repr(shapes)))
    type_check.expect_broadcast_shapes(*(type_check.make_variable(t.shape.value[:-2], t.shape.text) for t in in_types))


def _linear(x: Any, weight: Any, *bias: Any, axes: int) -> Any:
    lead = x.shape[:axes]
    rows = o.reshape(x, (math.prod(lead), math.prod(x.shape[axes:])))
    y = o.dot(rows, o.swap_last(weight))
    y = y + bias[0] if bias else y
    return y if axes == 1 else o.reshape(y, (*lead, y.shape[-1]))


def check_linear(in_types: Any, axes: int) -> None:
    """Raise `InvalidType` for what `linear` does not take: x, W and perhaps b, with so many batch axes."""
    x, weight, *bias = in_types
    type_check.expect(x.dtype == weight.dtype, weight.ndim == 2, x.ndim > type_check.make_variable(axes - 1, "axes"))
    width = type_check.make_variable(math.prod(x.shape.value[axes:]), f"size of x.shape[{axes}:]")
    fits = width == weight.shape[1]
    if not fits:  # both shapes are to be seen
        fits.values += f", of x {x.shape.value} and W {weight.shape.value}"
    type_check.expect(fits)
    for b in bias:
        type_check.expect(b.dtype == x.dtype, b.ndim == 1, b.shape[0] == weight.shape[0])


def _batched(a: Any, b: Any, transa: bool, transb: bool) -> Any:
    a = o.reshape(a, (*a.shape, 1)) if len(a.shape) == 2 else a
    b = o.reshape(b, (*b.shape, 1)) if len(b.shape) == 2 else b
    return o.dot(_turned(a, transa), _turned(b, transb))


def _check_batched(in_types: Any, transa: bool, transb: bool) -> None:
    for t in in_types:
        type_check.expect(t.ndim >= 2)
    seen = [(t.shape.value + (1,) * (t.ndim.value == 2), t.dtype.value) for t in in_types]
    _check_matmul(type_check.Types(seen, ("a", "b")), transa, transb)


_MATMUL = Rule("matmul", _matmul, None, _check_matmul, ("a", "b"))
_LINEAR = Rule("linear", _linear, None, check_linear, ("x", "W", "b"))
_BATCH_MATMUL = Rule("batch_matmul", _batched, None, _check_batched, ("a", "b"))


def matmul(a: Array, b: Array, transa: bool = False, transb: bool = False, transout: bool = False) -> Variable:
    """The matrix product as NumPy's `matmul`; `transa`, `transb` and `transout` exchange the last two axes."""
    return _MATMUL(a, b, transa=transa, transb=transb, transout=transout)


def batch_matmul(a: Array, b: Array, transa: bool = False, transb: bool = False) -> Variable:
    """Products of matrices (B, M, K) and (B, K, N); a 2-D operand is a batch of columns."""
    return _BATCH_MATMUL(a, b, transa=transa, transb=transb)


def linear(x: Array, W: Array, b: Array | None = None, n_batch_axes: int = 1) -> Variable:
    """x Wᵀ + b: x (N, …) seen as (N, D), W (M, D), b (M,) give (N, M); the first `n_batch_axes` axes are kept."""
    ranges.check("linear", "an int", n_batch_axes=n_batch_axes)
    operands = (x, W) if b is None else (x, W, b)
    return _LINEAR(*operands, axes=n_batch_axes)
