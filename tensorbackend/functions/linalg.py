# SPDX-License-Identifier: Apache-2.0
"""Inverses and determinants, through NumPy's LAPACK.

The gradient of a determinant are the cofactors, which singular matrices have as well: they and their own gradient come
from x = U diag(s) Vᵀ, by products of all s but one or two.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tensorbackend.errors import complain
from tensorbackend.function import arrays, type_check
from tensorbackend.function.node import FunctionNode
from tensorbackend.function.variable import Variable
from tensorbackend.functions import shapes
from tensorbackend.functions.arguments import Array
from tensorbackend.functions.reductions import sum as summed

__all__ = ["batch_det", "batch_inv", "det", "inv"]


class _OfMatrices(FunctionNode):
    """A function of square matrices, computed on the host in float64 for halves."""

    def __init__(self, name: str, compute: Callable[..., np.ndarray], rank: int) -> None:
        self._name = name
        self._compute = compute
        self._rank = rank

    @property
    def label(self) -> str:
        """The function's name."""
        return self._name

    def check_type_forward(self, in_types: Any) -> None:
        """Square matrices of floats."""
        type_check.expect_float(*in_types)
        for x in in_types:
            type_check.expect(x.ndim == self._rank, x.shape[self._rank - 1] == x.shape[self._rank - 2])

    def _run_forward(self, data: tuple[Any, ...]) -> tuple[Any, ...]:
        self.retain_inputs(range(len(data)))
        self.retain_outputs((0,))
        backend, kind = arrays.backend_of(data[0]), data[0].dtype
        values = [x if backend is None else x.get() for x in data]
        wide = values if kind.itemsize >= 4 else [x.astype(np.float64) for x in values]
        with np.errstate(over="ignore"):
            made = np.asarray(self._run(*wide)).astype(kind)
        return (arrays.moved(made, backend),)

    def _run(self, *matrices: np.ndarray) -> np.ndarray:
        return self._compute(*matrices)


class _Inverse(_OfMatrices):
    def _run(self, *matrices: np.ndarray) -> np.ndarray:
        (x,) = matrices
        try:
            return self._compute(x)
        except np.linalg.LinAlgError as error:
            raise np.linalg.LinAlgError(self._refusal(x)) from error

    def _refusal(self, x: np.ndarray) -> str:
        """What is wrong with matrices of which one has no inverse."""
        given = f"shape {x.shape}"
        for i, matrix in enumerate(x if self._rank == 3 else ()):
            try:
                np.linalg.inv(matrix)
            except np.linalg.LinAlgError:
                given = f"number {i} of shape {x.shape}"
                break
        return complain(f"{self._name}: a singular matrix", given, "matrices that have an inverse")

    def backward(self, target_input_indexes: tuple[int, ...], grad_outputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """-yᵀ g yᵀ."""
        (y,) = self.get_retained_outputs()
        turned = shapes.swapaxes(y, -1, -2)
        return (-(turned @ grad_outputs[0] @ turned),)


class _Determinant(_OfMatrices):
    def backward(self, target_input_indexes: tuple[int, ...], grad_outputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """g times the cofactors."""
        (x,), (g,) = self.get_retained_inputs(), grad_outputs
        factor = shapes.broadcast_to(shapes.reshape(g, (*g.shape, 1, 1)), x.shape)
        return (factor * _Cofactors(f"gradient of {self._name}", _cofactors, self._rank).apply((x,))[0],)


class _Cofactors(_OfMatrices):
    def backward(self, target_input_indexes: tuple[int, ...], grad_outputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """The second derivative of the determinant, in the direction of g."""
        (x,), (g,) = self.get_retained_inputs(), grad_outputs
        return _CofactorsGradient(f"gradient of {self._name}", _cofactors_gradient, self._rank).apply((x, g))


class _CofactorsGradient(_OfMatrices):
    def backward(self, target_input_indexes: tuple[int, ...], grad_outputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Linear in g, and symmetric: another of its kind. At x by the inverse, which singular matrices do not have."""
        (x, g), (h,) = self.get_retained_inputs(), grad_outputs
        found = {}
        if 1 in target_input_indexes:
            (found[1],) = _CofactorsGradient(self._name, self._compute, self._rank).apply((x, h))
        if 0 in target_input_indexes:
            found[0] = self._third(x, g, h)
        return tuple(found[i] for i in target_input_indexes)

    def _third(self, x: Variable, g: Variable, h: Variable) -> Variable:
        """The third derivative of the determinant, in the directions of g and h."""

        def dot(a: Variable, b: Variable) -> Variable:
            return shapes.broadcast_to(summed(a * b, axis=(-2, -1), keepdims=True), x.shape)

        (y,) = _Inverse(f"gradient of {self._name}", np.linalg.inv, self._rank).apply((x,))
        (d,) = _Determinant(self._name, np.linalg.det, self._rank).apply((x,))
        w = shapes.swapaxes(y, -1, -2)
        of_g, of_h = (w @ shapes.swapaxes(v, -1, -2) @ w for v in (g, h))
        both = of_g @ shapes.swapaxes(h, -1, -2) @ w + of_h @ shapes.swapaxes(g, -1, -2) @ w
        along_g, along_h = dot(g, w), dot(h, w)
        inner = (along_g * along_h - dot(h, of_g)) * w - along_h * of_g - along_g * of_h + both
        return shapes.broadcast_to(shapes.reshape(d, (*d.shape, 1, 1)), x.shape) * inner


def _turned(x: np.ndarray) -> np.ndarray:
    return np.swapaxes(x, -1, -2)


def _decomposed(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """U, s and Vᵀ of matrices, and det(U) det(V) (…, 1, 1). Where numbers are not finite, s is NaN."""
    known = np.isfinite(x).all((-1, -2))[..., None]
    u, s, v = np.linalg.svd(np.where(known[..., None], x, 0))
    sign = np.rint(np.linalg.det(u) * np.linalg.det(v))
    return u, np.where(known, s, np.nan), v, sign[..., None, None]


def _products(s: np.ndarray, without: int) -> np.ndarray:
    """The product of all s (…, N) but one (…, N), or but two (…, N, N), by logarithms, as `det` has it."""
    zero = s == 0
    logs = np.log(np.where(zero, 1, s), dtype=np.float64)
    total, zeros = logs.sum(-1)[..., None] - logs, zero.sum(-1)[..., None] - zero
    if without == 2:
        total, zeros = total[..., None] - logs[..., None, :], zeros[..., None] - zero[..., None, :]
    return np.where(zeros > 0, 0, np.exp(total)).astype(s.dtype)


def _cofactors(x: np.ndarray) -> np.ndarray:
    """det(x) times the transposed inverse; of a singular matrix by its decomposition."""
    y = np.linalg.det(x)
    singular = y == 0
    found = np.linalg.inv(np.where(singular[..., None, None], np.eye(x.shape[-1], dtype=x.dtype), x))
    found = y[..., None, None] * np.swapaxes(found, -1, -2)
    if singular.any():
        u, s, v, sign = _decomposed(x[singular])
        found[singular] = sign * (u * _products(s, 1)[..., None, :]) @ v
    return found


def _cofactors_gradient(x: np.ndarray, g: np.ndarray) -> np.ndarray:
    """The gradient at x of the sum of g times the cofactors: found where x is diag(s), and turned back."""
    u, s, v, sign = _decomposed(x)
    turned = np.swapaxes(u, -1, -2) @ g @ np.swapaxes(v, -1, -2)
    same = np.eye(x.shape[-1], dtype=bool)
    others = np.where(same, 0, _products(s, 2))
    diagonal = others @ np.diagonal(turned, axis1=-2, axis2=-1)[..., None]
    return sign * (u @ (np.where(same, diagonal, 0) - np.swapaxes(others * turned, -1, -2)) @ v)


def inv(x: Array) -> Variable:
    """The inverse of a matrix (N, N). Raises `numpy.linalg.LinAlgError` for a singular one."""
    return _Inverse("inv", np.linalg.inv, 2).apply((x,))[0]


def batch_inv(x: Array) -> Variable:
    """The inverses of matrices (B, N, N). Raises `numpy.linalg.LinAlgError` for a singular one."""
    return _Inverse("batch_inv", np.linalg.inv, 3).apply((x,))[0]


def det(x: Array) -> Variable:
    """The determinant of a matrix (N, N). Singular ones have two derivatives; a third needs the inverse."""
    return _Determinant("det", np.linalg.det, 2).apply((x,))[0]


def batch_det(x: Array) -> Variable:
    """The determinants (B,) of matrices (B, N, N). Singular ones have two derivatives; a third needs the inverses."""
    return _Determinant("batch_det", np.linalg.det, 3).apply((x,))[0]
