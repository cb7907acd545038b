# SPDX-License-Identifier: Apache-2.0
"""Integer functions against NumPy, and floats to integers against Python's own integers."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.vmath.build import DTYPES, INTEGERS, Kernels
from tests.vmath.cases import specials

BINARY = {
    "max": np.maximum,
    "min": np.minimum,
    "floordiv": np.floor_divide,
    "mod": np.remainder,
}
UNARY = {"sign": np.sign, "abs": np.absolute}


def values(dtype: str, count: int) -> np.ndarray:
    """The ends of the range, small numbers, and numbers of every length."""
    info = np.iinfo(DTYPES[dtype])
    rng = np.random.default_rng(2)
    ends = [info.min, info.min + 1, info.max - 1, info.max, info.max // 2, 0, 1, 2, 3, 7]
    ends += [-1, -2, -3, -7] if info.min else []
    spread = rng.integers(info.min, info.max, count, dtype=DTYPES[dtype], endpoint=True)
    spread >>= rng.integers(0, info.bits, count).astype(DTYPES[dtype])
    return np.concatenate([np.array(ends, DTYPES[dtype]), spread])


def pairs(dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """All pairs of 8-bit numbers; of wider types some hundred thousand, the ends with each other among them."""
    info = np.iinfo(DTYPES[dtype])
    some = np.arange(info.min, info.max + 1, dtype=DTYPES[dtype]) if info.bits == 8 else values(dtype, 300)
    return np.repeat(some, some.size), np.tile(some, some.size)


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("name", BINARY)
def test_function_of_two_integers_is_numpys(kernels: Kernels, name: str, dtype: str) -> None:
    a, b = pairs(dtype)
    with np.errstate(all="ignore"):
        expected = BINARY[name](a, b)
    np.testing.assert_array_equal(kernels(f"{name}_{dtype}", a, b), expected)


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("name", UNARY)
def test_function_of_an_integer_is_numpys(kernels: Kernels, name: str, dtype: str) -> None:
    a, _ = pairs(dtype)
    np.testing.assert_array_equal(kernels(f"{name}_{dtype}", a), UNARY[name](a))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_power_wraps_as_numpys(kernels: Kernels, dtype: str) -> None:
    a, b = pairs(dtype)
    a, b = a[b >= 0], b[b >= 0]
    np.testing.assert_array_equal(kernels(f"pow_{dtype}", a, b), np.power(a, b))


@pytest.mark.parametrize("dtype", [name for name in INTEGERS if name.startswith("i")])
def test_power_with_a_negative_exponent_is_zero_but_for_units(kernels: Kernels, dtype: str) -> None:
    a, b = pairs(dtype)
    a, b = a[b < 0], b[b < 0]
    expected = np.where(a == 1, 1, np.where(a == -1, np.where(b % 2, -1, 1), 0))
    np.testing.assert_array_equal(kernels(f"pow_{dtype}", a, b), expected)


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("real", ["f32", "f64"])
def test_float_to_integer_truncates_and_saturates(kernels: Kernels, real: str, dtype: str) -> None:
    info = np.iinfo(DTYPES[dtype])
    rng = np.random.default_rng(3)
    ends = np.array([info.min, info.max, info.max / 2], DTYPES[real])
    near = np.concatenate([np.nextafter(ends, -np.inf), ends, np.nextafter(ends, np.inf), ends - 1, ends + 1, ends / 3])
    wide = np.ldexp(rng.uniform(-1, 1, 4000).astype(DTYPES[real]), rng.integers(-3, 70, 4000))
    a = np.concatenate([near, wide, specials(real)]).astype(DTYPES[real])
    expected = [_truncated(float(x), info) for x in a]
    assert kernels(f"{real}_to_{dtype}", a).tolist() == expected


def _truncated(x: float, info: np.iinfo) -> int:
    if math.isnan(x):
        return 0
    if math.isinf(x):
        return int(info.max if x > 0 else info.min)
    return min(max(int(x), int(info.min)), int(info.max))
