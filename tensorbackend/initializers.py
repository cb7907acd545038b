# SPDX-License-Identifier: Apache-2.0
"""Initializers: callables that fill an array in place, with the random numbers of its backend.

Of a shape, fan_in is shape[1] times the lengths behind it, and fan_out shape[0] times these.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np

from tensorbackend.errors import ShapeError, complain
from tensorbackend.function import arrays
from tensorbackend.graph.ranges import Ranged

__all__ = [
    "Constant", "GlorotNormal", "GlorotUniform", "HeNormal", "HeUniform", "Identity", "Initializer", "LeCunNormal",
    "LeCunUniform", "NaN", "Normal", "One", "Orthogonal", "Uniform", "Zero", "as_initializer", "fans",
]  # fmt: skip


def fans(shape: tuple[int, ...]) -> tuple[int, int]:
    """fan_in and fan_out of a shape. Raises `ShapeError` for fewer axes than two."""
    if not isinstance(shape, (tuple, list)) or len(shape) < 2:
        raise ShapeError(complain("initializer: fans need two axes", f"shape {shape}", "(out, in, ...)"))
    rest = math.prod(shape[2:])
    return shape[1] * rest, shape[0] * rest


class Initializer(Ranged):
    """Fills arrays: `initializer(array)`. Subclasses define `fill(self, tensor)` on a plain tensor."""

    def __call__(self, array: Any) -> None:
        """Fill an array in place."""
        place = arrays.target(array, "initializer")
        tensor = arrays.tensor_of(place)
        self.fill(tensor)
        if type(place) is np.ndarray and tensor._array is not place:  # its layout or byte order is no tensor's
            np.copyto(place, tensor.asnumpyarray())

    def fill(self, tensor: Any) -> None:
        """Fill a tensor in place."""
        raise NotImplementedError(complain(f"{type(self).__name__}: no fill", "", "fill(self, tensor)"))


class Constant(Initializer):
    """Every element is a number, or that of an array, broadcast. Raises `TypeError` for what is neither."""

    def __init__(self, fill_value: Any) -> None:
        if not isinstance(fill_value, (bool, int, float, np.generic)) and not arrays.is_array(fill_value):
            raise TypeError(complain("Constant: fill_value", repr(fill_value)[:200], "a number or an array"))
        self.fill_value = fill_value

    def fill(self, tensor: Any) -> None:
        """Assign the value. Raises `ShapeError` for an array that does not fit."""
        value = self.fill_value
        if arrays.is_array(value):
            values = arrays.moved(arrays.plain(value), None)
            mine, other = ([n for n in shape if n != 1] for shape in (tensor.shape, values.shape))
            try:  # a rank rule may have made a column of a vector
                values = values.reshape(tensor.shape) if mine == other else np.broadcast_to(values, tensor.shape)
            except ValueError:
                given = f"shape {values.shape}"
                raise ShapeError(complain("Constant: fill_value", given, f"shape {tensor.shape}")) from None
            arrays.copy_into(tensor, values)
        else:
            tensor[:] = value


class Zero(Constant):
    """Zeros."""

    def __init__(self) -> None:
        super().__init__(0.0)


class One(Constant):
    """Ones."""

    def __init__(self) -> None:
        super().__init__(1.0)


class NaN(Constant):
    """NaN, so that a use before training shows."""

    def __init__(self) -> None:
        super().__init__(math.nan)


class Identity(Initializer):
    """`scale` times the identity matrix."""

    ranges: ClassVar[dict[str, str]] = {"scale": "a finite number"}

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale

    def fill(self, tensor: Any) -> None:
        """Assign the matrix. Raises `ShapeError` when it is not square."""
        if len(tensor.shape) != 2 or tensor.shape[0] != tensor.shape[1]:
            raise ShapeError(complain("Identity: not a square matrix", f"shape {tensor.shape}", "(n, n)"))
        tensor.set(self.scale * np.eye(tensor.shape[0]))


class Normal(Initializer):
    """Normal numbers of mean 0 and standard deviation `scale`. Raises `ValueError` for one below 0."""

    ranges: ClassVar[dict[str, str]] = {"scale": "0 or more, and finite"}

    def __init__(self, scale: float = 0.05) -> None:
        self.scale = scale

    def deviation(self, shape: tuple[int, ...]) -> float:
        """The standard deviation for a shape."""
        return self.scale

    def fill(self, tensor: Any) -> None:
        """Draw the numbers."""
        tensor[:] = tensor.backend.randn(shape=tensor.shape) * self.deviation(tensor.shape)


class Uniform(Initializer):
    """Uniform numbers between -`scale` and `scale`. Raises `ValueError` for one below 0."""

    ranges: ClassVar[dict[str, str]] = {"scale": "0 or more, and finite"}

    def __init__(self, scale: float = 0.05) -> None:
        self.scale = scale

    def bound(self, shape: tuple[int, ...]) -> float:
        """The bound for a shape."""
        return self.scale

    def fill(self, tensor: Any) -> None:
        """Draw the numbers."""
        bound = self.bound(tensor.shape)
        tensor[:] = tensor.backend.rand(shape=tensor.shape) * (2 * bound) - bound


def _lecun(scale: float, shape: tuple[int, ...]) -> float:
    return scale * math.sqrt(1.0 / max(fans(shape)[0], 1))


def _glorot(scale: float, shape: tuple[int, ...]) -> float:
    return scale * math.sqrt(2.0 / max(sum(fans(shape)), 1))


def _he(scale: float, shape: tuple[int, ...], fan_option: str) -> float:
    fan = fans(shape)[fan_option == "fan_out"]
    return scale * math.sqrt(2.0 / max(fan, 1))


class LeCunNormal(Normal):
    """Normal numbers of deviation scale / sqrt(fan_in) (LeCun et al. 1998)."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__(scale)

    def deviation(self, shape: tuple[int, ...]) -> float:
        """The standard deviation for a shape."""
        return _lecun(self.scale, shape)


class LeCunUniform(Uniform):
    """Uniform numbers of deviation scale / sqrt(fan_in)."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__(scale)

    def bound(self, shape: tuple[int, ...]) -> float:
        """The bound for a shape."""
        return math.sqrt(3.0) * _lecun(self.scale, shape)


class GlorotNormal(LeCunNormal):
    """Normal numbers of deviation scale sqrt(2 / (fan_in + fan_out)) (Glorot and Bengio 2010)."""

    def deviation(self, shape: tuple[int, ...]) -> float:
        """The standard deviation for a shape."""
        return _glorot(self.scale, shape)


class GlorotUniform(LeCunUniform):
    """Uniform numbers of deviation scale sqrt(2 / (fan_in + fan_out))."""

    def bound(self, shape: tuple[int, ...]) -> float:
        """The bound for a shape."""
        return math.sqrt(3.0) * _glorot(self.scale, shape)


def _check_option(fan_option: str) -> str:
    if fan_option not in ("fan_in", "fan_out"):
        raise ValueError(complain("initializer: fan_option", repr(fan_option), "'fan_in' or 'fan_out'"))
    return fan_option


class HeNormal(Normal):
    """Normal numbers of deviation scale sqrt(2 / fan) (He et al. 2015)."""

    def __init__(self, scale: float = 1.0, fan_option: str = "fan_in") -> None:
        super().__init__(scale)
        self.fan_option = _check_option(fan_option)

    def deviation(self, shape: tuple[int, ...]) -> float:
        """The standard deviation for a shape."""
        return _he(self.scale, shape, self.fan_option)


class HeUniform(Uniform):
    """Uniform numbers of deviation scale sqrt(2 / fan)."""

    def __init__(self, scale: float = 1.0, fan_option: str = "fan_in") -> None:
        super().__init__(scale)
        self.fan_option = _check_option(fan_option)

    def bound(self, shape: tuple[int, ...]) -> float:
        """The bound for a shape."""
        return math.sqrt(3.0) * _he(self.scale, shape, self.fan_option)


class Orthogonal(Initializer):
    """`scale` times a matrix (out, rest) with orthonormal rows, or columns where these are fewer (Saxe et al. 2013)."""

    ranges: ClassVar[dict[str, str]] = {"scale": "a finite number"}

    def __init__(self, scale: float = 1.1) -> None:
        self.scale = scale

    def fill(self, tensor: Any) -> None:
        """Draw the matrix."""
        rows = tensor.shape[0] if tensor.shape else 1
        columns = math.prod(tensor.shape[1:])
        flat = tensor.backend.rng.normal(size=(max(rows, columns), min(rows, columns)))
        q, r = np.linalg.qr(flat)
        q = q * np.where(np.diag(r) < 0, -1.0, 1.0)  # a random rotation, whatever signs the factorization picks
        q = q if rows >= columns else q.T
        tensor.set((self.scale * q).reshape(tensor.shape))


def as_initializer(x: Any, default: Initializer | None = None) -> Any:
    """An initializer of what a parameter is given: a number, an array, an initializer, None for the default.

    Raises `TypeError` for anything else.
    """
    if x is None:
        return LeCunNormal() if default is None else default
    if isinstance(x, (int, float, np.generic)) or arrays.is_array(x):
        return Constant(x)
    if not callable(x):
        raise TypeError(complain("initializer", type(x).__name__, "a number, an array, or a callable that fills one"))
    return x
