# SPDX-License-Identifier: Apache-2.0
"""Losses: of classes and numbers, of pairs, of distributions and features, and by sampling."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tensorbackend import dtypes
from tensorbackend.errors import ShapeError, complain
from tensorbackend.function import arrays, type_check
from tensorbackend.function.config import lookup
from tensorbackend.function.trees import Rule, Traced
from tensorbackend.function.variable import Variable, as_variable
from tensorbackend.functions import picking
from tensorbackend.functions.arguments import Array
from tensorbackend.graph import composite as o
from tensorbackend.graph import ranges

__all__ = [
    "absolute_error", "bernoulli_nll", "contrastive", "cross_covariance", "cross_entropy", "decov",
    "gaussian_kl_divergence", "gaussian_nll", "hinge", "huber_loss", "mean_absolute_error", "mean_squared_error",
    "negative_sampling", "sigmoid_cross_entropy", "softmax_cross_entropy", "squared_error", "triplet",
]  # fmt: skip


def check_reduce(name: str, reduce: str, choices: tuple[str, ...] = ("mean", "sum", "no")) -> None:
    """Raise `ValueError` for a way of reducing that a loss does not have."""
    if reduce not in choices:
        raise ValueError(complain(f"{name}: reduce", repr(reduce), " or ".join(map(repr, choices))))


def reduced(loss: Any, reduce: str) -> Any:
    """The tree of a loss: its mean (of none 0), its sum, or as it is ('no')."""
    return loss if reduce == "no" else o.sum(loss, None, False) if reduce == "sum" else _mean(loss)


def _mean(loss: Any) -> Any:
    """The tree of a mean, which is 0 of no entries: a step without samples changes nothing."""
    return o.mean(loss, None, False) if loss.size else o.sum(loss, None, False)


def expect_labels(t: Any) -> None:
    """Raise `InvalidType` unless an input holds integers."""
    holds = dtypes.is_integer(t.dtype.value)
    type_check.expect(type_check.Claim(holds, f"{t.dtype.text} is an integer type", t.dtype.value.name))


def check_labels(label: str, name: str, t: Any) -> None:
    """Raise `InvalidType`, in the name of a function, unless an array holds integers."""
    if not dtypes.is_integer(t.dtype):
        type_check.checked(label, lambda types: expect_labels(types[0]), [(t.shape, t.dtype)], (name,))


def chosen(x: Any, t: Any) -> Any:
    """The tree (N, C, …) of where the labels t (N, …) choose of x (N, C, …)."""
    return _classes(x) == _beside(t)


def _classes(x: Any) -> Any:
    """The tree (1, C, …) of the classes of x (N, C, …)."""
    return o.positions(x.structure.table, 1, (1, x.shape[1], *(1,) * (len(x.shape) - 2)))


def _unknown(x: Any, t: Any) -> Any:
    """The tree of where a label is no class of x (N, C, …)."""
    return (t < 0) | (t >= x.shape[1])


def _mark(x: Any, unknown: Any) -> Any:
    """The tree of NaN where a label is unknown, else 1."""
    return o.where(unknown, x.dtype.type(np.nan), x.dtype.type(1))


def _beside(rows: Any) -> Any:
    """A tree (N, …) as (N, 1, …)."""
    return o.reshape(rows, (rows.shape[0], 1, *rows.shape[1:]))


def marked(x: Any, t: Any) -> Any:
    """The tree of x (N, C, …), with NaN beside labels that are no class, in its value and gradient."""
    return x * _mark(x, _unknown(x, _beside(t)))


def picked(x: Any, t: Any) -> Any:
    """The tree of x (N, C, …) where the labels choose, 0 elsewhere; as `marked` beside labels that are no class. Of
    integers, which have no NaN, these choose nothing."""
    if not dtypes.is_float(x.dtype):
        return o.where(chosen(x, t), x, 0)
    return o.where(chosen(x, t) | _unknown(x, _beside(t)), marked(x, t), 0)


def check_classes(name: str, x: Any, t: Any, ignored: int | None = None) -> None:
    """In debug mode, read labels and raise `IndexError` for one that is neither a class of x (N, C, …) nor ignored."""
    if len(x.shape) > 1:
        check_numbers(name, t, x.shape[1], ignored)


def check_numbers(name: str, t: Any, classes: int, ignored: int | None = None) -> None:
    """In debug mode, read labels and raise `IndexError` for one that is neither below `classes` nor ignored."""
    if lookup("debug") and not isinstance(t, Traced):
        refuse_labels(name, arrays.moved(arrays.plain(as_variable(t).array), None), classes, ignored)


def refuse_labels(name: str, labels: np.ndarray, classes: int, ignored: int | None = None) -> None:
    """Raise `IndexError` for a label that is neither a class nor the ignored one."""
    wrong = (labels < 0) | (labels >= classes)
    if ignored is not None:
        wrong &= labels != ignored
    if wrong.any():
        beside = "" if ignored is None else f", or {ignored} to ignore"
        given = f"{labels[wrong].flat[0]} for {classes} classes"
        raise IndexError(complain(f"{name}: a label that is no class", given, f"0 to {classes - 1}{beside}"))


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
    t = _beside(t)  # and not what is computed of it, which would be computed into memory, in an order of its own
    valid = t != ignore_label
    logarithms = o.log_softmax(o.where(valid, x, 0), 1)  # NaN of ignored rows gets to no gradient either
    if weight:
        logarithms = logarithms * o.reshape(weight[0], (1, x.shape[1], *(1,) * (len(x.shape) - 2)))
    unknown = _unknown(x, t) & valid
    label = o.where(unknown, 0, t)  # a class, so that NaN gets to the row's gradient
    each = -o.sum(o.where(_classes(x) == label, logarithms, 0), 1) * _mark(x, unknown)
    each = o.where(valid, each, 0)
    if reduce == "no":
        return o.drop_axes(each, 1)
    if reduce == "sum":
        return reduced(each, reduce)
    count = o.maximum(o.sum(valid, None, False), 1) if normalize else max(x.shape[0], 1)
    return o.sum(each, None, False) / count


def _check_sigmoid(in_types: Any, **params: Any) -> None:
    x, t = in_types
    type_check.expect_float(x)
    expect_labels(t)
    type_check.expect(x.shape == t.shape)


def _neither(t: Any) -> Any:
    """The tree of where a label is neither 0 nor 1."""
    return (t != 0) & (t != 1)


def _sigmoid(x: Any, t: Any, normalize: bool, reduce: str) -> Any:
    valid = t != -1
    away = o.where(t == 1, -x, x)  # not x * t, which is NaN of infinite x and 0
    each = o.where(valid, (o.maximum(away, 0) + o.log1p(o.exp(-abs(x)))) * _mark(x, valid & _neither(t)), 0)
    if reduce != "mean":
        return reduced(each, reduce)
    count = o.maximum(o.sum(valid, None, False), 1) if normalize else max(x.shape[0], 1)
    return o.sum(each, None, False) / count


def _sigmoid_gradient(g: Any, y: Any, x: Any, t: Any, normalize: bool, reduce: str) -> tuple:
    valid = t != -1
    slope = o.where(t == 1, -o.sig(-x), o.sig(x))  # not sig(x) - t, which is 0 long before the slope is
    each = o.where(valid, slope * _mark(x, valid & _neither(t)) * g, 0)
    if reduce != "mean":
        return each, None
    count = o.maximum(o.sum(valid, None, False), 1) if normalize else max(x.shape[0], 1)
    return each / count, None


def _check_pair(in_types: Any, **params: Any) -> None:
    first, *others = in_types  # a number in place of an array has no type
    type_check.expect_float(*in_types)
    for t in others:
        type_check.expect(first.dtype == t.dtype, first.shape == t.shape)


def _huber(x: Any, t: Any, delta: float, reduce: str) -> Any:
    away = abs(x - t)
    each = o.where(away <= delta, 0.5 * away * away, delta * (away - 0.5 * delta))
    return each if reduce == "no" else o.sum(each, tuple(range(1, len(each.shape))), False)


def _huber_gradient(g: Any, y: Any, x: Any, t: Any, delta: float, reduce: str) -> tuple:
    away = x - t
    g = g if reduce == "no" else o.reshape(g, (away.shape[0], *(1,) * (len(away.shape) - 1)))
    slope = g * o.clip(away, -delta, delta)
    return slope, -slope


def _cross(p: Any, y: Any, eps: float, reduce: str) -> Any:
    p = p + eps
    return reduced(-y * (float(np.log(p)) if isinstance(p, (int, float)) else o.log(p)), reduce)


_SOFTMAX = Rule("softmax_cross_entropy", _softmax, None, _check_softmax, ("x", "t", "class_weight"))
_SIGMOID = Rule("sigmoid_cross_entropy", _sigmoid, _sigmoid_gradient, _check_sigmoid, ("x", "t"))
_SQUARED = Rule("squared_error", lambda a, b: o.square(a - b), None, _check_pair, ("x0", "x1"))
_ABSOLUTE = Rule("absolute_error", lambda a, b: abs(a - b), None, _check_pair, ("x0", "x1"))
_MEAN_SQUARED = Rule("mean_squared_error", lambda a, b: _mean(o.square(a - b)), None, _check_pair)
_MEAN_ABSOLUTE = Rule("mean_absolute_error", lambda a, b: _mean(abs(a - b)), None, _check_pair)
_HUBER = Rule("huber_loss", _huber, _huber_gradient, _check_pair, ("x", "t"))
_CROSS = Rule("cross_entropy", _cross, None, _check_pair, ("yhat", "y"))


def softmax_cross_entropy(x: Array, t: Array, normalize: bool = True, class_weight: Array | None = None,
                          ignore_label: int = -1, reduce: str = "mean",
                          enable_double_backprop: bool = False) -> Variable:  # fmt: skip
    """-ln softmax(x) at the labels: x (N, C, d1, …) of numbers, t (N, d1, …) of integers.

    The mean is over entries whose label is not `ignore_label` (with `normalize` False: over N); of none it is 0.
    `class_weight` (C,) weighs classes; `reduce` is 'mean', 'sum' or 'no'. It can always be differentiated twice. Labels
    are not read on the host: one that is no class makes the loss and its row's gradient NaN, and raises `IndexError` in
    debug mode.
    """
    check_reduce("softmax_cross_entropy", reduce)
    ranges.check("softmax_cross_entropy", "an int", ignore_label=ignore_label)
    check_classes("softmax_cross_entropy", x, t, ignore_label)
    operands = (x, t) if class_weight is None else (x, t, class_weight)
    return _SOFTMAX(*operands, normalize=normalize, ignore_label=ignore_label, reduce=reduce)


def sigmoid_cross_entropy(x: Array, t: Array, normalize: bool = True, reduce: str = "mean") -> Variable:
    """-ln of the probability that sigmoid(x) gives t, of 0 and 1; -1 is ignored. Means as `softmax_cross_entropy`. Of
    another label loss and gradient are NaN, and debug mode raises `IndexError`."""
    check_reduce("sigmoid_cross_entropy", reduce)
    check_numbers("sigmoid_cross_entropy", t, 2, -1)
    return _SIGMOID(x, t, normalize=normalize, reduce=reduce)


def squared_error(x0: Array, x1: Array) -> Variable:
    """(x0 - x1) squared, of one shape; either may be a number."""
    return _SQUARED(x0, x1)


def absolute_error(x0: Array, x1: Array) -> Variable:
    """|x0 - x1|, of one shape; either may be a number."""
    return _ABSOLUTE(x0, x1)


def mean_squared_error(x0: Array, x1: Array) -> Variable:
    """The mean of (x0 - x1) squared; of no elements 0."""
    return _MEAN_SQUARED(x0, x1)


def mean_absolute_error(x0: Array, x1: Array) -> Variable:
    """The mean of |x0 - x1|; of no elements 0."""
    return _MEAN_ABSOLUTE(x0, x1)


def huber_loss(x: Array, t: Array, delta: float, reduce: str = "sum_along_second_axis") -> Variable:
    """d^2 / 2 where d = |x - t| <= delta, else delta (d - delta / 2); summed over all axes but the first. Raises
    `ValueError` for a delta that is not positive."""
    check_reduce("huber_loss", reduce, ("sum_along_second_axis", "no"))
    ranges.check("huber_loss", "above 0", delta=delta)
    return _HUBER(x, t, delta=delta, reduce=reduce)


def cross_entropy(yhat: Array, y: Array, eps: float = 1e-6, reduce: str = "sum") -> Variable:
    """-sum of y ln(yhat + eps), with probabilities `yhat` and weights `y` of one shape. Raises `ValueError` for an eps
    below 0."""
    check_reduce("cross_entropy", reduce)
    ranges.check("cross_entropy", "0 or more, and finite", eps=eps)
    return _CROSS(yhat, y, eps=eps, reduce=reduce)


# Of pairs, distributions and features


def _check_alike(in_types: Any, **params: Any) -> None:
    first, *others = in_types
    type_check.expect_float(*in_types)
    for t in others:
        type_check.expect(t.shape == first.shape, t.dtype == first.dtype)


# Margins


def _check_hinge(in_types: Any, **params: Any) -> None:
    x, t = in_types
    type_check.expect_float(x)
    expect_labels(t)
    type_check.expect(x.ndim == 2, t.ndim == 1, x.shape[0] == t.shape[0])


def _hinge(x: Any, t: Any, norm: str, reduce: str) -> Any:
    x = marked(x, t)
    margin = o.maximum(1 + o.where(chosen(x, t), -x, x), 0)
    each = margin if norm == "L1" else margin * margin
    return each if reduce == "no" else o.sum(each, None, False) / max(x.shape[0], 1)


def length(square: Any) -> Any:
    """The tree of square roots, whose gradient at 0 is 0."""
    return o.where(square == 0, 0, o.sqrt(o.where(square == 0, 1, square)))


def _check_contrastive(in_types: Any, **params: Any) -> None:
    x0, x1, y = in_types
    _check_alike([x0, x1])
    expect_labels(y)
    type_check.expect(x0.ndim == 2, y.ndim == 1, y.shape[0] == x0.shape[0])


def _contrastive(x0: Any, x1: Any, y: Any, margin: float, reduce: str) -> Any:
    square = o.sum((x0 - x1) ** 2, 1, False)
    away = o.maximum(margin - length(square), 0)
    return reduced(0.5 * o.where(y != 0, square, away * away) * _mark(x0, _neither(y)), reduce)


def _triplet(anchor: Any, positive: Any, negative: Any, margin: float, reduce: str) -> Any:
    near, far = (anchor - positive) ** 2, (anchor - negative) ** 2
    return reduced(o.maximum(o.sum(near - far, 1, False) + margin, 0), reduce)


def _check_triplet(in_types: Any, **params: Any) -> None:
    _check_alike(in_types)
    type_check.expect(in_types[0].ndim == 2)


_HINGE = Rule("hinge", _hinge, None, _check_hinge, ("x", "t"))
_CONTRASTIVE = Rule("contrastive", _contrastive, None, _check_contrastive, ("x0", "x1", "y"))
_TRIPLET = Rule("triplet", _triplet, None, _check_triplet, ("anchor", "positive", "negative"))


def hinge(x: Array, t: Array, norm: str = "L1", reduce: str = "mean") -> Variable:
    """max(0, 1 - x) of the right class and max(0, 1 + x) of the others, of scores x (N, K) and labels t (N,); squared
    for norm 'L2'. `reduce` is 'mean' over N, or 'no': (N, K). A label that is no class makes its row NaN, and raises
    `IndexError` in debug mode. Raises `ValueError` for another norm."""
    check_reduce("hinge", reduce, ("mean", "no"))
    if norm not in ("L1", "L2"):
        raise ValueError(complain("hinge: norm", repr(norm), "'L1' or 'L2'"))
    check_classes("hinge", x, t)
    return _HINGE(x, t, norm=norm, reduce=reduce)


def contrastive(x0: Array, x1: Array, y: Array, margin: float = 1.0, reduce: str = "mean") -> Variable:
    """Half of d² where y is 1, of max(margin - d, 0)² where it is 0, with d = |x0 - x1| of rows (N, D) (Hadsell et al.
    2006). `reduce` is 'mean' or 'no': (N,). Of another y loss and gradient are NaN, and debug mode raises `IndexError`.
    Raises `ValueError` for a margin that is not positive."""
    check_reduce("contrastive", reduce, ("mean", "no"))
    check_numbers("contrastive", y, 2)
    ranges.check("contrastive", "above 0, and finite", margin=margin)
    return _CONTRASTIVE(x0, x1, y, margin=margin, reduce=reduce)


def triplet(anchor: Array, positive: Array, negative: Array, margin: float = 0.2, reduce: str = "mean") -> Variable:
    """max(|anchor - positive|² - |anchor - negative|² + margin, 0) of rows (N, D) (Weinberger and Saul 2009).

    `reduce` is 'mean' or 'no': (N,). Raises `ValueError` for a margin that is not positive.
    """
    check_reduce("triplet", reduce, ("mean", "no"))
    ranges.check("triplet", "above 0, and finite", margin=margin)
    return _TRIPLET(anchor, positive, negative, margin=margin, reduce=reduce)


# Distributions

_KL = Rule(
    "gaussian_kl_divergence",
    lambda mean, ln_var, reduce: reduced(0.5 * (o.exp(ln_var) + mean * mean - 1 - ln_var), reduce),
    None,
    _check_alike,
    ("mean", "ln_var"),
)
_BERNOULLI = Rule(
    "bernoulli_nll", lambda x, y, reduce: reduced(o.softplus(y) - x * y, reduce), None, _check_alike, ("x", "y")
)
_GAUSSIAN = Rule(
    "gaussian_nll",
    lambda x, mean, ln_var, reduce: reduced(
        0.5 * (ln_var + (x - mean) ** 2 * o.exp(-ln_var) + math.log(2 * math.pi)), reduce
    ),
    None,
    _check_alike,
    ("x", "mean", "ln_var"),
)


def gaussian_kl_divergence(mean: Array, ln_var: Array, reduce: str = "sum") -> Variable:
    """The divergence of normal distributions from the standard one: (exp(ln_var) + mean² - 1 - ln_var) / 2."""
    check_reduce("gaussian_kl_divergence", reduce)
    return _KL(mean, ln_var, reduce=reduce)


def bernoulli_nll(x: Array, y: Array, reduce: str = "sum") -> Variable:
    """-ln of the probability of x in [0, 1] where that of 1 is sigmoid(y): softplus(y) - x y."""
    check_reduce("bernoulli_nll", reduce)
    return _BERNOULLI(x, y, reduce=reduce)


def gaussian_nll(x: Array, mean: Array, ln_var: Array, reduce: str = "sum") -> Variable:
    """-ln of normal densities at x: (ln_var + (x - mean)² exp(-ln_var) + ln 2 pi) / 2."""
    check_reduce("gaussian_nll", reduce)
    return _GAUSSIAN(x, mean, ln_var, reduce=reduce)


# Covariances of features


def _centred(x: Any) -> Any:
    return x - o.mean(x, 0, True)


def _cross_covariance(y: Any, z: Any, reduce: str) -> Any:
    covariance = o.dot(o.swap_last(_centred(y)), _centred(z)) / max(y.shape[0], 1)
    return covariance if reduce == "no" else 0.5 * o.sum(covariance * covariance, None, False)


def _decov(h: Any, reduce: str) -> Any:
    centred = _centred(h)
    covariance = o.dot(o.swap_last(centred), centred) / max(h.shape[0], 1)
    n, table = h.shape[1], h.structure.table
    off = o.where(o.positions(table, 0, (n, 1)) == o.positions(table, 1, (1, n)), 0, covariance)
    return off if reduce == "no" else 0.5 * o.sum(off * off, None, False)


def _check_features(in_types: Any, **params: Any) -> None:
    for t in in_types:
        type_check.expect_float(t)
        type_check.expect(t.ndim == 2, t.shape[0] == in_types[0].shape[0])


_CROSS_COVARIANCE = Rule("cross_covariance", _cross_covariance, None, _check_features, ("y", "z"))
_DECOV = Rule("decov", _decov, None, _check_features, ("h",))


def cross_covariance(y: Array, z: Array, reduce: str = "half_squared_sum") -> Variable:
    """Half the sum of squares of the covariances (Dy, Dz) of the features of y (N, Dy) and z (N, Dz), or they
    themselves ('no') (Cheung et al. 2015)."""
    check_reduce("cross_covariance", reduce, ("half_squared_sum", "no"))
    return _CROSS_COVARIANCE(y, z, reduce=reduce)


def decov(h: Array, reduce: str = "half_squared_sum") -> Variable:
    """Half the sum of squares of the covariances (D, D) of different features of h (N, D), or they themselves ('no'),
    with zeros for variances (Cogswell et al. 2016)."""
    check_reduce("decov", reduce, ("half_squared_sum", "no"))
    return _DECOV(h, reduce=reduce)


# By sampling


def _sampled(x: Any, w: Any, t: Any, reduce: str) -> Any:
    scores = o.sum(w * o.reshape(x, (x.shape[0], 1, x.shape[1])), 2, False)
    first = o.positions(x.structure.table, 1, (1, scores.shape[1])) == 0
    each = o.sum(o.softplus(o.where(first, -scores, scores)), 1, False)
    return reduced(o.where(t == -1, 0, each), reduce)


_SAMPLED = Rule("negative_sampling", _sampled, None, None, ("x", "W", "t"))


def negative_sampling(x: Array, t: Array, W: Array, sampler: Callable[[tuple[int, int]], Any], sample_size: int,
                      reduce: str = "sum") -> Variable:  # fmt: skip
    """The loss of telling the class t[i] from `sample_size` drawn ones (Mikolov et al. 2013): for row i of x (N, D)
    the sum over s of ln(1 + exp(-x_i W_t)) for its class and ln(1 + exp(x_i W_s)) for those of `sampler((N, S + 1))`.

    W is (classes, D). Rows with t = -1 give 0; another label that is no class raises `IndexError`, shapes that do not
    fit, of what the sampler gives too, `ShapeError`. `reduce` is 'sum' or
    'no': (N,).
    """
    check_reduce("negative_sampling", reduce, ("sum", "no"))
    ranges.check("negative_sampling", "an int of 0 or more", sample_size=sample_size)
    x, W, labels = as_variable(x), as_variable(W), as_variable(t).array
    check_labels("negative_sampling", "t", labels)
    if x.ndim != 2 or W.ndim != 2 or x.shape[1] != W.shape[1] or labels.shape != x.shape[:1]:
        given = f"x {x.shape}, t {labels.shape}, W {W.shape}"
        raise ShapeError(complain("negative_sampling: shapes", given, "x (N, D), t (N,), W (classes, D)"))
    drawn = sampler((x.shape[0], sample_size + 1))
    drawn = np.array(drawn.get() if hasattr(drawn, "structure") else drawn)
    if drawn.shape != (x.shape[0], sample_size + 1) or not np.array_equal(drawn, np.trunc(drawn)):
        given = f"{drawn.dtype} of shape {drawn.shape}"
        wanted = f"integers of shape {(x.shape[0], sample_size + 1)}"
        raise ShapeError(complain("negative_sampling: what sampler gave", given, wanted))
    host = labels.get() if hasattr(labels, "structure") else labels
    refuse_labels("negative_sampling", host, W.shape[0], -1)
    drawn[:, 0] = np.where(host == -1, 0, host)
    rows = picking.get_item(W, arrays.moved(drawn.astype(np.int64), arrays.backend_of(arrays.plain(labels))))
    return _SAMPLED(x, rows, labels, reduce=reduce)
