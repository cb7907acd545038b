# SPDX-License-Identifier: Apache-2.0
"""Normalizations, statistics over the axes of channels, and embeddings."""

from __future__ import annotations

import ast
import math
from typing import Any

import numpy as np

from tensorbackend import dtypes, ops
from tensorbackend.errors import DTypeError, ShapeError, complain
from tensorbackend.function import arrays, type_check
from tensorbackend.function.config import lookup
from tensorbackend.function.trees import Rule
from tensorbackend.function.variable import Variable, as_variable
from tensorbackend.functions import picking
from tensorbackend.functions.arguments import Array, Axis
from tensorbackend.functions.losses import check_labels, length, refuse_labels
from tensorbackend.graph import composite as o
from tensorbackend.graph import ranges
from tensorbackend.graph.optree import apply
from tensorbackend.graph.structure import normalize_axes

__all__ = [
    "batch_normalization", "embed_id", "fixed_batch_normalization", "group_normalization", "layer_normalization",
    "local_response_normalization", "mean_axis02", "normalize", "sum_axis02",
]  # fmt: skip


def _axes(x: Any, axis: Any) -> tuple[int, ...]:
    """The axes of statistics: as given, else all but the second."""
    rank = len(x.shape)
    if axis is None:
        return tuple(a for a in range(rank) if a != 1)
    return normalize_axes("batch_normalization", tuple(axis) if isinstance(axis, list) else axis, rank)


def _spread(v: Any, x: Any, axes: tuple[int, ...]) -> Any:
    """A channel's numbers, of x's shape without `axes`, so that they broadcast against x."""
    return o.reshape(v, tuple(1 if a in axes else n for a, n in enumerate(x.shape)))


def _normalized(x: Any, axes: tuple[int, ...], eps: float) -> tuple[Any, Any, Any]:
    """(x - mean) / sqrt(variance + eps), the mean and the variance over axes: of halves in float32, since gradients
    need them exactly, and running statistics may be wider."""
    mean = o.mean(x, axes, True)
    centred = x - mean
    variance = o.mean(centred * centred, axes, True)
    standard = centred * o.rsqrt(variance + eps)
    if dtypes.is_half(x.dtype):
        mean, variance = mean * np.float32(1), variance * np.float32(1)
    return standard, mean, variance


def _gradients(g: Any, y: Any, x: Any, gamma: Any, axes: tuple[int, ...], eps: float,
               over: tuple[int, ...]) -> tuple[Any, Any, Any]:  # fmt: skip
    """The gradients at x, gamma and beta of those at the outputs (None: none): with h = (x - mean) /
    sqrt(variance + eps), h gamma + beta, the mean and the variance, which lie along x. Those at gamma and beta are sums
    `over` axes, which stay as axes of one element.
    """
    (gy, g_mean, g_variance), (_, mean, variance) = g, y
    count = float(max(math.prod(x.shape[a] for a in axes), 1))
    scale = o.rsqrt(variance + eps)
    h = (x - mean) * scale
    gx, g_gamma, g_beta = None, None, None
    if gy is not None:
        g_gamma, g_beta = o.sum(gy * h, over, True), o.sum(gy, over, True)
        if over == axes:  # gamma is a factor of all that is averaged: one kernel then has the sums, and uses them
            gx = (gy - g_beta / count - h * (g_gamma / count)) * (scale * gamma)
        else:
            gh = gy * gamma
            gx = (gh - o.mean(gh, axes, True) - h * o.mean(gh * h, axes, True)) * scale
    for more in (
        None if g_mean is None else g_mean / count,
        None if g_variance is None else (x - mean) * (g_variance * (2.0 / count)),
    ):
        gx = gx if more is None else more if gx is None else gx + more
    return gx, g_gamma, g_beta


def _batch_gradients(g: Any, y: Any, x: Any, gamma: Any, beta: Any, eps: float, axes: tuple[int, ...]) -> tuple:
    g, y = ([v if v is None or i == 0 else _spread(v, x, axes) for i, v in enumerate(vs)] for vs in (g, y))
    gx, *others = _gradients(g, y, x, _spread(gamma, x, axes), axes, eps, axes)
    return gx, *(None if v is None else o.reshape(v, gamma.shape) for v in others)


def _batch(x: Any, gamma: Any, beta: Any, eps: float, axes: tuple[int, ...]) -> tuple[Any, Any, Any]:
    standard, mean, variance = _normalized(x, axes, eps)
    y = standard * _spread(gamma, x, axes) + _spread(beta, x, axes)
    return y, o.reshape(mean, gamma.shape), o.reshape(variance, gamma.shape)


def _fixed(x: Any, gamma: Any, beta: Any, mean: Any, var: Any, eps: float, axes: tuple[int, ...]) -> Any:
    gamma, beta, mean, var = (_spread(v, x, axes) for v in (gamma, beta, mean, var))
    return (x - mean) * (o.rsqrt(var + eps) * gamma) + beta


def _check_channels(in_types: Any, axes: tuple[int, ...], **params: Any) -> None:
    x, *channels = in_types
    type_check.expect_float(*in_types)
    kept = [n for a, n in enumerate(x.shape.value) if a not in axes]
    for t in channels:
        expected = type_check.make_variable(tuple(kept), f"x.shape without axes {axes}")
        type_check.expect(t.shape == expected, t.dtype == x.dtype)


_BATCH = Rule("batch_normalization", _batch, _batch_gradients, _check_channels, ("x", "gamma", "beta"))
_FIXED = Rule("fixed_batch_normalization", _fixed, None, _check_channels, ("x", "gamma", "beta", "mean", "var"))


def batch_normalization(x: Array, gamma: Array, beta: Array, *, eps: float = 2e-5,
                        running_mean: Array | None = None, running_var: Array | None = None, decay: float = 0.9,
                        axis: Axis = None) -> Variable:  # fmt: skip
    """gamma (x - mean) / sqrt(var + eps) + beta, with mean and biased variance over `axis` (None: all axes but the
    second), and gamma and beta of the shape of the others (Ioffe and Szegedy 2015).

    `running_mean` and `running_var`, arrays, become decay times themselves plus 1 - decay times this batch's mean, and
    variance times m / (m - 1), with m elements a channel. Raises `InvalidType` for types and shapes, `ShapeError` for
    the shapes of `running_mean` and `running_var`, `DTypeError` where these are no floats, and `TypeError` where
    they are no arrays.
    """
    ranges.check("batch_normalization", "0 or more, and finite", eps=eps)
    ranges.check("batch_normalization", "0 to 1", decay=decay)
    axes = _axes(x, axis)
    for name, running in (("running_mean", running_mean), ("running_var", running_var)):
        if running is None:
            continue
        if not arrays.is_array(running):
            raise TypeError(complain(f"batch_normalization: {name}", type(running).__name__, "an array, or None"))
        if running.shape != gamma.shape:
            head = f"batch_normalization: shape of {name}"
            raise ShapeError(complain(head, str(running.shape), f"{gamma.shape}, as gamma"))
        if not dtypes.is_float(running.dtype):
            raise DTypeError(complain(f"batch_normalization: type of {name}", str(running.dtype), "a float type"))
    y, mean, variance = _BATCH(x, gamma, beta, eps=float(eps), axes=axes)
    count = math.prod(x.shape[a] for a in axes)
    if running_mean is not None and count:
        _follow(running_mean, decay, mean.array * (1 - decay))
    if running_var is not None and count:
        _follow(running_var, decay, variance.array * ((1 - decay) * count / max(count - 1, 1)))
    return y


def _follow(running: Any, decay: float, more: Any) -> None:
    """Have a running statistic decay, and add to it what a batch gives."""
    with np.errstate(over="ignore"):  # as tensors of halves are written
        running[...] = running * decay + more


def fixed_batch_normalization(x: Array, gamma: Array, beta: Array, mean: Array, var: Array, eps: float = 2e-5,
                              axis: Axis = None) -> Variable:  # fmt: skip
    """`batch_normalization` with a mean and a variance that are given, differentiable in all five."""
    ranges.check("fixed_batch_normalization", "0 or more, and finite", eps=eps)
    return _FIXED(x, gamma, beta, mean, var, eps=float(eps), axes=_axes(x, axis))


def _check_layer(in_types: Any, **params: Any) -> None:
    x, gamma, beta = in_types
    type_check.expect_float(*in_types)
    type_check.expect(x.ndim == 2)
    for t in (gamma, beta):
        type_check.expect(t.ndim == 1, t.shape[0] == x.shape[1])


def _output(rule: Rule, x: Array, gamma: Array, beta: Array, **params: Any) -> Variable:
    """The output of a rule that gives the statistics, too, where a graph is recorded, since gradients need them."""
    alone = not lookup("enable_backprop")
    made = rule(x, gamma, beta, alone=alone, **params)
    return made if alone else made[0]


def _layer(x: Any, gamma: Any, beta: Any, eps: float, alone: bool) -> Any:
    """The output, and unless it is to be `alone` the mean and the variance."""
    standard, mean, variance = _normalized(x, (1,), eps)
    y = standard * gamma + beta
    return y if alone else (y, mean, variance)


def _layer_gradients(g: Any, y: Any, x: Any, gamma: Any, beta: Any, eps: float, alone: bool) -> tuple:
    gx, *others = _gradients(g, y, x, gamma, (1,), eps, (0,))
    return gx, *(None if v is None else o.reshape(v, gamma.shape) for v in others)


_LAYER = Rule("layer_normalization", _layer, _layer_gradients, _check_layer, ("x", "gamma", "beta"))


def layer_normalization(x: Array, gamma: Array, beta: Array, eps: float = 1e-5) -> Variable:
    """Rows of x (N, D) with mean 0 and variance 1, times gamma (D,) plus beta (D,) (Ba et al. 2016)."""
    ranges.check("layer_normalization", "0 or more, and finite", eps=eps)
    return _output(_LAYER, x, gamma, beta, eps=float(eps))


def _apart(x: Any, gamma: Any, beta: Any, groups: int) -> tuple[Any, Any, Any]:
    """The groups of x as an axis of their own, with gamma and beta along it."""
    n, c, *rest = x.shape
    along = (1, groups, c // groups, 1)
    return o.reshape(x, (n, *along[1:3], math.prod(rest))), o.reshape(gamma, along), o.reshape(beta, along)


def _group(x: Any, gamma: Any, beta: Any, groups: int, eps: float, alone: bool) -> Any:
    """As `_layer`."""
    apart, gamma, beta = _apart(x, gamma, beta, groups)
    standard, mean, variance = _normalized(apart, (2, 3), eps)
    y = o.reshape(standard * gamma + beta, x.shape)
    return y if alone else (y, mean, variance)


def _group_gradients(g: Any, y: Any, x: Any, gamma: Any, beta: Any, groups: int, eps: float, alone: bool) -> tuple:
    apart, along, _ = _apart(x, gamma, beta, groups)
    gy = None if g[0] is None else o.reshape(g[0], apart.shape)
    gx, *others = _gradients((gy, *g[1:]), y, apart, along, (2, 3), eps, (0, 3))
    return o.reshape(gx, x.shape), *(None if v is None else o.reshape(v, gamma.shape) for v in others)


def _check_group(in_types: Any, **params: Any) -> None:
    x, gamma, beta = in_types
    type_check.expect_float(*in_types)
    type_check.expect(x.ndim >= 2)
    for t in (gamma, beta):
        type_check.expect(t.ndim == 1, t.shape[0] == x.shape[1])


_GROUP = Rule("group_normalization", _group, _group_gradients, _check_group, ("x", "gamma", "beta"))


def group_normalization(x: Array, groups: int, gamma: Array, beta: Array, eps: float = 1e-5) -> Variable:
    """Groups of the channels of x (N, C, …) with mean 0 and variance 1, times gamma (C,) plus beta (C,) (Wu and He
    2018). Raises `ShapeError` where the channels do not divide."""
    ranges.check("group_normalization", "0 or more, and finite", eps=eps)
    ranges.check("group_normalization", "an int", groups=groups)
    if len(x.shape) < 2:
        raise ShapeError(complain("group_normalization: x", f"shape {x.shape}", "(N, C, …)"))
    if groups < 1 or x.shape[1] % groups:
        raise ShapeError(complain("group_normalization", f"{groups} groups of {x.shape[1]} channels", "a divisor"))
    return _output(_GROUP, x, gamma, beta, groups=groups, eps=float(eps))


def _normalize(x: Any, eps: float, axis: Any) -> Any:
    largest = 0.5 * o.max(abs(x), axis, True) if 0 not in x.shape else x
    unit = o.pow2near(largest)  # a power of two, so that squares neither overflow nor lose a digit; no gradient
    unit = o.where(o.finite(unit) * (unit != 0), unit, 1)
    scaled = x / unit
    return x / (unit * length(o.sum(scaled * scaled, axis, True)) + eps)


_NORMALIZE = Rule("normalize", _normalize, None, lambda t, **params: type_check.expect_float(*t), ("x",))


def normalize(x: Array, eps: float = 1e-5, axis: Axis = 1) -> Variable:
    """x / (|x| + eps), with Euclidean lengths along the axes. Raises `ShapeError` for axes that are not there."""
    ranges.check("normalize", "0 or more, and finite", eps=eps)
    axes = normalize_axes("normalize", tuple(axis) if isinstance(axis, list) else axis, len(x.shape))
    return _NORMALIZE(x, eps=float(eps), axis=axes)


def _response(x: Any, n: int, k: float, alpha: float, beta: float) -> Any:
    half, channels = n // 2, x.shape[1]
    shape = (x.shape[0], channels + 2 * half, *x.shape[2:])
    squares = o.unslice(x * x, shape, (slice(None), slice(half, half + channels)))
    total = k
    for i in range(n):
        total = total + alpha * o.slice(squares, (slice(None), slice(i, i + channels)))
    return x * total ** (-beta)


def _check_response(in_types: Any, **params: Any) -> None:
    type_check.expect_float(*in_types)
    type_check.expect(in_types[0].ndim >= 2)


_RESPONSE = Rule("local_response_normalization", _response, None, _check_response, ("x",))


def local_response_normalization(x: Array, n: int = 5, k: float = 2.0, alpha: float = 1e-4,
                                 beta: float = 0.75) -> Variable:  # fmt: skip
    """x (k + alpha times the sum of squares of n channels around)^-beta (Krizhevsky et al. 2012).

    Raises `ValueError` unless `n` is odd.
    """
    ranges.check("local_response_normalization", "0 or more, and finite", k=k, alpha=alpha)
    ranges.check("local_response_normalization", "a finite number", beta=beta)
    ranges.check("local_response_normalization", "an int of 1 or more", n=n)
    if n % 2 == 0:
        raise ValueError(complain("local_response_normalization: n", str(n), "an odd number"))
    return _RESPONSE(x, n=n, k=float(k), alpha=float(alpha), beta=float(beta))


# Sums over batch and places

_BINARY = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div"}


def _expression(text: str) -> Any:
    """A function (x, y) of trees from C text of x, y, numbers, + - * / and the elementwise functions of one argument of
    the op table. Raises `ValueError` for other text."""
    plain = " ".join(text.replace("[I]", "").replace("[i]", "").split())
    try:
        body = ast.parse(plain, mode="eval").body
        _walk(body, 1.0, 1.0)
    except (SyntaxError, KeyError, TypeError) as error:
        expected = "x, y, numbers, + - * / and functions of one argument"
        raise ValueError(complain("sum_axis02: expression", repr(text), expected)) from error
    return lambda x, y: _walk(body, x, y)


def _walk(node: ast.AST, x: Any, y: Any) -> Any:
    if isinstance(node, ast.Name):
        return {"x": x, "y": y}[node.id]
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        return float(node.value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        value = _walk(node.operand, x, y)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp):
        return _applied(_BINARY[type(node.op)], _walk(node.left, x, y), _walk(node.right, x, y))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) == 1 and not node.keywords:
        return _applied(node.func.id, _walk(node.args[0], x, y))
    raise TypeError(type(node).__name__)


def _applied(name: str, *values: Any) -> Any:
    """An elementwise op of trees and numbers; of numbers alone the number. Raises `KeyError` for what is no such op."""
    op = ops.OPS[name]
    if op.kind != ops.ELEMENTWISE or op.arity != len(values):
        raise KeyError(name)
    if not all(isinstance(v, float) for v in values):
        return apply(op, *values)
    with np.errstate(all="ignore"):
        return float(op.numpy(*map(np.float64, values)))


def _everywhere(value: Any, x: Any) -> Any:
    """The tree of a number at each place of x; of a tree itself."""
    return o.where(x == x, *[x.dtype.type(value)] * 2) if isinstance(value, float) else value


def _sums(x: Any, y: Any, expr1: str, expr2: str, mean: bool) -> tuple[Any, Any]:
    count = x.shape[0] * x.shape[2]
    found = (_everywhere(_expression(text)(x, y), x) for text in (expr1, expr2))
    return tuple(o.sum(v, (0, 2), True) * (1.0 / max(count, 1) if mean else 1.0) for v in found)


def _check_three(in_types: Any, **params: Any) -> None:
    type_check.expect_float(*in_types)
    for t in in_types:
        type_check.expect(t.ndim == 3, t.shape == in_types[0].shape)


_SUMS = Rule("sum_axis02", _sums, None, _check_three, ("x", "y"))
_MEAN = Rule("mean_axis02", lambda x: o.mean(x, (0, 2), False), None, _check_three, ("x",))


def sum_axis02(x: Array, y: Array | None = None, expr1: str = "x", expr2: str = "x*x",
               mean: bool = False) -> tuple[Variable, Variable]:  # fmt: skip
    """The sums (1, C, 1) over the first and last axis of two expressions in x and y (N, C, L) (None: x), or the means,
    in one pass. Expressions are C text, as 'y' or 'x*sqrt(y)', in which all numbers are floats; `x[I]` means x. Raises
    `ValueError` for other text."""
    for text in (expr1, expr2):
        _expression(text)
    return _SUMS(x, x if y is None else y, expr1=expr1, expr2=expr2, mean=mean)


def mean_axis02(x: Array) -> Variable:
    """The means (C,) over the first and last axis of (N, C, L)."""
    return _MEAN(x)


# Embeddings

_IGNORING = Rule("embed_id", lambda rows, ids, label: o.where(o.reshape(ids == label, (*ids.shape, 1)), 0, rows))


def _expect_words(in_types: Any) -> None:
    type_check.expect(in_types[0].ndim == 2)


def embed_id(x: Array, W: Array, ignore_label: int | None = None) -> Variable:
    """The rows of W (words, D) of integers x (…): (…, D). `ignore_label` gives zeros and no gradient; the gradients of
    a word add up. Raises `InvalidType` for x of no integers and W of another rank, `IndexError` in debug mode for an
    integer that is no row.
    """
    if ignore_label is not None:
        ranges.check("embed_id", "an int", ignore_label=ignore_label)
    ids, words = as_variable(x)._known(), as_variable(W)
    check_labels("embed_id", "x", ids)
    if len(words.shape) != 2:
        type_check.checked("embed_id", _expect_words, [(words.shape, words.dtype)], ("W",))
    if lookup("debug"):
        refuse_labels("embed_id", arrays.moved(ids, None), W.shape[0], ignore_label)
    if ignore_label is None:
        return picking.get_item(W, ids)
    backend = arrays.backend_of(ids)
    where = np.where if backend is None else o.where
    places = where(ids == ignore_label, 0, ids)
    places = places if backend is None else arrays.plain(backend.evaluate(places))
    return _IGNORING(picking.get_item(W, places), ids, label=ignore_label)
