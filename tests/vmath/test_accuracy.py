# SPDX-License-Identifier: Apache-2.0
"""Errors of the floating-point functions, in units in the last place, against the bounds of cases.FUNCTIONS."""

from __future__ import annotations

import os

import numpy as np
import pytest

from tests.vmath.build import Kernels, References
from tests.vmath.cases import FUNCTIONS, Function, pairs_of_specials, sample, specials

SAMPLE = {"f32": 1 << 17, "f64": 1 << 15}


def describe(function: Function, got: np.ndarray, errors: np.ndarray, a: np.ndarray, b: np.ndarray) -> str:
    """The worst case in words."""
    worst = int(np.argmax(errors))
    arguments = f"{a[worst]!r}" if function.arity == 1 else f"{a[worst]!r}, {b[worst]!r}"
    return f"{function}({arguments}) gave {got[worst]!r}, off by {errors[worst]:.3f} ulp"


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("function", FUNCTIONS, ids=str)
def test_error_of_a_sample_is_within_the_bound(
    kernels: Kernels, references: References, function: Function, dtype: str
) -> None:
    a, b = sample(function, dtype, SAMPLE[dtype])
    got = kernels(f"{function}_{dtype}", a, b)
    errors = references.errors(function.name, got, a, b)
    assert errors.max() <= function.bound(dtype), describe(function, got, errors, a, b)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_results_do_not_depend_on_the_other_numbers_of_a_vector(
    kernels: Kernels, references: References, name: str, dtype: str
) -> None:
    """Of far angles (kernels/c/vmath_lanes.h), among near ones and alone, with numbers that are no angles beside."""
    real, border = (np.float32, 6433) if dtype == "f32" else (np.float64, 1647099)
    rng = np.random.default_rng(2)
    around = border + np.spacing(real(border)) * np.arange(-64, 64)
    others = [np.inf, np.nan, -0.0, -np.inf]
    x = np.concatenate([rng.uniform(-2, 2, 4096) * border, around, others, -around]).astype(real)
    rng.shuffle(x)
    near = np.abs(x) < border
    assert 1000 < near.sum() < x.size - 1000
    together = kernels(f"{name}_{dtype}", x)
    apart = np.empty_like(together)
    for some in (near, ~near):
        apart[some] = kernels(f"{name}_{dtype}", x[some])
    alone = np.array([kernels(f"{name}_{dtype}", x[at : at + 1])[0] for at in range(x.size)])
    assert np.array_equal(together, apart, equal_nan=True)
    assert np.array_equal(together, alone, equal_nan=True)
    assert references.errors(name, together, x, x).max() <= (1.3 if dtype == "f32" else 1.25)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("function", FUNCTIONS, ids=str)
def test_special_numbers_follow_the_c_standard(
    kernels: Kernels, references: References, function: Function, dtype: str
) -> None:
    a, b = (specials(dtype), specials(dtype)) if function.arity == 1 else pairs_of_specials(dtype)
    got = kernels(f"{function}_{dtype}", a, b)
    errors = references.errors(function.name, got, a, b)
    assert errors.max() <= function.bound(dtype), describe(function, got, errors, a, b)
    exact = references.exact(function.name, a, b)
    zero = (exact == 0) & (got == 0)
    assert np.array_equal(np.signbit(got[zero]), np.signbit(exact[zero])), a[zero]
    endless = np.isinf(exact)
    assert np.array_equal(got[endless], exact[endless]), a[endless]


@pytest.mark.long
@pytest.mark.parametrize("function", [f for f in FUNCTIONS if f.arity == 1], ids=str)
def test_error_of_every_float32_is_within_the_bound(
    kernels: Kernels, references: References, function: Function
) -> None:
    found = references.search(function.name, kernels, len(os.sched_getaffinity(0)))
    worst, mismatch = np.array([found.worst, found.mismatch], np.uint32).view(np.float32)
    assert found.mismatches == 0, f"{function}({mismatch!r}) is NaN or ought to be"
    assert found.error <= function.f32, f"{function}({worst!r}) is off by {found.error:.4f} ulp"


@pytest.mark.long
@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("function", FUNCTIONS, ids=str)
def test_error_of_a_large_sample_is_within_the_bound(
    kernels: Kernels, references: References, function: Function, dtype: str
) -> None:
    for seed in range(1, 9):
        a, b = sample(function, dtype, 1 << 20, seed)
        got = kernels(f"{function}_{dtype}", a, b)
        errors = references.errors(function.name, got, a, b)
        assert errors.max() <= function.bound(dtype), describe(function, got, errors, a, b)
