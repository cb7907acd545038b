# SPDX-License-Identifier: Apache-2.0
"""Inverses and determinants, through NumPy's LAPACK."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tensorbackend.function import arrays, type_check
from tensorbackend.function.node import FunctionNode
from tensorbackend.function.variable import Variable
from tensorbackend.functions import shapes
from tensorbackend.functions.arguments import Array

__all__ = ["batch_det", "batch_inv", "det", "inv"]


class _OfMatrices(FunctionNode):
    """A function of square matrices, computed on the host in float64 for halves."""

    def __init__(self, name: str, compute: Callable[[np.ndarray], np.ndarray], rank: int) -> None:
        self._name = name
        self._compute = compute
        self._rank = rank

    @property
    def label(self) -> str:
        """The function's name."""
        return self._name

    def check_type_forward(self, in_types: Any) -> None:
        """Square matrices of floats."""
        (x,) = in_types
        type_check.expect_float(x)
        type_check.expect(x.ndim == self._rank, x.shape[self._rank - 1] == x.shape[self._rank - 2])

    def _run_forward(self, data: tuple[Any, ...]) -> tuple[Any, ...]:
        (x,) = data
        self.retain_inputs((0,))
        self.retain_outputs((0,))
        backend = arrays.backend_of(x)
        values = x if backend is None else x.get()
        wide = values if values.dtype.itemsize >= 4 else values.astype(np.float64)
        return (arrays.moved(np.asarray(self._compute(wide)).astype(values.dtype), backend),)


class _Inverse(_OfMatrices):
    def backward(self, target_input_indexes: tuple[int, ...], grad_outputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """-yᵀ g yᵀ."""
        (y,) = self.get_retained_outputs()
        turned = shapes.swapaxes(y, -1, -2)
        return (-(turned @ grad_outputs[0] @ turned),)


class _Determinant(_OfMatrices):
    def backward(self, target_input_indexes: tuple[int, ...], grad_outputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """g det(x) times the transposed inverse."""
        (x,), (y,) = self.get_retained_inputs(), self.get_retained_outputs()
        factor = shapes.reshape(grad_outputs[0] * y, (*y.shape, 1, 1))
        turned = shapes.swapaxes(_Inverse("inv", np.linalg.inv, self._rank).apply((x,))[0], -1, -2)
        return (shapes.broadcast_to(factor, x.shape) * turned,)


def inv(x: Array) -> Variable:
    """The inverse of a matrix (N, N). Raises `numpy.linalg.LinAlgError` for a singular one."""
    return _Inverse("inv", np.linalg.inv, 2).apply((x,))[0]


def batch_inv(x: Array) -> Variable:
    """The inverses of matrices (B, N, N). Raises `numpy.linalg.LinAlgError` for a singular one."""
    return _Inverse("batch_inv", np.linalg.inv, 3).apply((x,))[0]


def det(x: Array) -> Variable:
    """The determinant of a matrix (N, N); its gradient needs the inverse."""
    return _Determinant("det", np.linalg.det, 2).apply((x,))[0]


def batch_det(x: Array) -> Variable:
    """The determinants (B,) of matrices (B, N, N); their gradient needs the inverses."""
    return _Determinant("batch_det", np.linalg.det, 3).apply((x,))[0]
