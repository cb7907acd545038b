# SPDX-License-Identifier: Apache-2.0
"""Functions that draw random numbers."""

from __future__ import annotations

import math
from typing import Any

from tensorbackend import dtypes
from tensorbackend.function import type_check
from tensorbackend.function.config import lookup
from tensorbackend.function.trees import Rule, Traced, normal, uniform
from tensorbackend.function.variable import Variable, as_variable
from tensorbackend.functions.arguments import Array
from tensorbackend.functions.products import check_linear, linear
from tensorbackend.functions.shapes import broadcast, cast
from tensorbackend.graph import composite as o
from tensorbackend.graph import ranges

__all__ = ["dropout", "gaussian", "gumbel_softmax", "rrelu", "simplified_dropconnect", "zoneout"]


def _check(in_types: Any, **params: Any) -> None:
    type_check.expect_float(in_types[0])


def _check_broadcast(in_types: Any, **params: Any) -> None:
    _check(in_types)
    type_check.expect_broadcast_shapes(*(t.shape for t in in_types))


def _typed(mask: Variable, x: Any) -> Variable:
    """A mask, which is float32, in the type of the halves that it is for; a tree stays one."""
    return mask if isinstance(mask, Traced) else cast(mask, dtypes.promote([x.dtype], [], dtypes.FLOAT32))


def _dropped(x: Any, ratio: float) -> Any:
    return x * (uniform(x) >= ratio) * (1.0 / (1.0 - ratio))  # a mask of truth values leaves halves what they are


_DROPOUT = Rule("dropout", _dropped, None, _check, ("x",))
_MASK = Rule(
    "dropout",
    lambda x, ratio: o.where(uniform(x) >= ratio, 1.0 / (1.0 - ratio), 0.0),
    lambda g, y, x, ratio: (None,),
    _check,
)
_MASKED = Rule("dropout", lambda x, mask: x * mask, None, _check_broadcast, ("x", "mask"))


def dropout(x: Array, ratio: float = 0.5, *, mask: Array | None = None, return_mask: bool = False) -> Any:
    """Elements dropped at probability `ratio`, the others times 1 / (1 - ratio); x as it is when not training.

    `mask` is used as it is if given; with `return_mask` the result is (variable, mask's array). Raises `ValueError` for
    a ratio outside [0, 1).
    """
    ranges.check("dropout", "0 or more, and below 1", ratio=ratio)
    if not lookup("train") or (ratio == 0.0 and mask is None):
        return (as_variable(x), None) if return_mask else as_variable(x)
    if mask is None and not return_mask:
        return _DROPOUT(x, ratio=ratio)
    mask = _typed(_MASK(x, ratio=ratio), x).array if mask is None else mask
    y: Variable = _MASKED(x, mask)
    return (y, mask) if return_mask else y


_GAUSSIAN = Rule(
    "gaussian",
    lambda mean, ln_var: mean + o.exp(0.5 * ln_var) * normal(mean, (mean + ln_var).shape),
    None,
    _check_broadcast,
    ("mean", "ln_var"),
)
_RRELU = Rule(
    "rrelu",
    lambda x, low, high: o.where(x >= 0, x, x * (low + (high - low) * uniform(x, halves=True))),
    None,
    _check,
)
_RRELU_MEAN = Rule("rrelu", lambda x, slope: o.where(x >= 0, x, x * slope), None, _check)
_ZONEOUT = Rule(
    "zoneout",
    lambda h, x, ratio: o.where(uniform(h, (h + x).shape) < ratio, h, x),
    None,
    _check_broadcast,
    ("h", "x"),
)
_ZONEOUT_MEAN = Rule("zoneout", lambda h, x, ratio: h * ratio + x * (1 - ratio), None, _check_broadcast, ("h", "x"))


def _gumbel_softmax(log_pi: Any, tau: float, axis: int) -> Any:
    least = 2.0**-24  # of halves, numbers next to 1 are 1
    noise = -o.log(o.maximum(-o.log(o.maximum(uniform(log_pi, halves=True), least)), least))
    return o.softmax((log_pi + noise) / tau, axis)


_GUMBEL = Rule("gumbel_softmax", _gumbel_softmax, None, _check, ("log_pi",))


def gaussian(mean: Array, ln_var: Array) -> Variable:
    """Normal random numbers of the means and of the variances exp(ln_var), differentiable in both (Kingma and Welling
    2014); the means when not training, in the same shape."""
    if lookup("train"):
        return _GAUSSIAN(mean, ln_var)
    mean, ln_var = as_variable(mean), as_variable(ln_var)
    return mean if mean.shape == ln_var.shape else broadcast(mean, ln_var)[0]


def gumbel_softmax(log_pi: Array, tau: float = 0.1, axis: int = 1) -> Variable:
    """Nearly one-hot draws of the classes of log-probabilities (Jang et al. 2017); the sharper, the smaller `tau`.
    Raises `ValueError` unless that is above 0."""
    ranges.check("gumbel_softmax", "above 0, and finite", tau=tau)
    ranges.check("gumbel_softmax", "an int", axis=axis)
    return _GUMBEL(log_pi, tau=float(tau), axis=axis)


def rrelu(x: Array, l: float = 1.0 / 8, u: float = 1.0 / 3) -> Variable:  # noqa: E741  its name in the contract
    """x where x >= 0, else x times a slope drawn from [l, u) for each element (Xu et al. 2015); their mean when not
    training. Raises `ValueError` unless l <= u."""
    ranges.check("rrelu", "a finite number", l=l, u=u)
    ranges.check_bounds("rrelu", l, u)
    return _RRELU(x, low=l, high=u) if lookup("train") else _RRELU_MEAN(x, slope=(l + u) / 2)


def zoneout(h: Array, x: Array, ratio: float = 0.5) -> Variable:
    """Elements of the state h kept at probability `ratio`, the others those of x (Krueger et al. 2017); the expectation
    when not training. Raises `ValueError` for a ratio outside [0, 1]."""
    ranges.check("zoneout", "0 to 1", ratio=ratio)
    return (_ZONEOUT if lookup("train") else _ZONEOUT_MEAN)(h, x, ratio=ratio)


def _drop_connect(x: Any, w: Any, mask: Any, *bias: Any, keep: float) -> Any:
    kept = w * mask / keep
    x = o.reshape(x, (x.shape[0], math.prod(x.shape[1:])))
    if len(mask.shape) == 2:
        y = o.dot(x, o.swap_last(kept))
    else:
        y = o.sum(o.reshape(x, (x.shape[0], 1, x.shape[1])) * kept, 2, False)
    return y + bias[0] if bias else y


def _check_connect(in_types: Any, **params: Any) -> None:
    x, weight, mask, *bias = in_types
    check_linear((x, weight, *bias), axes=1)
    each = type_check.make_variable((x.shape.value[0], *weight.shape.value), "(N, *W.shape)")
    type_check.expect(mask.shape == (weight.shape if mask.ndim.value == 2 else each))


_CONNECT = Rule("simplified_dropconnect", _drop_connect, None, _check_connect, ("x", "W", "mask", "b"))
_WEIGHT_MASK = Rule(
    "simplified_dropconnect",
    lambda x, w, ratio, batchwise: o.where(
        uniform(w, (x.shape[0], *w.shape) if batchwise else w.shape) >= ratio, 1.0, 0.0
    ),
    lambda g, y, x, w, ratio, batchwise: (None, None),
    lambda in_types, **params: check_linear(in_types, axes=1),
    ("x", "W"),
)


def simplified_dropconnect(x: Array, W: Array, b: Array | None = None, ratio: float = 0.5, train: bool = True,
                           mask: Array | None = None, use_batchwise_mask: bool = True) -> Variable:  # fmt: skip
    """`linear` of x (N, …) with weights (M, D) of which each is dropped at probability `ratio`, anew for each sample
    (or once), the others divided by 1 - ratio (Wan et al. 2013). `mask`, (N, M, D) or (M, D), is used if given.

    Raises `ValueError` for a ratio outside [0, 1), `InvalidType` as `linear` and for masks of other shapes.
    """
    ranges.check("simplified_dropconnect", "0 or more, and below 1", ratio=ratio)
    bias = () if b is None else (b,)
    if not train or not lookup("train"):
        return linear(x, W, *bias)
    if mask is None:
        mask = _typed(_WEIGHT_MASK(x, W, ratio=ratio, batchwise=use_batchwise_mask), W).array
    return _CONNECT(x, W, mask, *bias, keep=1.0 - ratio)
