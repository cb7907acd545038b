# SPDX-License-Identifier: Apache-2.0
"""Links of pairs of inputs, and of inputs and targets."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorbackend import functions as F
from tensorbackend import initializers
from tensorbackend.errors import complain
from tensorbackend.function import arrays
from tensorbackend.function.variable import Variable
from tensorbackend.functions.arguments import Array
from tensorbackend.graph import ranges
from tensorbackend.links.basic import Linear
from tensorbackend.links.link import Chain, Link
from tensorbackend.links.parameter import Parameter

__all__ = ["Bilinear", "GaussianMixture2D", "NegativeSampling"]


class Bilinear(Link):
    """`F.bilinear` of vectors of `left` and `right` elements, to `out`: W (left, right, out), V1, V2 and b."""

    def __init__(self, left_size: int, right_size: int, out_size: int, nobias: bool = False, initialW: Any = None,
                 initial_bias: Any = None) -> None:  # fmt: skip
        super().__init__()
        sizes = {"left_size": left_size, "right_size": right_size, "out_size": out_size}
        ranges.check("Bilinear", "an int of 1 or more", **sizes)
        self.nobias = nobias
        default = initializers.Normal(np.sqrt(1.0 / (left_size * right_size * out_size)))
        with self.init_scope():
            self.W = Parameter(initializers.as_initializer(initialW, default), (left_size, right_size, out_size))
            if not nobias:
                self.V1 = Parameter(None, (left_size, out_size))
                self.V2 = Parameter(None, (right_size, out_size))
                self.b = Parameter(0 if initial_bias is None else initial_bias, out_size)

    def forward(self, e1: Array, e2: Array) -> Variable:
        """The form of e1 (N, …) and e2 (N, …)."""
        return F.bilinear(e1, e2, self.W) if self.nobias else F.bilinear(e1, e2, self.W, self.V1, self.V2, self.b)


class NegativeSampling(Link):
    """`F.negative_sampling` with W (classes, in_size); negatives are drawn in proportion to counts to the `power`."""

    def __init__(self, in_size: int, counts: Any, sample_size: int, power: float = 0.75) -> None:
        super().__init__()
        ranges.check("NegativeSampling", "a finite number", power=power)
        ranges.check("NegativeSampling", "an int of 0 or more", sample_size=sample_size)
        counts = np.asarray(counts, np.float64)
        with np.errstate(all="ignore"):
            shares = counts**power
        if counts.ndim != 1 or counts.min(initial=0) < 0 or not (np.isfinite(shares).all() and shares.any()):
            expected = "numbers of 0 or more with finite powers, not all of them 0"
            raise ValueError(complain("NegativeSampling: counts", f"{counts} to the {power}", expected))
        self._bounds = np.cumsum(shares / shares.sum())
        self.sample_size = sample_size
        with self.init_scope():
            self.W = Parameter(0, (len(shares), in_size))

    def sampler(self, shape: tuple[int, ...]) -> np.ndarray:
        """Classes drawn at random."""
        random = (self.device or arrays.host_backend()).rng.random_sample(shape)
        drawn = np.searchsorted(self._bounds, random, side="right")
        return np.minimum(drawn, len(self._bounds) - 1).astype(np.int32)

    def forward(self, x: Array, t: Array, reduce: str = "sum") -> Variable:
        """The loss of x (N, in_size) and classes t (N,)."""
        return F.negative_sampling(x, t, self.W, self.sampler, self.sample_size, reduce=reduce)


class GaussianMixture2D(Chain):
    """A linear map to the parameters of a mixture of `n_mixtures` Gaussians of two dimensions; its loss at targets."""

    def __init__(self, in_size: int | None, n_mixtures: int) -> None:
        super().__init__()
        ranges.check("GaussianMixture2D", "an int of 1 or more", n_mixtures=n_mixtures)
        with self.init_scope():
            self.heads = Linear(in_size, 6 * n_mixtures)

    def forward(self, x: Array, x1: Array, x2: Array, reduce: str = "sum") -> Variable:
        """-ln of the density at (x1, x2), each (N, 1)."""
        return F.gaussian_mixture_2d_nll(*F.split_axis(self.heads(x), 6, 1), x1, x2, reduce=reduce)
