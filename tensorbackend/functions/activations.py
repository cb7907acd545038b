# SPDX-License-Identifier: Apache-2.0
"""Activations."""

from __future__ import annotations

from typing import Any

from tensorbackend.errors import complain
from tensorbackend.function import type_check
from tensorbackend.function.trees import Rule
from tensorbackend.function.variable import Variable
from tensorbackend.functions import reductions, shapes
from tensorbackend.functions.arguments import Array
from tensorbackend.graph import composite as o
from tensorbackend.graph import ranges
from tensorbackend.graph.structure import one_axis

__all__ = [
    "clipped_relu", "crelu", "elu", "gelu", "hard_sigmoid", "leaky_relu", "log_softmax", "maxout", "relu", "relu6",
    "selu", "sigmoid", "softmax", "softplus", "swish",
]  # fmt: skip


def _check(in_types: Any, **params: Any) -> None:
    type_check.expect_float(*in_types)


def _check_axis(in_types: Any, axis: int) -> None:
    (x,) = in_types
    type_check.expect_float(x)
    place = type_check.make_variable(axis, "axis")
    type_check.expect(place < x.ndim, place >= -x.ndim.value)


def _softplus(x: Any, beta: float) -> Any:
    scaled = x * beta
    return o.softplus(scaled) * (1.0 / beta)


def _check_swish(in_types: Any) -> None:
    x, *given = in_types  # a number has no type
    type_check.expect_float(*in_types)
    for beta in given:
        for a in range(beta.ndim.value if beta.ndim.value < x.ndim.value else 0):
            if beta.shape[a].value != 1:
                type_check.expect(x.shape[a + 1] == beta.shape[a])


def _behind_first(beta: Any, x: Any) -> Any:
    """A number or tree; one of fewer axes than x has, along the axes of x behind the first."""
    shape = getattr(beta, "shape", ())
    behind = len(x.shape) - 1 - len(shape)
    return o.reshape(beta, (1, *shape, *(1,) * behind)) if shape and behind >= 0 else beta


_RELU = Rule("relu", o.relu, lambda g, y, x: (o.where(y > 0, g, 0),), _check, ("x",))
_CLIPPED = Rule(
    "clipped_relu",
    lambda x, z: o.clip(x, 0, z),
    lambda g, y, x, z: (o.where((x > 0) * (x < z), g, 0),),  # y is z rounded, which may be less
    _check,
    ("x",),
)
_LEAKY = Rule("leaky_relu", lambda x, slope: o.where(x >= 0, x, x * slope), None, _check, ("x",))
_ELU = Rule("elu", lambda x, alpha: o.elu(x, alpha), None, _check, ("x",))
_SELU = Rule("selu", lambda x, alpha, scale: scale * o.elu(x, alpha), None, _check, ("x",))
_GELU = Rule("gelu", lambda x, approximate: o.gelu(x, approximate), None, _check, ("x",))
_SIGMOID = Rule("sigmoid", o.sig, None, _check, ("x",))
_HARD_SIGMOID = Rule("hard_sigmoid", o.hard_sigmoid, None, _check, ("x",))
_SOFTPLUS = Rule("softplus", _softplus, lambda g, y, x, beta: (g * o.sig(x * beta),), _check, ("x",))
_SWISH = Rule("swish", lambda x, beta: x * o.sig(x * _behind_first(beta, x)), None, _check_swish, ("x", "beta"))
_SOFTMAX = Rule(
    "softmax",
    lambda x, axis: o.softmax(x, axis),
    lambda g, y, x, axis: (y * (g - o.sum(g * y, axis)),),
    _check_axis,
    ("x",),
)
_LOG_SOFTMAX = Rule(
    "log_softmax",
    lambda x, axis: o.log_softmax(x, axis),
    lambda g, y, x, axis: (g - o.exp(y) * o.sum(g, axis),),
    _check_axis,
    ("x",),
)


def relu(x: Array) -> Variable:
    """max(x, 0); its gradient at 0 is 0."""
    return _RELU(x)


def clipped_relu(x: Array, z: float = 20.0) -> Variable:
    """x between 0 and z; the gradient passes strictly inside. Raises `ValueError` for a z below 0."""
    ranges.check("clipped_relu", "0 or more", z=z)
    return _CLIPPED(x, z=z)


def relu6(x: Array) -> Variable:
    """x between 0 and 6."""
    return clipped_relu(x, 6.0)


def leaky_relu(x: Array, slope: float = 0.2) -> Variable:
    """x where x >= 0, else slope x."""
    ranges.check("leaky_relu", "a finite number", slope=slope)
    return _LEAKY(x, slope=slope)


def elu(x: Array, alpha: float = 1.0) -> Variable:
    """x where x > 0, else alpha (exp(x) - 1) (Clevert et al. 2016)."""
    ranges.check("elu", "a finite number", alpha=alpha)
    return _ELU(x, alpha=alpha)


def selu(x: Array, alpha: float = 1.6732632423543772, scale: float = 1.0507009873554805) -> Variable:
    """scale elu(x, alpha) (Klambauer et al. 2017)."""
    ranges.check("selu", "a finite number", alpha=alpha, scale=scale)
    return _SELU(x, alpha=alpha, scale=scale)


def gelu(x: Array, approximate: bool = False) -> Variable:
    """x times the normal distribution function at x (Hendrycks and Gimpel 2016); `approximate` by a tanh."""
    return _GELU(x, approximate=bool(approximate))


def sigmoid(x: Array) -> Variable:
    """1 / (1 + exp(-x)), without overflow."""
    return _SIGMOID(x)


def hard_sigmoid(x: Array) -> Variable:
    """clip(0.2 x + 0.5, 0, 1)."""
    return _HARD_SIGMOID(x)


def softplus(x: Array, beta: float = 1.0) -> Variable:
    """ln(1 + exp(beta x)) / beta, without overflow."""
    ranges.check("softplus", "a finite number, not 0", beta=beta)
    return _SOFTPLUS(x, beta=beta)


def swish(x: Array, beta: Array = 1.0) -> Variable:
    """x sigmoid(beta x); beta may be a variable. Axes of one of fewer axes than x are those of x behind the first, as
    of `prelu`'s slopes, or have length 1. Raises `InvalidType` for others."""
    return _SWISH(x, beta)


def softmax(x: Array, axis: int = 1) -> Variable:
    """exp(x - max x) / sum exp(x - max x) along an axis."""
    ranges.check("softmax", "an int", axis=axis)
    return _SOFTMAX(x, axis=axis)


def log_softmax(x: Array, axis: int = 1) -> Variable:
    """The logarithm of softmax along an axis."""
    ranges.check("log_softmax", "an int", axis=axis)
    return _LOG_SOFTMAX(x, axis=axis)


def crelu(x: Array, axis: int = 1) -> Variable:
    """relu(x) and relu(-x) one after the other along an axis (Shang et al. 2016)."""
    return shapes.joined("crelu", [relu(x), relu(-x)], axis)


def maxout(x: Array, pool_size: int, axis: int = 1) -> Variable:
    """The largest of each `pool_size` neighbours along an axis (Goodfellow et al. 2013). Raises `ValueError` where the
    axis does not divide into them."""
    axis = one_axis("maxout", axis, len(x.shape))
    n = x.shape[axis]
    ranges.check("maxout", "an int", pool_size=pool_size)
    if pool_size < 1 or n % pool_size:
        raise ValueError(complain("maxout", f"pool_size {pool_size}, axis of length {n}", "a divisor of the length"))
    apart = shapes.reshape(x, (*x.shape[:axis], n // pool_size, pool_size, *x.shape[axis + 1 :]))
    return reductions.max(apart, axis + 1)
