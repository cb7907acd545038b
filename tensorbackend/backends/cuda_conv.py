# SPDX-License-Identifier: Apache-2.0
"""Convolutions as products of matrices by cuBLAS: images become columns (`kernels/cuda/columns.cu`), part by part.

With images (C, D H W N) as a matrix of (C T R S) rows and (M P Q N) columns, filters (C T R S, K) and errors
(K, M P Q N) are matrices as they lie:

  fprop    O  = F^T columns        bprop    columns = F E, then back to images        update   dF = columns E^T

What is chosen follows from shapes alone. Sums go up in cuBLAS's order, those of update in parts after each other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tensorbackend.backends.cublas import COMPUTE, KEEP, TURN, TYPES, Matrix, Product
from tensorbackend.graph.indexing import contiguous_strides
from tensorbackend.graph.plan import Primitive, Ref
from tensorbackend.primitives.geometry import ConvGeometry

if TYPE_CHECKING:
    from tensorbackend.backends.gpu import GpuBackend

__all__ = ["PRODUCTS_FROM", "Columns", "columns_of", "whole"]

PRODUCTS_FROM = 1 << 25
"""Operations of a pass from which on it goes by products: below, its launches take longer."""
MOST_BYTES = 128 << 20
"""Bytes of columns that are made at a time, unless one line takes more."""
LONGEST = 2**31 - 1 - (1 << 24)
"""Columns of a part and their rows, numbers of an image's map, and places along an axis, are counted in 32 bits."""


@dataclass(frozen=True)
class Columns:
    """How a pass goes: its geometry, the type of what is multiplied, that of sums, and how many lines a part has."""

    g: ConvGeometry
    given: np.dtype
    sums: np.dtype
    lines: int

    @property
    def rows(self) -> int:
        """Rows of the columns' matrix."""
        return math.prod(self.g.dimF[:-1])

    @property
    def line(self) -> int:
        """Columns of a line."""
        return self.g.Q * self.g.N

    @property
    def width(self) -> int:
        """Columns in all."""
        return self.g.M * self.g.P * self.line

    def parts(self) -> Iterator[tuple[int, int]]:
        """The first line and the lines of each part."""
        whole = self.g.M * self.g.P
        return ((first, min(self.lines, whole - first)) for first in range(0, whole, self.lines))

    def fprop(self, lines: int) -> Product:
        """The product of a part: filters turned, columns, to a part of each row of the output."""
        n = lines * self.line
        left, right = Matrix(TURN, self.g.K, 0), Matrix(KEEP, n, 0)
        return Product(self.g.K, n, self.rows, 1, left, right, self.given.name, self.sums.name, self.width)

    def bprop(self, lines: int) -> Product:
        """Filters times a part of each row of the errors, to columns."""
        left, right = Matrix(KEEP, self.g.K, 0), Matrix(KEEP, self.width, 0)
        return Product(self.rows, lines * self.line, self.g.K, 1, left, right, self.given.name, self.sums.name)

    def update(self, lines: int, more: bool) -> Product:
        """Columns times errors turned, to the filters' gradient; from the second part on, `more`."""
        n = lines * self.line
        left, right = Matrix(KEEP, n, 0), Matrix(TURN, self.width, 0)
        return Product(self.rows, self.g.K, n, 1, left, right, self.given.name, self.sums.name, 0, more)


def columns_of(backend: GpuBackend, step: Primitive) -> Columns | None:
    """How a pass goes by products; None where it goes by the tiled kernel: without cuBLAS, of groups, of few
    operations, of other types, where filters or errors have gaps."""
    (x, y), (g,), out = step.inputs, step.params, step.output
    dense = all(map(_is_dense, (x, y, out) if step.op.name == "conv_bprop" else (y, out)))
    known = x.dtype == y.dtype and x.dtype.name in TYPES and out.dtype.name in COMPUTE
    if backend.driver.blas is None or g.groups != 1 or g.flops < PRODUCTS_FROM or not dense or not known:
        return None
    if (x.dtype == np.float64) != (out.dtype == np.float64):
        return None
    item = out.dtype.itemsize if step.op.name == "conv_bprop" else x.dtype.itemsize
    rows, line = math.prod(g.dimF[:-1]), g.Q * g.N
    lines = max(1, min(g.M * g.P, MOST_BYTES // (rows * line * item)))
    reach = (*g.strides, *g.dilations, *(n + sum(pad) for n, pad in zip(g.image, g.pads)))
    if max(rows, g.K, lines * line, g.M * g.P * line, math.prod(g.image) * g.N, *reach) > LONGEST:
        return None
    return Columns(g, x.dtype, out.dtype, lines)


def _is_dense(ref: Ref) -> bool:
    wanted = contiguous_strides(ref.shape)
    return all(n == 1 or s == w for n, s, w in zip(ref.shape, ref.strides, wanted))


def whole(n: int, strides: Sequence[int] = (1,)) -> bool:
    """Whether four neighbours are always of one pixel, and as aligned as the first."""
    inner, *others = reversed(strides)
    return n % 4 == 0 and inner == 1 and not any(s % 4 for s in others)
