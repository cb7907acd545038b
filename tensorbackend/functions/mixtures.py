# SPDX-License-Identifier: Apache-2.0
"""Layers that combine two inputs: bilinear forms, row operations, PReLU, Gaussian mixtures."""

from __future__ import annotations

import math
from typing import Any

from tensorbackend.errors import complain
from tensorbackend.function import type_check
from tensorbackend.function.trees import Rule
from tensorbackend.function.variable import Variable
from tensorbackend.functions.arguments import Array
from tensorbackend.functions.losses import check_reduce, reduced
from tensorbackend.functions.products import product
from tensorbackend.graph import composite as o

__all__ = [
    "bilinear", "broadcast_sub", "dense", "gaussian_mixture_2d", "gaussian_mixture_2d_nll", "prelu", "row_sum",
]  # fmt: skip

LEAST_Q = 1e-6
"""The least of 1 - c², c a correlation: nearer to ±1 float32 has no digits left."""


def as_matrix(x: Any) -> Any:
    """A tree with the first axis kept and the others seen as one."""
    return x if len(x.shape) == 2 else o.reshape(x, (x.shape[0], math.prod(x.shape[1:])))


def _expect_width(x: Any, width: Any, name: str) -> None:
    """That x, seen as a matrix, has so many columns."""
    columns = type_check.make_variable(math.prod(x.shape.value[1:]), f"size of {name}.shape[1:]")
    type_check.expect(columns == width)


# Bilinear forms


def _check_bilinear(in_types: Any) -> None:
    e1, e2, w, *linear = in_types
    type_check.expect_float(*in_types)
    type_check.expect(e1.ndim >= 2, e2.ndim >= 2, e1.shape[0] == e2.shape[0], w.ndim == 3)
    type_check.expect(e1.dtype == w.dtype, e2.dtype == w.dtype)
    _expect_width(e1, w.shape[0], "e1")
    _expect_width(e2, w.shape[1], "e2")
    if linear:
        v1, v2, b = linear
        type_check.expect(v1.ndim == 2, v2.ndim == 2, b.ndim == 1)
        type_check.expect(v1.shape[0] == w.shape[0], v2.shape[0] == w.shape[1], b.shape[0] == w.shape[2])
        type_check.expect(v1.shape[1] == w.shape[2], v2.shape[1] == w.shape[2])


def _bilinear(e1: Any, e2: Any, w: Any, *linear: Any) -> Any:
    a, b = as_matrix(e1), as_matrix(e2)
    (rows, j), k = a.shape, b.shape[1]
    outer = o.reshape(o.reshape(a, (rows, j, 1)) * o.reshape(b, (rows, 1, k)), (rows, j * k))
    y = o.dot(outer, o.reshape(w, (j * k, w.shape[2])))
    if linear:
        v1, v2, bias = linear
        y = y + o.dot(a, v1) + o.dot(b, v2) + bias
    return y


_BILINEAR = Rule("bilinear", _bilinear, None, _check_bilinear, ("e1", "e2", "W", "V1", "V2", "b"))


def bilinear(e1: Array, e2: Array, W: Array, V1: Array | None = None, V2: Array | None = None,
             b: Array | None = None) -> Variable:  # fmt: skip
    """y_il = sum over j, k of e1_ij e2_ik W_jkl [+ e1 V1 + e2 V2 + b]: e1 (I, J), e2 (I, K), W (J, K, L) give (I, L).

    e1 and e2 may have more axes, seen as one. Raises `ValueError` where only some of V1, V2 and b are given.
    """
    linear = [x for x in (V1, V2, b) if x is not None]
    if len(linear) not in (0, 3):
        raise ValueError(complain("bilinear", f"{len(linear)} of V1, V2 and b", "all of them, or none"))
    return _BILINEAR(e1, e2, W, *linear)


# Rows


def _check_rows(in_types: Any, **params: Any) -> None:
    lhs, rhs = in_types
    type_check.expect(lhs.ndim == 2, rhs.ndim == 2, lhs.shape[0] == rhs.shape[0], lhs.dtype == rhs.dtype)
    if lhs.shape.value[1] != 1:
        type_check.expect(lhs.shape[1] == rhs.shape[1])


_BROADCAST_SUB = Rule("broadcast_sub", lambda a, b: a - b, None, _check_rows, ("lhs", "rhs"))
_BROADCAST_SUB_RIGHT = Rule(
    "broadcast_sub", lambda a, b: a - b, lambda g, y, a, b: (None, -g), _check_rows, ("lhs", "rhs")
)


def broadcast_sub(lhs: Array, rhs: Array, lhs_bwd: bool = True) -> Variable:
    """lhs - rhs, of (n, 1) or (n, m) and (n, m). With `lhs_bwd` False lhs gets no gradient."""
    return (_BROADCAST_SUB if lhs_bwd else _BROADCAST_SUB_RIGHT)(lhs, rhs)


_ROW_SUM = Rule("row_sum", lambda x: o.sum(x, 1, True), None, lambda t: type_check.expect(t[0].ndim == 2), ("x",))


def row_sum(x: Array) -> Variable:
    """The sums of the rows of (n, m) as a column (n, 1)."""
    return _ROW_SUM(x)


def _check_dense(in_types: Any) -> None:
    x, w, b = in_types
    type_check.expect(x.ndim >= 2, w.ndim == 2, b.ndim == 1, b.shape[0] == w.shape[1])
    _expect_width(x, w.shape[0], "x")


_DENSE = Rule("dense", lambda x, w, b: product(as_matrix(x), w) + b, None, _check_dense, ("x", "W", "b"))


def dense(x: Array, W: Array, b: Array) -> Variable:
    """x W + b: x (N, …) seen as (N, D), W (D, M), b (M,) give (N, M). `linear` has its weights the other way."""
    return _DENSE(x, W, b)


# PReLU


def _check_prelu(in_types: Any) -> None:
    x, w = in_types
    type_check.expect_float(x, w)
    type_check.expect(x.dtype == w.dtype, x.ndim >= w.ndim + 1)
    for a in range(w.ndim.value):
        type_check.expect(x.shape[a + 1] == w.shape[a])


def _prelu(x: Any, w: Any) -> Any:
    behind = len(x.shape) - 1 - len(w.shape)
    slopes = o.reshape(w, (1, *w.shape, *(1,) * behind))
    return o.where(x >= 0, x, o.minimum(x, 0) * slopes)  # beside x there, the gradient 0 of an infinity would be NaN


_PRELU = Rule("prelu", _prelu, None, _check_prelu, ("x", "W"))


def prelu(x: Array, W: Array) -> Variable:
    """x where x >= 0, else W x, with slopes W of the shape of the axes behind the first, or of the first of them
    (He et al. 2015)."""
    return _PRELU(x, W)


# Gaussian mixtures in the plane


def _check_mixture(in_types: Any, **params: Any) -> None:
    first, *others, x1, x2 = in_types
    type_check.expect_float(*in_types)
    type_check.expect(first.ndim == 2)
    for t in others:
        type_check.expect(t.shape == first.shape)
    for t in (x1, x2):
        type_check.expect(t.ndim == 2, t.shape[0] == first.shape[0], t.shape[1] == 1)


def _exponent(m1: Any, m2: Any, s1: Any, s2: Any, c: Any, x1: Any, x2: Any) -> tuple[Any, Any]:
    """The exponent of a normal density in the plane, and q = 1 - c²."""
    z1, z2 = (x1 - m1) / s1, (x2 - m2) / s2
    q = o.maximum(1 - c * c, LEAST_Q)
    return -(z1 * z1 + z2 * z2 - 2 * c * z1 * z2) / (2 * q), q


def _mixture(w: Any, m1: Any, m2: Any, s1: Any, s2: Any, c: Any, x1: Any, x2: Any) -> Any:
    exponent, q = _exponent(m1, m2, s1, s2, c, x1, x2)
    return w * (o.exp(exponent) / (2 * math.pi * s1 * s2 * o.sqrt(q)))


class _Hats:
    """What the densities of a mixture with parameters as a network gives them are made of, as trees.

    With t = exp(-2 |c_hat|), 1 - |c| is 2 t / (1 + t) and q = 1 - c² = 1 / cosh² c_hat is 4 t / (1 + t)²: differences
    of c near ±1, of which few digits would be left, are not formed.
    """

    def __init__(self, w: Any, m1: Any, m2: Any, s1: Any, s2: Any, c_hat: Any, x1: Any, x2: Any) -> None:
        self.w, self.s1, self.s2 = w, o.exp(s1), o.exp(s2)
        self.z1, self.z2 = (x1 - m1) / self.s1, (x2 - m2) / self.s2
        number = c_hat.dtype.type
        sign = o.where(c_hat < 0, number(-1), number(1))
        size = sign * c_hat
        t = o.exp(-2 * size)
        least = o.exp(-2 * o.minimum(size, math.acosh(LEAST_Q**-0.5)))
        self.c = -sign * o.expm1(-2 * size) / (1 + t)
        self.q = 4 * least / ((1 + least) * (1 + least))
        self.near = sign * (2 * t / (1 + t))  # sign - c
        self.apart = self.z1 - sign * self.z2
        self.product = self.z1 * self.z2
        self.form = (self.apart * self.apart + 2 * self.near * self.product) / self.q  # Z / q
        self.logarithms = o.log_softmax(w, 1) - 0.5 * (self.form + o.log(self.q)) - math.log(2 * math.pi) - s1 - s2
        self.slope1 = (self.apart + self.near * self.z2) / self.q  # (z1 - c z2) / q
        self.slope2 = (self.near * self.z1 - sign * self.apart) / self.q  # (z2 - c z1) / q


def _mixture_nll(*operands: Any, reduce: str) -> Any:
    return reduced(-o.logsumexp(_Hats(*operands).logarithms, 1, False), reduce)


def _mixture_nll_gradient(g: Any, y: Any, *operands: Any, reduce: str) -> tuple[Any, ...]:
    hats, n = _Hats(*operands), operands[0].shape[0]
    g = o.reshape(g, (n, 1)) if reduce == "no" else g / max(n, 1) if reduce == "mean" else g
    share = o.softmax(hats.logarithms, 1)
    r = g * share
    gm1, gm2 = -r * hats.slope1 / hats.s1, -r * hats.slope2 / hats.s2
    gs1, gs2 = r * (1 - hats.z1 * hats.slope1), r * (1 - hats.z2 * hats.slope2)
    gc = -r * (hats.product + hats.c * (1 - hats.form))
    gx1, gx2 = o.sum(-gm1, 1, True), o.sum(-gm2, 1, True)
    return g * (o.softmax(hats.w, 1) - share), gm1, gm2, gs1, gs2, gc, gx1, gx2


_NAMES = ("w", "m1", "m2", "s1", "s2", "c", "x1", "x2")
_MIXTURE = Rule("gaussian_mixture_2d", _mixture, None, _check_mixture, _NAMES)
_MIXTURE_NLL = Rule("gaussian_mixture_2d_nll", _mixture_nll, _mixture_nll_gradient, _check_mixture, _NAMES)


def gaussian_mixture_2d(w: Array, m1: Array, m2: Array, s1: Array, s2: Array, c: Array, x1: Array,
                        x2: Array) -> Variable:  # fmt: skip
    """The terms (n, K) of a mixture of normal densities in the plane, at x1, x2 (n, 1): weights `w`, means, standard
    deviations `s1`, `s2` > 0 and correlations |c| < 1, all (n, K)."""
    return _MIXTURE(w, m1, m2, s1, s2, c, x1, x2)


def gaussian_mixture_2d_nll(w_hat: Array, m1: Array, m2: Array, s1_hat: Array, s2_hat: Array, c_hat: Array, x1: Array,
                            x2: Array, reduce: str = "sum") -> Variable:  # fmt: skip
    """-ln of a mixture's density at x1, x2 (n, 1), of parameters as a network gives them, all (n, K): w = softmax of
    `w_hat`, s = exp(s_hat), c = tanh(c_hat) (Graves 2013). Finite however far the targets lie; 1 - c² counts as
    1e-6 where it is less, in the gradient too. `reduce` is 'sum', 'mean' or 'no': (n,)."""
    check_reduce("gaussian_mixture_2d_nll", reduce)
    return _MIXTURE_NLL(w_hat, m1, m2, s1_hat, s2_hat, c_hat, x1, x2, reduce=reduce)
