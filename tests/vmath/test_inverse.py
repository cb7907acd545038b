# SPDX-License-Identifier: Apache-2.0
"""Quotients of many numbers by one are those of a division, to the bit."""

from __future__ import annotations

import numpy as np
import pytest

from tests.vmath.build import Kernels

SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 1.1754944e-38, 3.4028235e38], np.float32)
DIVISORS = [*SPECIAL, 1, 3, -3, 98, 0.001, 2.0**-140, 3 * 2.0**-130, 1e38, -1e-38]


def assert_quotients(kernels: Kernels, x: np.ndarray, divisor: np.float32) -> None:
    with np.errstate(all="ignore"):
        expected = x / divisor
    got = kernels.over(x, divisor)
    wrong = (got.view(np.uint32) != expected.view(np.uint32)) & ~(np.isnan(got) & np.isnan(expected))
    assert not wrong.any(), f"{x[wrong][0]} / {divisor} = {expected[wrong][0]}, given {got[wrong][0]}"


@pytest.mark.parametrize("divisor", DIVISORS)
def test_of_special_and_of_any_numbers(kernels: Kernels, divisor: float) -> None:
    numbers = np.random.default_rng(1).integers(0, 1 << 32, 1 << 14, np.uint32).view(np.float32)
    assert_quotients(kernels, np.concatenate([SPECIAL, numbers]), np.float32(divisor))


def test_any_numbers_by_any_divisors(kernels: Kernels) -> None:
    rng = np.random.default_rng(2)
    for divisor in rng.integers(0, 1 << 32, 1 << 10, np.uint32).view(np.float32):
        assert_quotients(kernels, rng.integers(0, 1 << 32, 1 << 10, np.uint32).view(np.float32), divisor)


def test_quotients_half_way_between_two_denormal_numbers(kernels: Kernels) -> None:
    """These round to even, which a quotient that is wrong in its last bit of float64 does not."""
    odd = np.arange(1, 4096, 2, dtype=np.float64) * 2.0**-150
    for divisor in range(3, 2000, 7):
        x = (odd * divisor * 2).astype(np.float32)
        assert_quotients(kernels, np.concatenate([x, -x]), np.float32(2 * divisor))
