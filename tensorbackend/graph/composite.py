# SPDX-License-Identifier: Apache-2.0
"""Ops that are expressions of table ops: written once, fused like anything else, differentiated for free.

The module also holds a function for every op of the table, under its name and its method names, so that derivative
rules and composites have one namespace to draw on. All take and give op-trees; nothing is computed here.
"""

from __future__ import annotations

import builtins
import math
from typing import Any

import numpy as np

from tensorbackend import dtypes, ops
from tensorbackend.errors import DTypeError, ShapeError, complain
from tensorbackend.graph import indexing, ranges
from tensorbackend.graph.optree import Operators, OpTreeNode, apply, expect_tree, source
from tensorbackend.graph.structure import UNKNOWN, StructureTable, as_axis, normalize_axes

__all__ = ["COMPOSITES", "OF_OPERANDS"]


def _function(op: ops.Op) -> Any:
    def function(*operands: Any) -> OpTreeNode:
        return apply(op, *operands)

    function.__name__, function.__doc__ = op.name, op.doc
    return function


def _reduction(op: ops.Op) -> Any:
    def function(a: Any, axis: Any = None, keepdims: bool = True) -> Any:
        axis = as_axis(op.name, axis)
        reduced = apply(op, a, params=(axis,))
        return reduced if keepdims else drop_axes(reduced, axis)

    function.__name__, function.__doc__ = op.name, op.doc
    return function


for _op in ops.OPS.values():
    if _op.kind == ops.ELEMENTWISE:
        globals().update({name: _function(_op) for name in {_op.name, *_op.methods}})
    elif _op.kind == ops.REDUCTION:
        globals()[_op.name] = _reduction(_op)

_O: Any = globals()


def _do(name: str, *operands: Any, **keywords: Any) -> Any:
    return _O[name](*operands, **keywords)


# Movements


def transpose(x: Any, axes: tuple[int, ...] | None = None) -> Any:
    """The axes in another order; None: as `.T`."""
    expect_tree("transpose", x)
    return x.T if axes is None else x._move("transpose", indexing.whole("transpose", axes))


def reshape(x: Any, shape: tuple[int, ...]) -> Any:
    """The numbers in C order under another shape; a tensor whose elements are not in that order becomes a node."""
    expect_tree("reshape", x)
    shape = indexing.whole("reshape", shape)
    if not isinstance(x, OpTreeNode):
        shape = indexing.reshaped(x.shape, shape)
        if indexing.view_strides(x.shape, x.strides, shape) is None:
            return apply(ops.OPS["reshape"], x, params=(shape,))
    return x._move("reshape", shape)


def broadcast_to(x: Any, shape: tuple[int, ...]) -> Any:
    """`x` repeated along its axes of length 1 to `shape`."""
    shape = indexing.whole("broadcast_to", shape)
    indexing.check_rank("broadcast_to", len(shape))
    if builtins.any(n < 0 for n in shape):
        raise ShapeError(complain("broadcast_to: a negative length", str(shape), "lengths of 0 or more"))
    return x._move("broadcast", shape)


def slice(x: Any, key: tuple) -> Any:
    """The part of `x` that a basic index picks."""
    return x[key]


def drop_axes(x: Any, axis: Any) -> Any:
    """`x` without the axes of length 1 at `axis` (None: all axes)."""
    axes = normalize_axes("squeeze", as_axis("squeeze", axis), len(x.shape))
    return reshape(x, tuple(n for a, n in enumerate(x.shape) if a not in axes))


def swap_last(x: Any) -> Any:
    """The last two axes exchanged."""
    return transpose(x, _last_swapped(len(x.shape)))


def _last_swapped(rank: int) -> tuple[int, ...]:
    return (*range(rank - 2), rank - 1, rank - 2)


def turned(gradient: Any, axes: tuple[int, ...]) -> Any:
    """A gradient that nobody else uses, with its axes in another order: of a product whose last two are exchanged, the
    product of its factors, exchanged and turned. That is written where it belongs as it is computed."""
    is_product = isinstance(gradient, OpTreeNode) and gradient.structure.op is ops.OPS["dot"]
    if not is_product or axes != _last_swapped(len(axes)):
        return transpose(gradient, axes)
    a, b = gradient.inputs
    return dot(swap_last(b), swap_last(a))


def unbroadcast(x: Any, shape: tuple[int, ...]) -> Any:
    """The sum of `x` over the axes along which `shape` was broadcast: the adjoint of broadcasting.

    Axes along which `x` has length 1 and `shape` more are left as they are.
    """
    if x.shape == shape:
        return x
    lead = len(x.shape) - len(shape)
    axes = tuple(a for a, n in enumerate(x.shape) if a < lead or (shape[a - lead] == 1 and n != 1))
    reduced = _do("sum", x, axes) if axes else x
    return reshape(reduced, reduced.shape[lead:]) if lead else reduced


# Primitives


def dot(a: Any, b: Any) -> OpTreeNode:
    """The matrix product of the last two axes, batches broadcast."""
    return apply(ops.OPS["dot"], a, b)


def cumsum(x: Any, axis: int) -> OpTreeNode:
    """The running sum along an axis."""
    return apply(ops.OPS["cumsum"], x, params=(as_axis("cumsum", axis),))


def cumprod(x: Any, axis: int) -> OpTreeNode:
    """The running product along an axis."""
    return apply(ops.OPS["cumprod"], x, params=(as_axis("cumprod", axis),))


def take(x: Any, indices: Any, axis: int) -> OpTreeNode:
    """The entries of `x` along `axis` at integer `indices`."""
    return apply(ops.OPS["take"], x, indices, params=(as_axis("take", axis),))


def put(x: Any, indices: Any, shape: tuple[int, ...], axis: int) -> OpTreeNode:
    """Zeros of `shape` with `x` added along `axis` at `indices`."""
    return apply(ops.OPS["put"], x, indices, params=(indexing.whole("put", tuple(shape)), as_axis("put", axis)))


def unslice(x: Any, shape: tuple[int, ...], key: tuple) -> OpTreeNode:
    """Zeros of `shape` with `x` at a basic index."""
    params = (indexing.whole("unslice", tuple(shape)), indexing.hashable(key))
    return apply(ops.OPS["unslice"], x, params=params)


# Sources


def positions(table: StructureTable, axis: int, shape: tuple[int, ...] | None) -> OpTreeNode:
    """The position along `axis` of `shape`, counted from 0."""
    return source(ops.OPS["index"], table, shape, axis)


def onehot(indices: Any, axis: int) -> OpTreeNode:
    """1 where the position along `axis` (0 or 1) equals the index; the partner or target decides the classes."""
    if as_axis("onehot", axis) not in (0, 1):
        raise ShapeError(complain("onehot: no such axis", f"axis={axis}", "0 for (classes, n), 1 for (n, classes)"))
    if not isinstance(indices, Operators) or indices.dtype.kind not in "iu":
        given = str(indices.dtype) if isinstance(indices, Operators) else type(indices).__name__
        raise DTypeError(complain("onehot: indices must be integers", given, "a tensor of int32 or another integer"))
    if indices.ndim > 2 or (indices.ndim == 2 and 1 not in indices.shape):
        raise ShapeError(complain("onehot: indices are a row or a column", str(indices.shape), "(1, n) or (n, 1)"))
    n = indices.size
    place, shape = ((1, n), (UNKNOWN, n)) if axis == 0 else ((n, 1), (n, UNKNOWN))
    return positions(indices.structure.table, int(axis), shape) == reshape(indices, place)


# Statistics


def _over(name: str, by: str, a: Any, axis: Any, keepdims: bool = True) -> Any:
    """A reduction as part of an expression, in whose name it is said what is wrong with the axis."""
    try:
        return _do(by, a, axis, keepdims)
    except ShapeError as error:
        raise ShapeError(str(error).replace(f"{by}:", f"{name}:", 1)) from None


def _count(a: Any, axis: Any) -> int:
    axes = normalize_axes("mean", as_axis("mean", axis), len(a.shape))
    return math.prod(a.shape[x] for x in axes)


def mean(a: Any, axis: Any = None, keepdims: bool = True) -> Any:
    """The sum over the axes divided by their count; NaN of nothing."""
    total = _over("mean", "sum", a, axis, keepdims)
    count = _count(a, axis)
    if a.dtype in (np.int64, np.uint64):
        result = _wide_mean(a, axis, count)
        return result if keepdims else drop_axes(result, axis)
    return total if count == 1 and dtypes.is_float(total.dtype) else total / float(count)


def _wide_mean(a: Any, axis: Any, count: int) -> Any:
    """The mean of integers of 64 bits, whose sum may need more: of the sums of their halves."""
    low = _do("sum", a & 0xFFFFFFFF, axis)
    high = _do("sum", a >> 32, axis) + (low >> 32)
    low = low & 0xFFFFFFFF
    beyond = high * (2.0**32 / (count or 1)) + low / float(count)
    return _do("where", abs(high) < 2**30, ((high << 32) + low) / float(count), beyond)


def var(a: Any, axis: Any = None, keepdims: bool = True, binary: bool = False) -> Any:
    """The population variance mean((a - mean a)^2); `binary`: the square x x is x times its nearest power of two."""
    away = _do("sub", a, _over("var", "mean", _real(a), axis))  # a tree, of an array, too: one statement with the rest
    return mean(away * _do("pow2near", away) if binary else _do("sqr", away), axis, keepdims)


def std(a: Any, axis: Any = None, keepdims: bool = True) -> Any:
    """The square root of the population variance."""
    return _do("sqrt", _over("std", "var", a, axis, keepdims))


def _real(a: Any) -> Any:
    """`a`; integers as numbers of the default type, which do not wrap."""
    return a * 1.0 if isinstance(a, Operators) and not dtypes.is_float(a.dtype) else a


def _wide(a: Any) -> Any:
    """`a`; signed integers as int64: the least of a narrower type has no opposite there."""
    return a + np.int64(0) if isinstance(a, Operators) and a.dtype.kind == "i" else a


def norm(a: Any, axis: Any = None, keepdims: bool = True, ord: float = 2) -> Any:
    """The vector norm over the axes: (sum |a|^ord)^(1/ord); `ord` 1, 2, inf, or another positive number."""
    if ord == 2:
        return _do("sqrt", _over("norm", "sum", _do("sqr", _real(a)), axis, keepdims))
    if ord == 1:
        return _over("norm", "sum", abs(_wide(a)), axis, keepdims)
    if ord == math.inf:
        return _over("norm", "max", abs(_wide(a)), axis, keepdims)
    if not isinstance(ord, (int, float, np.floating, np.integer)) or not ord > 0:
        raise ValueError(complain("norm: ord", repr(ord), "a number above 0"))
    return _over("norm", "sum", abs(_real(a)) ** ord, axis, keepdims) ** (1.0 / ord)


def logsumexp(a: Any, axis: Any = None, keepdims: bool = True) -> Any:
    """ln of the sum of exp(a), without overflow; -infinity where all a are."""
    top = _over("logsumexp", "max", a, axis)
    safe = _do("where", _do("finite", top), top, 0.0)
    total = _do("log", _do("sum", _do("exp", a - safe), axis)) + safe
    return total if keepdims else drop_axes(total, axis)


def _below(a: Any, most: Any) -> Any:
    """a - most for the largest over an axis; of integers exactly, where their own type would wrap."""
    if a.dtype.kind == "u":
        return 0.0 - (most - a)
    if a.dtype == np.int64:  # a difference from 2^63 on wraps, to one below 0
        under = most - a
        return _do("where", under < 0, -(2.0**64) - under, 0.0 - under)
    return _wide(a) - most


def softmax(a: Any, axis: Any = None) -> Any:
    """exp(a - max a) / sum exp(a - max a) over `axis` (None: all)."""
    e = _do("exp", _below(a, _over("softmax", "max", a, axis)))
    return e * (1.0 / _do("sum", e, axis))  # the sum is at least 1; one division a row, not one an element


def log_softmax(a: Any, axis: Any = None) -> Any:
    """The logarithm of softmax: a - max a - ln sum exp(a - max a)."""
    most = _over("log_softmax", "max", a, axis)
    away = _below(a, most)
    if most.shape == away.shape and dtypes.is_float(away.dtype):  # of one number each: 0, or NaN
        return away
    return away - _do("log", _do("sum", _do("exp", away), axis))


# Elementwise


def reciprocal(a: Any) -> Any:
    """1 / a."""
    return 1.0 / a


def clip(a: Any, a_min: Any, a_max: Any) -> Any:
    """min(max(a, a_min), a_max); NaN stays NaN."""
    return _do("minimum", _do("maximum", a, a_min), a_max)


def rsqrt(a: Any) -> Any:
    """1 / sqrt(a)."""
    return 1.0 / _do("sqrt", a)


def relu(a: Any) -> Any:
    """max(a, 0)."""
    return _do("maximum", a, 0)


def leaky_relu(a: Any, slope: float = 0.01) -> Any:
    """a where a > 0, else slope a."""
    ranges.check("leaky_relu", "a number", slope=slope)
    return _do("where", a > 0, a, a * slope)


def elu(a: Any, alpha: float = 1.0) -> Any:
    """a where a > 0, else alpha (exp(a) - 1) (Clevert et al. 2016)."""
    ranges.check("elu", "a number", alpha=alpha)
    return _do("where", a > 0, a, alpha * _do("expm1", _do("minimum", a, 0)))


def gelu(a: Any, approximate: bool = False) -> Any:
    """a times the normal distribution function at a (Hendrycks and Gimpel 2016); `approximate` by tanh."""
    if approximate:  # 1 + tanh x = 2 sig(2 x), which is exact where it vanishes
        return a * _do("sig", (a + 0.044715 * a * a * a) * math.sqrt(8.0 / math.pi))
    return 0.5 * a * (1.0 + _do("erf", a * math.sqrt(0.5)))


def softplus(a: Any) -> Any:
    """ln(1 + exp(a)), without overflow."""
    a = _real(a)
    most = 36.0  # from here on it is a, to float64's last digit
    return _do("where", a > most, a, _do("log1p", _do("exp", _do("minimum", a, most))))


def silu(a: Any) -> Any:
    """a / (1 + exp(-a)), also called swish."""
    return a * _do("sig", a)


def hard_sigmoid(a: Any) -> Any:
    """clip(0.2 a + 0.5, 0, 1)."""
    return clip(a * 0.2 + 0.5, 0.0, 1.0)


def isclose(a: Any, b: Any, rtol: float = 1e-5, atol: float = 1e-8) -> Any:
    """1 where |a - b| <= atol + rtol |b|; an infinity is close to itself alone."""
    ranges.check("isclose", "a number", rtol=rtol, atol=atol)
    away = _do("sub", a, b)
    if isinstance(away, Operators) and not dtypes.is_float(away.dtype):  # integers would wrap
        a, b = a * np.float64(1), b * np.float64(1)
    away = abs(a - b)
    return (away <= atol + rtol * builtins.abs(b)) & (away < math.inf) | (a == b)  # b may be a number


COMPOSITES = {
    f.__name__: f
    for f in (
        reciprocal,
        clip,
        rsqrt,
        relu,
        leaky_relu,
        elu,
        gelu,
        softplus,
        silu,
        hard_sigmoid,
        isclose,
        norm,
        logsumexp,
        softmax,
        log_softmax,
        broadcast_to,
    )  # fmt: skip
}
"""The composites that backends offer as methods under the same name and arguments, with `out=` beside."""

OF_OPERANDS = frozenset(("clip", "leaky_relu", "elu"))
"""The composites whose trees have all arguments as operands, numbers as they are, and whose forms no value decides."""
