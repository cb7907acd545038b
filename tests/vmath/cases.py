# SPDX-License-Identifier: Apache-2.0
"""The functions, the bounds on their errors, and inputs to try them on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Function:
    """A function of vmath.h: its largest allowed errors in units in the last place, and where its argument is busy."""

    name: str
    f32: float
    f64: float
    low: float = -20.0
    high: float = 20.0
    arity: int = 1

    def __str__(self) -> str:
        return self.name

    def bound(self, dtype: str) -> float:
        """The largest allowed error for "f32" or "f64"."""
        return self.f32 if dtype == "f32" else self.f64


FUNCTIONS = (
    Function("exp", 1.1, 1.1, -750, 720),
    Function("exp2", 1.1, 1.1, -1080, 1030),
    Function("expm1", 1.1, 1.25, -45, 720),
    Function("log", 1.0, 1.25, 0, 3),
    Function("log2", 1.1, 1.1, 0, 3),
    Function("log10", 1.1, 1.1, 0, 3),
    Function("log1p", 1.3, 1.25, -1, 3),
    Function("tanh", 1.5, 1.5),
    Function("sigmoid", 2.0, 2.0, -750, 50),
    Function("erf", 1.1, 1.1, -6, 6),
    Function("erfc", 0.6, 2.0, -6, 28),
    Function("sin", 1.3, 1.25, -1000, 1000),
    Function("cos", 1.3, 1.25, -1000, 1000),
    Function("tan", 1.3, 1.25, -1000, 1000),
    Function("asin", 1.25, 1.25, -1, 1),
    Function("acos", 1.25, 1.25, -1, 1),
    Function("atan", 1.5, 1.75, -5, 5),
    Function("sinh", 2.0, 2.0, -720, 720),
    Function("cosh", 2.0, 2.0, -720, 720),
    Function("asinh", 0.6, 1.25, -5, 5),
    Function("acosh", 0.6, 1.75, 1, 5),
    Function("atanh", 0.6, 1.5, -1, 1),
    Function("sqrt", 0.5, 0.5, 0, 5),
    Function("rsqrt", 1.5, 1.5, 0, 5),
    Function("rint", 0.0, 0.0),
    Function("floor", 0.0, 0.0),
    Function("ceil", 0.0, 0.0),
    Function("trunc", 0.0, 0.0),
    Function("pow", 0.6, 1.5, 0, 5, arity=2),
    Function("atan2", 2.0, 2.0, -5, 5, arity=2),
    Function("fmod", 0.0, 0.0, -50, 50, arity=2),
)

DIFFICULT_ANGLES = (6381956970095103.0 * 2.0**797, 5319372648326541.0 * 2.0**203, 1.6367117e29, 16367173.0 * 2.0**72)
"""Close to multiples of pi/2: the closest double, another, and two floats."""


def specials(dtype: str) -> np.ndarray:
    """Zeros, infinities, NaN, the ends of the normal and the denormal range, small and large integers, and halves."""
    info = np.finfo(np.float32 if dtype == "f32" else np.float64)
    positive = [0.0, info.smallest_subnormal, info.smallest_normal, info.eps, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0]
    positive += [1 - info.epsneg, 1 + info.eps, 1 / info.eps - 1, 1 / info.eps, 2 / info.eps, info.max, np.inf]
    return np.array([*positive, *(-value for value in positive), np.nan], info.dtype)


def sample(function: Function, dtype: str, count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Arguments for a function: every binade, the busy interval, near 1, near whole numbers, specials.

    The second array is for functions of two arguments; for powers it makes most results finite.
    """
    rng = np.random.default_rng(seed)
    real = np.float32 if dtype == "f32" else np.float64
    part = count // 4
    near_one = 1 + np.ldexp(rng.uniform(-1, 1, part), rng.integers(-np.finfo(real).nmant, 0, part))
    whole = np.rint(rng.uniform(-1000, 1000, part)) * rng.choice([1, np.pi / 2, np.log(2)], part)
    angles = np.array([x for x in DIFFICULT_ANGLES if x < float(np.finfo(real).max)])
    pieces = [_any_binade(rng, dtype, part), rng.uniform(function.low, function.high, part), near_one, whole, angles]
    a = np.concatenate([*(piece.astype(real) for piece in pieces), specials(dtype)])
    if function.name == "pow":
        return a, _exponents(rng, a)
    b = np.concatenate([_any_binade(rng, dtype, a.size // 2), rng.uniform(-5, 5, a.size - a.size // 2).astype(real)])
    return a, rng.permutation(b)


def pairs_of_specials(dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Each special number with each."""
    some = specials(dtype)
    return np.repeat(some, some.size), np.tile(some, some.size)


def _any_binade(rng: np.random.Generator, dtype: str, count: int) -> np.ndarray:
    """All bit patterns of finite numbers alike: each binade as often as each other, denormals among them."""
    bits, real = (np.uint32, np.float32) if dtype == "f32" else (np.uint64, np.float64)
    patterns = rng.integers(0, np.iinfo(bits).max, count, bits, endpoint=True).view(real)
    return np.where(np.isfinite(patterns), patterns, real(1))


def _exponents(rng: np.random.Generator, bases: np.ndarray) -> np.ndarray:
    """Exponents that take the bases to anywhere in range; every third is a small whole number."""
    reach = 150 if bases.dtype == np.float32 else 1080
    with np.errstate(all="ignore"):
        exponents = rng.uniform(-reach, reach, bases.size) / np.log2(np.abs(bases.astype(np.float64)))
    exponents[::3] = rng.integers(-9, 9, exponents[::3].size)
    limit = float(np.finfo(bases.dtype).max)
    return np.clip(np.nan_to_num(exponents, nan=0.5), -limit, limit).astype(bases.dtype)
