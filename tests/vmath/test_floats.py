# SPDX-License-Identifier: Apache-2.0
"""Extremes, signs, remainders and floor division of floats: the same bits as NumPy's."""

from __future__ import annotations

import numpy as np
import pytest

from tests.vmath.build import DTYPES, Kernels
from tests.vmath.cases import pairs_of_specials

NUMPY = {
    "max": np.maximum,
    "min": np.minimum,
    "mod": np.remainder,
    "floordiv": np.floor_divide,
    "fmod": np.fmod,
}


def assert_same_numbers(got: np.ndarray, expected: np.ndarray, *arguments: np.ndarray) -> None:
    """Equal values and equal signs of zeros; any NaN is like any other."""
    same = (got == expected) & (np.signbit(got) == np.signbit(expected)) | np.isnan(got) & np.isnan(expected)
    wrong = np.flatnonzero(~same)[:5]
    assert wrong.size == 0, [(*(a[i] for a in arguments), got[i], expected[i]) for i in wrong]


def pairs(dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of special numbers, of moderate numbers, of whole numbers, and of numbers far apart."""
    rng = np.random.default_rng(1)
    real = DTYPES[dtype]
    far = np.finfo(real).maxexp - 2
    size = 20_000
    wide = np.ldexp(rng.uniform(-1, 1, (2, size)).astype(real), rng.integers(-far, far, (2, size)))
    moderate = rng.uniform(-20, 20, (2, size)).astype(real)
    whole = rng.integers(-9, 9, (2, size)).astype(real)
    first, second = pairs_of_specials(dtype)
    a, b = np.concatenate([np.stack([first, second]), wide, moderate, whole], axis=1)
    return a, b


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("name", NUMPY)
def test_function_of_two_floats_is_numpys(kernels: Kernels, name: str, dtype: str) -> None:
    a, b = pairs(dtype)
    with np.errstate(all="ignore"):
        expected = NUMPY[name](a, b)
    got = kernels(f"{name}_{dtype}", a, b)
    if name in ("max", "min"):  # of two zeros either is right
        got, expected = got + 0, expected + 0
    assert_same_numbers(got, expected, a, b)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("name", ["mod", "floordiv", "fmod"])
def test_quotients_around_the_largest_of_one_step_are_numpys_in_any_company(
    kernels: Kernels, name: str, dtype: str
) -> None:
    """Of numbers that are nearly multiples, too, where the rounded quotient is one too many; and each number alone."""
    rng = np.random.default_rng(3)
    real, digits, size = DTYPES[dtype], np.finfo(DTYPES[dtype]).nmant + 1, 20_000
    b = np.ldexp(rng.uniform(0.5, 1, size), rng.integers(-9, 9, size)).astype(real)
    q = np.ldexp(rng.uniform(0.5, 1, size), rng.choice([1, 5, *range(digits - 5, digits + 3)], size))
    a = (np.trunc(q) * b).astype(real)
    a += np.spacing(a) * rng.integers(-1, 2, size).astype(real)
    a, b = a * rng.choice([-1, 1], size).astype(real), b * rng.choice([-1, 1], size).astype(real)
    near = np.abs(a / b) < 2.0 ** (digits - 3)
    assert size / 9 < near.sum() < size / 2
    got = kernels(f"{name}_{dtype}", a, b)
    assert_same_numbers(got, NUMPY[name](a, b), a, b)
    apart = np.empty_like(got)
    for some in (near, ~near):
        apart[some] = kernels(f"{name}_{dtype}", a[some], b[some])
    assert_same_numbers(apart, got, a, b)
    alone = np.array([kernels(f"{name}_{dtype}", a[i : i + 1], b[i : i + 1])[0] for i in range(2000)])
    assert_same_numbers(alone, got[:2000], a[:2000], b[:2000])


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_sign_is_numpys(kernels: Kernels, dtype: str) -> None:
    a, _ = pairs(dtype)
    assert_same_numbers(kernels(f"sign_{dtype}", a) + 0, np.sign(a) + 0, a)
