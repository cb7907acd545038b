# SPDX-License-Identifier: Apache-2.0
"""Functions that reduce axes: sums, means, extremes, products, and what is made of them."""

from __future__ import annotations

import builtins
from typing import Any

import numpy as np

from tensorbackend.function import type_check
from tensorbackend.function.trees import Rule
from tensorbackend.function.variable import Variable, as_variable
from tensorbackend.functions.arguments import Array, Axis
from tensorbackend.graph import composite as o

__all__ = [
    "argmax", "argmin", "average", "batch_l2_norm_squared", "logsumexp", "max", "mean", "min", "prod", "sum", "sum_to",
]  # fmt: skip

def axes_of(axis: Any) -> Axis:
    """An axis argument as it can be part of a key: a list becomes a tuple."""
    return tuple(axis) if isinstance(axis, list) else axis


def _check(in_types: Any, axis: Axis = None, **params: Any) -> None:
    (x,) = in_types
    named = () if axis is None else axis if isinstance(axis, tuple) else (axis,)
    for a in named:
        place = type_check.make_variable(a, "axis")
        type_check.expect(place < x.ndim, place >= -x.ndim.value)


def _reducer(name: str) -> Rule:
    compute = getattr(o, name)
    return Rule(name, lambda x, axis, keepdims: compute(x, axis, keepdims), None, _check, ("x",))


_SUM, _MEAN, _PROD, _MAX, _MIN = map(_reducer, ("sum", "mean", "prod", "max", "min"))
_ARGMAX, _ARGMIN, _LOGSUMEXP = map(_reducer, ("argmax", "argmin", "logsumexp"))


def _average(x: Any, weights: Any, axis: Axis, keepdims: bool) -> Any:
    if len(weights.shape) != len(x.shape):
        weights = o.reshape(weights, tuple(-1 if a == axis % len(x.shape) else 1 for a in range(len(x.shape))))
    return o.sum(x * weights, axis, keepdims) / o.sum(weights, axis, keepdims)


def _check_average(in_types: Any, axis: Axis, **params: Any) -> None:
    x, weights = in_types
    _check((x,), axis)
    if isinstance(axis, (int, np.integer)) and weights.ndim.value == 1:
        type_check.expect(weights.shape[0] == x.shape[axis])
    else:
        type_check.expect(weights.shape == x.shape)


_AVERAGE = Rule("average", _average, None, _check_average, ("x", "weights"))
_SUM_TO = Rule("sum_to", lambda x, shape: o.unbroadcast(x, shape), names=("x",))


def sum(x: Array, axis: Axis = None, keepdims: bool = False) -> Variable:
    """The sum over the axes (None: all)."""
    return _SUM(x, axis=axes_of(axis), keepdims=keepdims)


def mean(x: Array, axis: Axis = None, *, weights: Array | None = None, keepdims: bool = False) -> Variable:
    """The mean over the axes (None: all), weighted if `weights` are given; as `average`."""
    return average(x, axis, weights, keepdims)


def average(x: Array, axis: Axis = None, weights: Array | None = None, keepdims: bool = False) -> Variable:
    """The mean over the axes (None: all); with `weights`, of x's shape or the axis's, sum(x w) / sum(w).

    Raises `InvalidType` for weights of another shape.
    """
    axis = axes_of(axis)
    if weights is None:
        return _MEAN(x, axis=axis, keepdims=keepdims)
    return _AVERAGE(x, as_variable(weights), axis=axis, keepdims=keepdims)


def prod(x: Array, axis: Axis = None, keepdims: bool = False) -> Variable:
    """The product over the axes (None: all)."""
    return _PROD(x, axis=axes_of(axis), keepdims=keepdims)


def max(x: Array, axis: Axis = None, keepdims: bool = False) -> Variable:
    """The largest over the axes (None: all); every element equal to it gets the gradient."""
    return _MAX(x, axis=axes_of(axis), keepdims=keepdims)


def min(x: Array, axis: Axis = None, keepdims: bool = False) -> Variable:
    """The smallest over the axes (None: all); every element equal to it gets the gradient."""
    return _MIN(x, axis=axes_of(axis), keepdims=keepdims)


def argmax(x: Array, axis: int | None = None) -> Variable:
    """The first position of the largest along an axis (None: in C order of all); no gradient."""
    return _ARGMAX(x, axis=axis, keepdims=False)


def argmin(x: Array, axis: int | None = None) -> Variable:
    """The first position of the smallest along an axis (None: in C order of all); no gradient."""
    return _ARGMIN(x, axis=axis, keepdims=False)


def logsumexp(x: Array, axis: Axis = None, keepdims: bool = False) -> Variable:
    """ln of the sum of exp(x) over the axes (None: all), without overflow."""
    return _LOGSUMEXP(x, axis=axes_of(axis), keepdims=keepdims)


_SQUARES = Rule("batch_l2_norm_squared", lambda x: o.sum(x * x, tuple(range(1, len(x.shape))), False), names=("x",))


def batch_l2_norm_squared(x: Array) -> Variable:
    """The sums of squares (N,) over all axes but the first."""
    return _SQUARES(x)


def sum_to(x: Array, shape: tuple[int, ...]) -> Variable:
    """The sum over the axes along which `shape` would be broadcast to x's shape."""
    return _SUM_TO(x, shape=tuple(builtins.map(int, shape)))
