# SPDX-License-Identifier: Apache-2.0
"""Square roots of float64 are rounded correctly, also where they nearly lie between two numbers."""

from __future__ import annotations

import numpy as np
import pytest

from tests.vmath.build import Kernels


def next_to_midpoints(reach: int) -> tuple[np.ndarray, np.ndarray]:
    """Numbers whose roots are next to the middle of two numbers, and the right roots.

    The middle is N / 2 for an odd N of 54 bits, the number X of 105 or 106 bits, and 4 X = N^2 + D for a small D. X
    ends with 52 or 53 zeros: N is a root of -D modulo 2^54 or 2^55, of which there are four for each -D = 1 modulo 8.
    """
    numbers, roots = [], []
    for bits in (54, 55):
        for minus in range(1 - 8 * reach, 8 * reach, 8):
            root = 1  # modulo 8, and then of a bit more each time
            for bit in range(3, bits):
                root += (root * root - minus >> bit & 1) << (bit - 1)
            for n in {sign * root + half & (1 << bits) - 1 for sign in (1, -1) for half in (0, 1 << (bits - 1))}:
                for odd in (n, n + (1 << bits)):
                    x, rest = divmod(odd * odd - minus, 4 << (bits - 2))
                    if not rest and 1 << 53 < odd < 1 << 54 and 1 << 52 <= x < 1 << 53:
                        numbers.append(x << (bits & 1))
                        roots.append((odd - 1) // 2 if minus > 0 else (odd + 1) // 2)
    return np.array(numbers, float), np.ldexp(np.array(roots, float), -26)


@pytest.mark.parametrize("power", [0, 1, -449, 484])
def test_roots_next_to_the_middle_of_two_numbers_are_rounded_correctly(kernels: Kernels, power: int) -> None:
    x, roots = next_to_midpoints(1000)
    assert x.size > 2000
    got = kernels("sqrt_f64", np.ldexp(x, 2 * power))
    assert np.array_equal(got, np.ldexp(roots, power))


def test_any_estimate_of_fourteen_bits_makes_these_roots_right(kernels: Kernels) -> None:
    """Processors may differ in what they estimate."""
    if not hasattr(kernels.library, "root_near_f64"):
        pytest.skip("for AVX-512, by gcc")
    rng = np.random.default_rng(5)
    x, roots = next_to_midpoints(3)
    for near in (-14, -20, -53):
        off = np.ldexp(rng.uniform(-1, 1, (50_000, x.size)), near)
        got = kernels("root_near_f64", np.broadcast_to(x, off.shape), (1 + off) / np.sqrt(x))
        assert (got == roots).all(), near


@pytest.mark.parametrize("name", ["sqrt", "rsqrt"])
def test_roots_are_numpys_in_any_company(kernels: Kernels, name: str) -> None:
    """Of numbers of all sizes, of zeros, negative numbers and such, among themselves, in other vectors, and alone."""
    rng = np.random.default_rng(4)
    some = np.ldexp(rng.uniform(1, 4, 200_000), 2 * rng.integers(-512, 511, 200_000))
    odd = [0.0, -0.0, -1.0, np.inf, -np.inf, np.nan, 5e-324, 2.0**-900, np.nextafter(2.0**-900, 0), np.finfo(float).max]
    x = np.concatenate([some, np.nextafter(1, 0) - np.arange(64) * 2.0**-53, 1 + np.arange(64) * 2.0**-52, odd * 30])
    with np.errstate(all="ignore"):
        expected = np.sqrt(x) if name == "sqrt" else 1 / np.sqrt(x)
    mixed = rng.permutation(x.size)
    got = np.empty_like(x)
    got[mixed] = kernels(f"{name}_f64", x[mixed])
    for result in (got, kernels(f"{name}_f64", x)):
        assert np.array_equal(result, expected, equal_nan=True)
        assert np.array_equal(np.signbit(result[x == 0]), np.signbit(expected[x == 0]))
    alone = np.array([kernels(f"{name}_f64", x[i : i + 1])[0] for i in range(x.size - 400, x.size)])
    assert np.array_equal(alone, expected[-400:], equal_nan=True)
