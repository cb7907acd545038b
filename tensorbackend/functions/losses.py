# SPDX-License-Identifier: Apache-2.0
"""Losses."""

from __future__ import annotations

from typing import Any

from tensorbackend import dtypes
from tensorbackend.errors import complain
from tensorbackend.function import type_check
from tensorbackend.function.trees import Rule
from tensorbackend.function.variable import Variable
from tensorbackend.graph import composite as o

__all__ = [
    "absolute_error", "cross_entropy", "huber_loss", "mean_absolute_error", "mean_squared_error",
    "sigmoid_cross_entropy", "softmax_cross_entropy", "squared_error",
]  # fmt: skip


def check_reduce(name: str, reduce: str, choices: tuple[str, ...] = ("mean", "sum", "no")) -> None:
    """Raise `ValueError` for a way of reducing that a loss does not have."""
    if reduce not in choices:
        raise ValueError(complain(f"{name}: reduce", repr(reduce), " or ".join(map(repr, choices))))


def reduced(loss: Any, reduce: str) -> Any:
    """The tree of a loss: its mean, its sum, or as it is ('no')."""
    return loss if reduce == "no" else o.sum(loss, None, False) if reduce == "sum" else o.mean(loss, None, False)


def expect_labels(t: Any) -> None:
    """Raise `InvalidType` unless an input holds integers."""
    holds = dtypes.is_integer(t.dtype.value)
    type_check.expect(type_check.Claim(holds, f"{t.dtype.text} is an integer type", t.dtype.value.name))


def _check_softmax(in_types: Any, **params: Any) -> None:
    x, t, *weight = in_types
    type_check.expect_float(x)
    expect_labels(t)
    type_check.expect(x.ndim >= 2, t.ndim == x.ndim - 1, x.shape[0] == t.shape[0])
    for a in range(2, x.ndim.value):
        type_check.expect(x.shape[a] == t.shape[a - 1])
    for w in weight:
        type_check.expect(w.ndim == 1, w.shape[0] == x.shape[1], w.dtype == x.dtype)


def _softmax(x: Any, t: Any, *weight: Any, normalize: bool, ignore_label: int, reduce: str) -> Any:
    classes = x.shape[1]
    rest = (1,) * (len(x.shape) - 2)
    labels = o.reshape(t, (t.shape[0], 1, *t.shape[1:]))
    chosen = o.positions(x.structure.table, 1, (1, classes, *rest)) == labels
    logarithms = o.log_softmax(x, 1)
    if weight:
        logarithms = logarithms * o.reshape(weight[0], (1, classes, *rest))
    valid = t != ignore_label
    each = o.where(valid, -o.sum(o.where(chosen, logarithms, 0), 1, False), 0)
    if reduce != "mean":
        return reduced(each, reduce)
    count = o.maximum(o.sum(valid, None, False), 1) if normalize else max(x.shape[0], 1)
    return o.sum(each, None, False) / count


def _check_sigmoid(in_types: Any, **params: Any) -> None:
    x, t = in_types
    type_check.expect_float(x)
    expect_labels(t)
    type_check.expect(x.shape == t.shape)


def _sigmoid(x: Any, t: Any, normalize: bool, reduce: str) -> Any:
    valid = t != -1
    each = o.where(valid, o.maximum(x, 0) - x * t + o.log1p(o.exp(-abs(x))), 0)
    if reduce != "mean":
        return reduced(each, reduce)
    count = o.maximum(o.sum(valid, None, False), 1) if normalize else max(x.shape[0], 1)
    return o.sum(each, None, False) / count


def _sigmoid_gradient(g: Any, y: Any, x: Any, t: Any, normalize: bool, reduce: str) -> tuple:
    valid = t != -1
    each = o.where(valid, (o.sig(x) - t) * g, 0)
    if reduce != "mean":
        return each, None
    count = o.maximum(o.sum(valid, None, False), 1) if normalize else max(x.shape[0], 1)
    return each / count, None


def _check_pair(in_types: Any, **params: Any) -> None:
    a, b = in_types
    type_check.expect_float(a, b)
    type_check.expect(a.dtype == b.dtype, a.shape == b.shape)


def _huber(x: Any, t: Any, delta: float, reduce: str) -> Any:
    away = abs(x - t)
    each = o.where(away <= delta, 0.5 * away * away, delta * (away - 0.5 * delta))
    return each if reduce == "no" else o.sum(each, tuple(range(1, len(x.shape))), False)


_SOFTMAX = Rule("softmax_cross_entropy", _softmax, None, _check_softmax, ("x", "t", "class_weight"))
_SIGMOID = Rule("sigmoid_cross_entropy", _sigmoid, _sigmoid_gradient, _check_sigmoid, ("x", "t"))
_SQUARED = Rule("squared_error", lambda a, b: o.square(a - b), None, _check_pair, ("x0", "x1"))
_ABSOLUTE = Rule("absolute_error", lambda a, b: abs(a - b), None, _check_pair, ("x0", "x1"))
_MEAN_SQUARED = Rule("mean_squared_error", lambda a, b: o.mean(o.square(a - b), None, False), None, _check_pair)
_MEAN_ABSOLUTE = Rule("mean_absolute_error", lambda a, b: o.mean(abs(a - b), None, False), None, _check_pair)
_HUBER = Rule("huber_loss", _huber, None, _check_pair, ("x", "t"))
_CROSS = Rule(
    "cross_entropy", lambda p, y, eps, reduce: reduced(-y * o.log(p + eps), reduce), None, _check_pair, ("yhat", "y")
)


def softmax_cross_entropy(
    x: Any, t: Any, normalize: bool = True, class_weight: Any = None, ignore_label: int = -1, reduce: str = "mean",
    enable_double_backprop: bool = False,
) -> Variable:  # fmt: skip
    """-ln softmax(x) at the labels: x (N, C, d1, …) of numbers, t (N, d1, …) of integers.

    The mean is over entries whose label is not `ignore_label` (with `normalize` False: over N); of none it is 0.
    `class_weight` (C,) weighs classes; `reduce` is 'mean', 'sum' or 'no'. It can always be differentiated twice.
    """
    check_reduce("softmax_cross_entropy", reduce)
    operands = (x, t) if class_weight is None else (x, t, class_weight)
    return _SOFTMAX(*operands, normalize=normalize, ignore_label=ignore_label, reduce=reduce)


def sigmoid_cross_entropy(x: Any, t: Any, normalize: bool = True, reduce: str = "mean") -> Variable:
    """-ln of the probability that sigmoid(x) gives t, of 0 and 1; -1 is ignored. Means as `softmax_cross_entropy`."""
    check_reduce("sigmoid_cross_entropy", reduce)
    return _SIGMOID(x, t, normalize=normalize, reduce=reduce)


def squared_error(x0: Any, x1: Any) -> Variable:
    """(x0 - x1) squared, of one shape."""
    return _SQUARED(x0, x1)


def absolute_error(x0: Any, x1: Any) -> Variable:
    """|x0 - x1|, of one shape."""
    return _ABSOLUTE(x0, x1)


def mean_squared_error(x0: Any, x1: Any) -> Variable:
    """The mean of (x0 - x1) squared."""
    return _MEAN_SQUARED(x0, x1)


def mean_absolute_error(x0: Any, x1: Any) -> Variable:
    """The mean of |x0 - x1|."""
    return _MEAN_ABSOLUTE(x0, x1)


def huber_loss(x: Any, t: Any, delta: float, reduce: str = "sum_along_second_axis") -> Variable:
    """d^2 / 2 where d = |x - t| <= delta, else delta (d - delta / 2); summed over all axes but the first."""
    check_reduce("huber_loss", reduce, ("sum_along_second_axis", "no"))
    return _HUBER(x, t, delta=delta, reduce=reduce)


def cross_entropy(yhat: Any, y: Any, eps: float = 1e-6, reduce: str = "sum") -> Variable:
    """-sum of y ln(yhat + eps), with probabilities `yhat` and weights `y` of one shape."""
    check_reduce("cross_entropy", reduce)
    return _CROSS(yhat, y, eps=eps, reduce=reduce)
