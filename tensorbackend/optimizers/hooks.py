# SPDX-License-Identifier: Apache-2.0
"""Hooks of optimizers: what is done to gradients before parameters change."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np

from tensorbackend import dtypes
from tensorbackend.function import arrays
from tensorbackend.graph import composite as o
from tensorbackend.graph.ranges import Ranged, check, check_bounds
from tensorbackend.optimizers.optimizer import scale_gradient, set_gradient

__all__ = ["GradientClipping", "GradientHardClipping", "GradientLARS", "GradientNoise", "Lasso", "WeightDecay"]


def _with_gradients(optimizer: Any) -> list[Any]:
    return [p for p in optimizer.target.params() if p._grad is not None and p._data is not None]


def _tensors(p: Any) -> tuple[Any, Any]:
    return arrays.tensor_of(p._data), arrays.tensor_of(p.grad_var._data)


def _square(x: Any, keepdims: bool) -> Any:
    """The squared length of a tensor, in float64: float32 ends at the square of 1.8e19."""
    return o.sum(o.square(x * np.float64(1)), None, keepdims)


class WeightDecay(Ranged):
    """g += rate p."""

    name, timing = "WeightDecay", "pre"
    ranges: ClassVar[dict[str, str]] = {"rate": "0 or more, and finite"}

    def __init__(self, rate: float) -> None:
        self.rate = rate

    def __call__(self, optimizer: Any) -> None:
        for p in _with_gradients(optimizer):
            data, g = _tensors(p)
            set_gradient(p, g + self.rate * data)


class Lasso(Ranged):
    """g += rate sign(p)."""

    name, timing = "Lasso", "pre"
    ranges: ClassVar[dict[str, str]] = {"rate": "0 or more, and finite"}

    def __init__(self, rate: float) -> None:
        self.rate = rate

    def __call__(self, optimizer: Any) -> None:
        for p in _with_gradients(optimizer):
            data, g = _tensors(p)
            set_gradient(p, g + self.rate * o.sgn(data))


class GradientClipping(Ranged):
    """All gradients times threshold / norm, where their common L2 norm is above the threshold. Raises `ValueError` for
    a threshold below 0."""

    name, timing = "GradientClipping", "pre"
    ranges: ClassVar[dict[str, str]] = {"threshold": "0 or more"}

    def __init__(self, threshold: float) -> None:
        self.threshold = threshold

    def __call__(self, optimizer: Any) -> None:
        params = _with_gradients(optimizer)
        if not params:
            return
        total: Any = 0.0
        for p in params:
            _, g = _tensors(p)
            total = total + arrays.evaluated(_square(g, False))
        factor = arrays.evaluated(o.minimum(self.threshold / o.maximum(o.sqrt(total), 1e-30), 1.0))
        for p in params:
            scale_gradient(p, factor)


class GradientHardClipping:
    """Each element of a gradient between two bounds. Raises `ValueError` for bounds in the wrong order, `TypeError` for
    what are no numbers."""

    name, timing = "GradientHardClipping", "pre"

    def __init__(self, lower_bound: float, upper_bound: float) -> None:
        check("GradientHardClipping", "a number, not NaN", lower_bound=lower_bound, upper_bound=upper_bound)
        self.lower_bound, self.upper_bound = lower_bound, upper_bound
        check_bounds("GradientHardClipping", lower_bound, upper_bound)

    def __call__(self, optimizer: Any) -> None:
        check_bounds("GradientHardClipping", self.lower_bound, self.upper_bound)  # they may have been set since
        for p in _with_gradients(optimizer):
            set_gradient(p, o.clip(_tensors(p)[1], self.lower_bound, self.upper_bound))


class GradientNoise(Ranged):
    """Normal noise of variance eta / (1 + t)^0.55 added to gradients (Neelakantan et al. 2015); in several processes
    that of process 0. Raises `ValueError` for an eta below 0."""

    name, timing = "GradientNoise", "pre"
    ranges: ClassVar[dict[str, str]] = {"eta": "0 or more, and finite"}

    def __init__(self, eta: float) -> None:
        self.eta = eta

    def __call__(self, optimizer: Any) -> None:
        deviation = math.sqrt(self.eta / (1 + optimizer.t) ** 0.55)
        for p in _with_gradients(optimizer):
            _, g = _tensors(p)
            noise = deviation * g.backend.randn(shape=g.shape)
            if optimizer.comm is not None:  # processes may draw other numbers
                noise = arrays.evaluated(noise, dtypes.compute(g.dtype))
                optimizer.comm.broadcast(noise)
            set_gradient(p, g + noise)


class GradientLARS(Ranged):
    """Layer-wise rates (You et al. 2017): g = (g + weight_decay p) threshold ‖p‖ / (eps + ‖g‖ + weight_decay ‖p‖)."""

    name, timing = "GradientLARS", "pre"
    ranges: ClassVar[dict[str, str]] = dict.fromkeys(("threshold", "weight_decay", "eps"), "0 or more, and finite")

    def __init__(self, threshold: float = 1e-2, weight_decay: float = 0.0, eps: float = 1e-9) -> None:
        self.threshold, self.weight_decay, self.eps = threshold, weight_decay, eps

    def __call__(self, optimizer: Any) -> None:
        for p in _with_gradients(optimizer):
            data, g = _tensors(p)
            size, slope = (o.sqrt(_square(x, True)) for x in (data, g))
            local = self.threshold * size / (self.eps + slope + self.weight_decay * size)
            rate = arrays.evaluated(o.where(local > self.eps, local, 1.0))
            set_gradient(p, (g + self.weight_decay * data) * rate)
