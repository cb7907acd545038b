# SPDX-License-Identifier: Apache-2.0
"""Local response normalisation across maps: the layer, the plain NumPy meaning of both passes, the contract's methods.

denom = 1 + ascale / J times the sum of the squares of the J maps around; the divisor is J at the edges too.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tensorbackend import numerics, ops
from tensorbackend.errors import ShapeError, complain
from tensorbackend.primitives import operands
from tensorbackend.primitives.geometry import PoolGeometry, positive
from tensorbackend.primitives.pool import PoolLayer, pool_geometry

__all__ = ["BPROP", "FPROP", "ResponseNorm", "bprop_reference", "fprop_reference"]


# Meaning


def _around(x: np.ndarray, J: int) -> np.ndarray:
    """The sums over the J maps around each; beyond the edges there is nothing."""
    maps, half = x.shape[0], J // 2
    total = np.zeros_like(x)
    for shift in range(-min(half, maps - 1), min(half, maps - 1) + 1):
        low, high = max(0, -shift), min(maps, maps - shift)
        total[low:high] += x[low + shift : high + shift]
    return total


def _added(value: np.ndarray, alpha: float, beta: float, old: list) -> np.ndarray:
    value = value * value.dtype.type(alpha)
    return value + value.dtype.type(beta) * old[0] if old else value


def fprop_reference(I: np.ndarray, *rest: Any, dtype: Any = None) -> tuple[np.ndarray, np.ndarray]:
    """The normalised I and denom: operands I and, where beta is not 0, the old output; then geometry, alpha, beta,
    ascale, bpower. Sums are of `dtype` (None: that of I)."""
    *old, g, alpha, beta, ascale, bpower = rest
    I = I.astype(dtype or I.dtype, copy=False)
    denom = 1 + I.dtype.type(ascale / g.J) * _around(I * I, g.J)
    return _added(I * numerics.power(denom, I.dtype.type(-bpower)), alpha, beta, old), denom


def bprop_reference(I: np.ndarray, O: np.ndarray, E: np.ndarray, denom: np.ndarray, *rest: Any,
                    dtype: Any = None) -> np.ndarray:  # fmt: skip
    """The gradient by I: operands I, O, E, denom and, where beta is not 0, the old gradient; then as for the other."""
    *old, g, alpha, beta, ascale, bpower = rest
    I, O, E, denom = (x.astype(dtype or I.dtype, copy=False) for x in (I, O, E, denom))
    sums = I * _around(O * E / denom, g.J)
    value = E * numerics.power(denom, I.dtype.type(-bpower)) - I.dtype.type(2 * bpower * (ascale / g.J)) * sums
    return _added(value, alpha, beta, old)


def _operations(g: PoolGeometry, *numbers: float) -> int:
    return math.prod(g.dimI) * (2 * g.J + 30)


FPROP = ops.call("lrn_fprop", 1, fprop_reference, "Maps divided by a power of the squares around them.", _operations)
BPROP = ops.call("lrn_bprop", 4, bprop_reference, "The gradient of that by its images.", _operations)


# Methods of the contract


class ResponseNorm:
    """Local response normalisation of the contract; `Backend` inherits it."""

    def lrn_layer(self, dtype: Any, N: int, C: int, D: int = 1, H: int = 1, W: int = 1, J: int = 1) -> PoolLayer:
        """The parameters of a normalisation of N images (C, D, H, W) over J maps: a pool layer of kind 'lrn'.

        Raises `ShapeError` when J is even or a size below 1.
        """
        (window,) = positive("lrn_layer", J=J)
        if window % 2 == 0:
            raise ShapeError(complain("lrn_layer: J", str(window), "an odd number of maps"))
        sizes = positive("lrn_layer", N=N, C=C, D=D, H=H, W=W)
        pads, strides = [window // 2, 0, 0, 0], [1, 1, 1, 1]
        return PoolLayer(dtype, "lrn", pool_geometry("lrn_layer", "lrn", sizes, [window, 1, 1, 1], pads, strides))

    def fprop_lrn(self, layer: PoolLayer, I: Any, O: Any, denom: Any, alpha: float = 1.0, beta: float = 0.0,
                  ascale: float = 1.0, bpower: float = 1.0, repeat: int = 1) -> None:  # fmt: skip
        """denom = 1 + (ascale / J) times the sum of I I over J maps around; O = alpha I denom^-bpower + beta O.

        All of the layer's size and type, any shape; `denom` is for `bprop_lrn`. `repeat` runs it as often, for timing.
        Raises `ShapeError`, `DTypeError`, `TypeError` for another layer or a factor that is no number, and `ValueError`
        when outputs overlap I or each other.
        """
        operands.check_layer("fprop_lrn", layer, PoolLayer, "lrn_layer", ("lrn",))
        dim = layer.dimI
        operands.check("fprop_lrn", layer.dtype, I=(I, dim), O=(O, dim), denom=(denom, dim))
        operands.check_output("fprop_lrn", O, I)
        operands.check_output("fprop_lrn", denom, I, O)
        given = operands.numbers("fprop_lrn", alpha=alpha, beta=beta, ascale=ascale, bpower=bpower)
        params = (layer.geometry, *given)
        operands.call(self, FPROP, params, [(O, dim), (denom, dim)], [(I, dim)], repeat, whole=True)

    def bprop_lrn(self, layer: PoolLayer, I: Any, O: Any, E: Any, delta: Any, denom: Any, alpha: float = 1.0,
                  beta: float = 0.0, ascale: float = 1.0, bpower: float = 1.0,
                  repeat: int = 1) -> None:  # fmt: skip
        """delta = alpha (E denom^-bpower - 2 bpower (ascale / J) I S) + beta delta, S the sum of O E / denom around.

        I, O and denom are those of `fprop_lrn` with alpha 1 and beta 0, E is the error. Errors as `fprop_lrn`.
        """
        operands.check_layer("bprop_lrn", layer, PoolLayer, "lrn_layer", ("lrn",))
        dim = layer.dimI
        named = {"I": I, "O": O, "E": E, "delta": delta, "denom": denom}
        operands.check("bprop_lrn", layer.dtype, **{letter: (x, dim) for letter, x in named.items()})
        operands.check_output("bprop_lrn", delta, I, O, E, denom)
        given = operands.numbers("bprop_lrn", alpha=alpha, beta=beta, ascale=ascale, bpower=bpower)
        params = (layer.geometry, *given)
        inputs = [(x, dim) for x in (I, O, E, denom)]
        operands.call(self, BPROP, params, [(delta, dim)], inputs, repeat, whole=True)
