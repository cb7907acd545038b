# SPDX-License-Identifier: Apache-2.0
"""Links of images."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorbackend import functions as F
from tensorbackend import initializers
from tensorbackend.errors import ShapeError, complain
from tensorbackend.function.variable import Variable
from tensorbackend.functions.arguments import Array
from tensorbackend.functions.images import each, expect_images
from tensorbackend.graph import ranges
from tensorbackend.links.link import Link
from tensorbackend.links.parameter import Parameter

__all__ = ["Convolution2D", "Deconvolution2D"]


class _Filters(Link):
    """Filters and a bias, whose number of input channels may be taken from the first input."""

    transposed = False

    def __init__(self, in_channels: int | None, out_channels: int, ksize: Any, stride: Any, pad: Any, nobias: bool,
                 initialW: Any, initial_bias: Any, dilate: Any, groups: int) -> None:  # fmt: skip
        super().__init__()
        name = type(self).__name__
        ranges.check(name, "an int of 1 or more", groups=groups)
        self.out_channels, self.groups = out_channels, groups
        self._check_groups(in_channels)
        self.ksize, self.stride = each(f"{name}: ksize", ksize, 2), each(f"{name}: stride", stride, 2)
        self.pad, self.dilate = each(f"{name}: pad", pad, 2, 0), each(f"{name}: dilate", dilate, 2)
        with self.init_scope():
            self.W = Parameter(initializers.as_initializer(initialW))
            self.b = None if nobias else Parameter(0 if initial_bias is None else initial_bias, out_channels)
        if in_channels is not None:
            self.W.initialize(self._shape(in_channels))

    def _check_groups(self, in_channels: int | None) -> None:
        """Raise `ShapeError` for numbers of channels that do not divide; lengths that are none fail as such."""
        channels = in_channels, self.out_channels
        if any(isinstance(n, (int, np.integer)) and n % self.groups for n in channels):
            given = f"{self.groups} groups of {channels[0]} and {channels[1]} channels"
            raise ShapeError(complain(f"{type(self).__name__}: groups", given, "a divisor of both"))

    def _shape(self, in_channels: int) -> tuple[int, ...]:
        first, second = (in_channels, self.out_channels) if self.transposed else (self.out_channels, in_channels)
        return (first, second // self.groups, *self.ksize)

    def _prepare(self, x: Any) -> None:
        if not self.W.is_initialized:
            expect_images(type(self).__name__, x)
            self._check_groups(x.shape[1])
            self.W.initialize(self._shape(x.shape[1]))


class Convolution2D(_Filters):
    """`F.convolution_2d` with W (out_channels, in_channels / groups, kH, kW) and b (out_channels,).

    An `in_channels` of None is taken from the first input; `initialW` None is LeCunNormal.
    """

    def __init__(self, in_channels: int | None, out_channels: int, ksize: Any, stride: Any = 1, pad: Any = 0,
                 nobias: bool = False, initialW: Any = None, initial_bias: Any = None, *, dilate: Any = 1,
                 groups: int = 1) -> None:  # fmt: skip
        super().__init__(in_channels, out_channels, ksize, stride, pad, nobias, initialW, initial_bias, dilate, groups)

    def forward(self, x: Array) -> Variable:
        """The convolution of x (N, C, H, W)."""
        self._prepare(x)
        return F.convolution_2d(x, self.W, self.b, self.stride, self.pad, dilate=self.dilate, groups=self.groups)


class Deconvolution2D(_Filters):
    """`F.deconvolution_2d` with W (in_channels, out_channels / groups, kH, kW) and b (out_channels,)."""

    transposed = True

    def __init__(self, in_channels: int | None, out_channels: int, ksize: Any, stride: Any = 1, pad: Any = 0,
                 nobias: bool = False, outsize: Any = None, initialW: Any = None, initial_bias: Any = None, *,
                 dilate: Any = 1, groups: int = 1) -> None:  # fmt: skip
        self.outsize = outsize
        super().__init__(in_channels, out_channels, ksize, stride, pad, nobias, initialW, initial_bias, dilate, groups)

    def forward(self, x: Array) -> Variable:
        """The deconvolution of x (N, C, H, W)."""
        self._prepare(x)
        return F.deconvolution_2d(x, self.W, self.b, self.stride, self.pad, self.outsize, dilate=self.dilate,
                                  groups=self.groups)  # fmt: skip
