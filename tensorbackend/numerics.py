# SPDX-License-Identifier: Apache-2.0
"""NumPy forms of the ops that NumPy has no single function for.

Each takes arrays of one compute type and an optional `out`, like a ufunc; floating point warnings are the
caller's to silence. They may write `out` before they have read all of their inputs: `out` must be distinct.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tensorbackend import dtypes

SAFELOG_FLOOR = -50.0

_ROUNDS = 10
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)


def _store(values: np.ndarray, out: np.ndarray | None, dtype: np.dtype) -> np.ndarray:
    if out is None:
        return values.astype(dtype, copy=False)
    np.copyto(out, values, casting="unsafe")
    return out


def sigmoid(x: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """1 / (1 + exp(-x)) without overflow: from exp(-|x|) on either side."""
    return _logistic(x, np.exp(-np.abs(x)), out)


def gate(x: np.ndarray, y: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """The sigmoid of x times the hyperbolic tangent of y."""
    return np.multiply(sigmoid(x), np.tanh(y), out=out)


def sigmoid2(x: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """1 / (1 + 2^-x) from 2^-|x|: the sigmoid of x ln 2 would carry the product's rounding into the exponent."""
    return _logistic(x, np.exp2(-np.abs(x)), out)


def _logistic(x: np.ndarray, small: np.ndarray, out: np.ndarray | None) -> np.ndarray:
    return _store(np.where(x >= 0, x.dtype.type(1), small) / (1 + small), out, x.dtype)


def tanh2(x: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """(2^2x - 1) / (2^2x + 1), which is tanh(x ln 2) and tends to -1 and 1."""
    return np.tanh(x * x.dtype.type(np.log(2.0)), out=out)


def safelog(x: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """max(ln x, -50), and -50 for x <= 0; NaN stays NaN."""
    floor = x.dtype.type(SAFELOG_FLOOR)
    logs = np.log(np.where(x <= 0, x.dtype.type(1), x))
    return _store(np.where(x <= 0, floor, np.maximum(logs, floor)), out, x.dtype)


def negative(x: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """-x; unsigned integers wrap."""
    return np.subtract(np.zeros((), x.dtype), x, out=out) if x.dtype.kind == "u" else np.negative(x, out=out)


def sign(x: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """-1, 0 or 1; a truth value is its own sign."""
    return _store(x, out, x.dtype) if x.dtype == np.bool_ else np.sign(x, out=out)


def whole(rounding: np.ufunc) -> Callable[..., np.ndarray]:
    """One of NumPy's roundings to whole numbers, by which integers stay what they are; its own may make them floats."""

    def rounded(x: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        return rounding(x, out=out) if dtypes.is_float(x.dtype) else _store(x, out, x.dtype)

    return rounded


def power(x: np.ndarray, y: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """x to the y. Integers wrap; a negative exponent gives 0 unless the base is 1 or -1."""
    if x.dtype.kind in "fV":
        return _float_power(x, y, out)
    if x.dtype.kind != "i":
        return np.power(x, y, out=out)
    x, y = np.broadcast_arrays(x, y)
    result = np.power(x, np.maximum(y, 0))
    odd = np.where(y & 1, x, 1)
    below = np.where(np.abs(x) == 1, np.where(x == 1, 1, odd), 0)
    return _store(np.where(y < 0, below, result), out, result.dtype)


def _float_power(x: np.ndarray, y: np.ndarray, out: np.ndarray | None) -> np.ndarray:
    """NumPy takes sqrt(x) for x ** 0.5 where it meets one exponent for many x, and that differs at -Inf and -0."""
    root = y == 0.5
    result = np.power(x, y, out=out)
    if root.any():
        result = np.asarray(result)
        np.copyto(result, np.abs(x), where=root & ((x == 0) | np.isinf(x)))
    return result


def where(c: np.ndarray, x: np.ndarray, y: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """x where c is not zero, else y."""
    chosen = np.where(c if c.dtype == np.bool_ else c != 0, x, y)
    return _store(chosen, out, chosen.dtype)


# Coefficients of W. J. Cody, "Rational Chebyshev approximations for the error function", Math. Comp. 23 (1969).
_ERF_P = (
    1.85777706184603153e-1,
    3.16112374387056560,
    1.13864154151050156e2,
    3.77485237685302021e2,
    3.20937758913846947e3,
)
_ERF_Q = (1.0, 2.36012909523441209e1, 2.44024637934444173e2, 1.28261652607737228e3, 2.84423683343917062e3)
_ERFC_P = (
    2.15311535474403846e-8, 5.64188496988670089e-1, 8.88314979438837594, 6.61191906371416295e1, 2.98635138197400131e2,
    8.81952221241769090e2, 1.71204761263407058e3, 2.05107837782607147e3, 1.23033935479799725e3,
)  # fmt: skip
_ERFC_Q = (
    1.0, 1.57449261107098347e1, 1.17693950891312499e2, 5.37181101862009858e2, 1.62138957456669019e3,
    3.29079923573345963e3, 4.36261909014324716e3, 3.43936767414372164e3, 1.23033935480374942e3,
)  # fmt: skip
_TAIL_P = (
    1.63153871373020978e-2,
    3.05326634961232344e-1,
    3.60344899949804439e-1,
    1.25781726111229246e-1,
    1.60837851487422766e-2,
    6.58749161529837803e-4,
)
_TAIL_Q = (
    1.0,
    2.56852019228982242,
    1.87295284992346047,
    5.27905102951428412e-1,
    6.05183413124413191e-2,
    2.33520497626869185e-3,
)


def _ratio(p: tuple, q: tuple, x: np.ndarray) -> np.ndarray:
    return np.polyval(p, x) / np.polyval(q, x)


def _erfc_positive(a: np.ndarray) -> np.ndarray:
    """erfc(a) for a >= 0.46875, in float64."""
    clipped = np.minimum(a, 30.0)
    middle = _ratio(_ERFC_P, _ERFC_Q, np.minimum(clipped, 4.0))
    inverse = 1.0 / np.square(np.maximum(clipped, 4.0))
    far = (1.0 / np.sqrt(np.pi) - inverse * _ratio(_TAIL_P, _TAIL_Q, inverse)) / np.maximum(clipped, 4.0)
    head = np.trunc(clipped * 16.0) / 16.0
    scale = np.exp(-head * head) * np.exp(-(clipped - head) * (clipped + head))
    return scale * np.where(clipped <= 4.0, middle, far)


def erf(x: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """The error function, computed in float64."""
    wide = x.astype(np.float64)
    size = np.abs(wide)
    near = wide * _ratio(_ERF_P, _ERF_Q, np.square(np.minimum(size, 0.46875)))
    away = np.copysign(1.0 - _erfc_positive(np.maximum(size, 0.46875)), wide)
    values = np.where(size <= 0.46875, near, away)
    return _store(values, out, x.dtype)


def erfc(x: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """1 - erf(x) without cancellation for large x, computed in float64."""
    wide = x.astype(np.float64)
    size = np.abs(wide)
    tail = _erfc_positive(np.maximum(size, 0.46875))
    near = 1.0 - wide * _ratio(_ERF_P, _ERF_Q, np.square(np.minimum(size, 0.46875)))
    values = np.where(size <= 0.46875, near, np.where(wide < 0, 2.0 - tail, tail))
    return _store(values, out, x.dtype)


def round_stochastic(x: np.ndarray, bits: np.ndarray, kept: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """`x`, float64 or as float32, with `kept` mantissa bits, rounded up with probability equal to the fraction lost.

    `bits` are random 32-bit words. Infinities and NaN pass.
    """
    if x.dtype == np.float64:
        word, lost = np.ascontiguousarray(x).view(np.uint64), np.uint64(52) - kept.astype(np.uint64)
        bits = bits.astype(np.uint64) << np.uint64(32) >> (np.uint64(64) - lost)
    else:
        word, lost = np.ascontiguousarray(x, np.float32).view(np.uint32), np.uint32(23) - kept.astype(np.uint32)
    mask = (word.dtype.type(1) << lost) - word.dtype.type(1)
    moved = ((word + (bits & mask)) & ~mask).view(f"f{word.itemsize}")
    return _store(np.where(np.isfinite(x), moved, x), out, moved.dtype)


def philox(index: np.ndarray, draw: int, key: int) -> tuple[np.ndarray, ...]:
    """Philox-4x32-10 at counters (index, draw) under `key`: four arrays of 32-bit words, held in uint64.

    `index` is uint64. J. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
    """
    c0, c1 = index & _LOW, index >> _32
    c2, c3 = np.uint64(draw & 0xFFFFFFFF), np.uint64(draw >> 32 & 0xFFFFFFFF)
    k0, k1 = key & 0xFFFFFFFF, key >> 32 & 0xFFFFFFFF
    for _ in range(_ROUNDS):
        p0, p1 = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        c0, c2 = (p1 >> _32) ^ c1 ^ np.uint64(k0), (p0 >> _32) ^ c3 ^ np.uint64(k1)
        c1, c3 = p1 & _LOW, p0 & _LOW
        k0, k1 = (k0 + _WEYL[0]) & 0xFFFFFFFF, (k1 + _WEYL[1]) & 0xFFFFFFFF
    return c0, c1, c2, c3


def _unit53(high: np.ndarray, low: np.ndarray) -> np.ndarray:
    """53 random bits from two words, as an integer in float64."""
    return (high >> np.uint64(5)).astype(np.float64) * 67108864.0 + (low >> np.uint64(6)).astype(np.float64)


def uniform(words: tuple[np.ndarray, ...], dtype: np.dtype) -> np.ndarray:
    """Numbers of [0, 1) from Philox words: 24 random bits in float32, 53 in float64."""
    if dtype.itemsize == 8:
        return _unit53(words[0], words[1]) * 2.0**-53
    return (words[0] >> np.uint64(8)).astype(np.float32) * np.float32(2.0**-24)


def normal(words: tuple[np.ndarray, ...], dtype: np.dtype) -> np.ndarray:
    """Standard normal numbers from Philox words (Box and Muller 1958)."""
    if dtype.itemsize == 8:
        u, v = (_unit53(words[0], words[1]) + 1.0) * 2.0**-53, _unit53(words[2], words[3]) * 2.0**-53
    else:
        u = ((words[0] >> np.uint64(8)).astype(np.float32) + np.float32(1)) * np.float32(2.0**-24)
        v = (words[1] >> np.uint64(8)).astype(np.float32) * np.float32(2.0**-24)
    return np.sqrt(dtype.type(-2) * np.log(u)) * np.cos(dtype.type(2 * np.pi) * v)


def bits(words: tuple[np.ndarray, ...], dtype: np.dtype) -> np.ndarray:
    """The first Philox word, 32 random bits."""
    return words[0].astype(dtype)


def shift_exponent(s: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """sgn(s) 2^rint(log2 |s|), and 0 for s = 0: the nearest power of two in the logarithm."""
    nearest = np.rint(np.log2(np.abs(s)))
    power = np.copysign(np.exp2(nearest, dtype=np.float64), s)  # NumPy's 2^127 in float32 is not exact
    return _store(np.where(s == 0, s, power), out, s.dtype)


def histogram_bin(x: np.ndarray, offset: float, bins: int) -> np.ndarray:
    """The bin of |x|: clamp(rint(log2 |x|) - offset, 0, bins - 1); zero and NaN fall into bin 0."""
    x = x if dtypes.is_float(x.dtype) else x.astype(np.float64)  # NumPy's log2 of bytes is of float16
    place = np.rint(np.log2(np.abs(x))) - offset
    place = np.where(np.isnan(place), 0, place)
    return dtypes.cast(np.clip(place, 0, bins - 1), np.dtype(np.int64))
