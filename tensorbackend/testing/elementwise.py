# SPDX-License-Identifier: Apache-2.0
"""The oracle's elementwise ops: functions from their definitions, integers in 64 bits, and how errors pass through."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np

from tensorbackend import ops
from tensorbackend.testing.bounds import BOOL, WIDE, Bounded, doubt, is_float, spacing, unsigned_zero
from tensorbackend.testing.inputs import ulps


def elementwise(
    op: ops.Op, args: list[Bounded], read: np.dtype, dtype: np.dtype, compiled: bool
) -> tuple[np.ndarray, np.ndarray]:
    """The value and error of an op with a result of type `dtype` on operands that were cast to the compute type `read`.

    Ops that round correctly are exact on exact operands: every evaluation gives the same bits.
    """
    if op.name == "where":
        return _where(*args)
    errors = np.broadcast_arrays(*[a.error for a in args])
    exact = np.logical_and.reduce([e == 0 for e in errors])
    values = [a.value for a in args]
    if op.dtype in ("truth", "mixed"):
        return _form(op)(*values), doubt(op.name, args)
    if not is_float(read):
        return _whole(op.name, values, read), np.where(exact, 0, np.inf)
    form = _form(op)
    centre = form(*values)
    error = _deviation(op.name, form, values, errors, centre) + ulps(op, dtype, compiled) * spacing(centre, read)
    if op.name == "pow2near":
        error = np.where(_near_half(values[0]), np.inf, error)
    if op.ulps > 0.5:
        return centre, error
    rounded = op.numpy(*[v.astype(read) for v in values])
    error = error + (unsigned_zero(read) if op.name in ("maximum", "minimum") else 0)
    same = exact & ((op.name not in ("maximum", "minimum")) | (rounded != 0))
    return np.where(exact, rounded.astype(WIDE), centre), np.where(same, 0, error)


def _where(condition: Bounded, x: Bounded, y: Bounded) -> tuple[np.ndarray, np.ndarray]:
    error = np.where(condition.value, x.error, y.error)
    return np.where(condition.value, x.value, y.value), np.where(condition.error > 0, np.inf, error)


def _deviation(name: str, form: Callable, values: list, errors: list, centre: np.ndarray) -> np.ndarray:
    """How far the result may move while the operands move within their errors.

    The ops are monotone in each operand, so the corners decide; those that are not have a bound of their own. Where the
    corners are of different kinds (NaN, an infinity, finite), nothing is known.
    """
    if not any((e > 0).any() for e in errors):
        return np.zeros(centre.shape, WIDE)
    if name in _LIPSCHITZ:
        return np.broadcast_to(errors[0] * _LIPSCHITZ[name], centre.shape)
    worst = np.zeros(centre.shape, WIDE)
    for signs in itertools.product((-1, 1), repeat=len(values)):
        corner = form(*[v + s * e for v, s, e in zip(values, signs, errors)])
        both = (np.isnan(corner) & np.isnan(centre)) | (corner == centre)
        apart = np.where(both, 0, np.abs(corner - centre))
        worst = np.fmax(worst, np.where(np.isnan(apart), np.inf, apart))
    if name in _PITFALLS:
        worst = np.where(_PITFALLS[name](values, errors), np.inf, worst)
    unknown = np.logical_or.reduce([np.isinf(e) for e in errors])
    return np.where(unknown, np.inf, worst)


def _crosses_zero(x: np.ndarray, error: np.ndarray) -> np.ndarray:
    return (error > 0) & (np.abs(x) <= error)


_LIPSCHITZ = {"sin": 1, "cos": 1, "erf": 1.13, "erfc": 1.13, "abs": 1, "neg": 1, "sig": 0.25, "tanh": 1, "arctan": 1}

_PITFALLS: dict[str, Callable] = {
    "div": lambda v, e: _crosses_zero(v[1], e[1]),
    "floordiv": lambda v, e: _crosses_zero(v[1], e[1]) | ((e[0] + e[1] > 0) & (_jump(v, e) > 0)),
    "mod": lambda v, e: _crosses_zero(v[1], e[1]) | (_jump(v, e) > 0),
    "pow": lambda v, e: _crosses_zero(v[0], e[0]),
    "arctan2": lambda v, e: _crosses_zero(v[0], e[0]) & (v[1] - e[1] <= 0),
    "tan": lambda v, e: (e[0] > 0.25) | ((e[0] > 0) & (np.tan(v[0] + e[0]) < np.tan(v[0] - e[0]))),
}


def _jump(values: list, errors: list) -> np.ndarray:
    """How far floor(x / y) may move."""
    corners = [np.floor((values[0] + s * errors[0]) / (values[1] + t * errors[1])) for s in (-1, 1) for t in (-1, 1)]
    return np.where(errors[0] + errors[1] > 0, np.max(corners, 0) - np.min(corners, 0), 0)


def _by_element(function: Callable[[float], float]) -> Callable:
    def form(x: np.ndarray) -> np.ndarray:
        return np.array([function(float(v)) for v in np.ravel(x)], WIDE).reshape(np.shape(x))

    return form


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def _safelog(x: np.ndarray) -> np.ndarray:
    return np.where(np.isnan(x), x, np.where(x > 0, np.maximum(np.log(np.where(x > 0, x, 1)), -50), -50))


def _power_of_two(x: np.ndarray) -> np.ndarray:
    exponent = np.rint(np.log2(np.abs(np.where(x == 0, 1, x))))
    return np.where(x == 0, x, np.copysign(np.exp2(exponent), x))


def _near_half(x: np.ndarray) -> np.ndarray:
    """Where rounding may take the logarithm of |x| to either neighbour."""
    return np.abs(np.log2(np.abs(x)) % 1 - 0.5) < 1e-4


_LOG_2 = np.log(WIDE.type(2))

_FORMS: dict[str, Callable] = {
    "erf": _by_element(math.erf),
    "erfc": _by_element(math.erfc),
    "sig": _sigmoid,
    "sig2": lambda x: _sigmoid(x * _LOG_2),
    "tanh2": lambda x: np.tanh(x * _LOG_2),
    "safelog": _safelog,
    "pow": np.power,
    "pow2near": _power_of_two,
    "neg": np.negative,
    "sgn": np.sign,
    "rint": np.rint,
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
}
"""The functions that NumPy lacks, from their definitions."""


def _form(op: ops.Op) -> Callable:
    """The op on extended floats: NumPy's function where it has one, else from the definition."""
    assert op.name in _FORMS or isinstance(op.numpy, np.ufunc), f"{op.name}: the oracle needs a form of its own"
    return _FORMS.get(op.name, op.numpy)


def _whole(name: str, values: list[np.ndarray], dtype: np.dtype) -> np.ndarray:
    """An op on integers or truth values: in 64 bits, wrapped to the type."""
    forms = _TRUTHS if dtype == BOOL else _WHOLE
    assert name in forms, f"{name}: the oracle needs a form on {'truth values' if dtype == BOOL else 'integers'}"
    if dtype == BOOL:
        return forms[name](*values)
    wide = [v.astype(np.uint64 if dtype.kind == "u" else np.int64) for v in values]
    return np.asarray(forms[name](*wide)).astype(dtype)


def _integer_power(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    def one(base: int, exponent: int) -> int:
        if exponent >= 0:
            return pow(base, exponent, 1 << 64)
        return {1: 1, -1: 1 - 2 * (exponent % 2)}.get(base, 0)

    x, y = np.broadcast_arrays(x, y)
    words = [one(int(a), int(b)) % (1 << 64) for a, b in zip(x.ravel(), y.ravel())]
    return np.array(words, np.uint64).reshape(x.shape).view(x.dtype)


def _itself(x: np.ndarray) -> np.ndarray:
    return x


_WHOLE: dict[str, Callable] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "pow": _integer_power, "maximum": np.maximum,
    "floordiv": lambda x, y: np.where(y == 0, 0, np.floor_divide(x, np.where(y == 0, 1, y))),
    "mod": lambda x, y: np.where(y == 0, 0, np.remainder(x, np.where(y == 0, 1, y))),
    "minimum": np.minimum, "bitand": np.bitwise_and, "bitor": np.bitwise_or, "bitxor": np.bitwise_xor,
    "shl": lambda x, y: np.where((y >= 0) & (y < 64), x << np.clip(y, 0, 63).astype(x.dtype), 0),
    "shr": lambda x, y: x >> np.where((y >= 0) & (y < 63), y, 63).astype(x.dtype) if x.dtype.kind == "i"
    else np.where(y < 64, x >> np.minimum(y, 63), 0),
    "invert": np.invert, "neg": lambda x: 0 - x, "abs": np.abs, "sgn": np.sign, "rint": _itself, "floor": _itself,
    "ceil": _itself, "trunc": _itself, "sqr": lambda x: x * x,
}  # fmt: skip
_TRUTHS: dict[str, Callable] = {
    "maximum": np.logical_or, "minimum": np.logical_and, "bitand": np.logical_and, "bitor": np.logical_or,
    "bitxor": np.logical_xor, "invert": np.logical_not, "abs": _itself, "sgn": _itself, "rint": _itself,
    "floor": _itself, "ceil": _itself, "trunc": _itself,
}  # fmt: skip
