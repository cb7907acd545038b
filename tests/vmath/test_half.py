# SPDX-License-Identifier: Apache-2.0
"""float16 and bfloat16 against NumPy and ml_dtypes; blocks and vectors against single elements; functions of halves."""

from __future__ import annotations

import os

import ml_dtypes
import numpy as np
import pytest

from tensorbackend import ops
from tests.vmath.build import Kernels, References
from tests.vmath.cases import FUNCTIONS, Function, pairs_of_specials, sample, specials
from tests.vmath.test_builds import assert_same_bits

PEERS = {"f16": np.float16, "bf16": ml_dtypes.bfloat16}
ALL = np.arange(1 << 16, dtype=np.uint16)


def float_patterns() -> np.ndarray:
    """float32 bits: every sign, exponent and upper mantissa bit, with what lies below at, around and off the ties."""
    upper = np.arange(1 << 16, dtype=np.uint32) << 16
    lower = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF, 0x0FFF, 0x1000, 0x1001, 0x2FFF, 0x3000, 0x3001], np.uint32)
    random = np.random.default_rng(4).integers(0, 1 << 32, 1 << 18, np.uint32)
    return np.concatenate([(upper[:, None] | lower).ravel(), random])


@pytest.mark.parametrize("name", PEERS)
def test_every_half_widens_exactly(kernels: Kernels, name: str) -> None:
    got = kernels(f"{name}_to_f32", ALL)
    expected = ALL.view(PEERS[name]).astype(np.float32)
    number = ~np.isnan(expected)
    assert np.array_equal(np.isnan(got), ~number)
    assert np.array_equal(got[number].view(np.uint32), expected[number].view(np.uint32))


@pytest.mark.parametrize("name", PEERS)
def test_float_narrows_to_the_nearest_half(kernels: Kernels, name: str) -> None:
    x = float_patterns().view(np.float32)
    got = kernels(f"f32_to_{name}", x)
    with np.errstate(all="ignore"):
        expected = x.astype(PEERS[name])
    number = ~np.isnan(x)
    assert np.array_equal(np.isnan(got.view(PEERS[name]).astype(np.float32)), ~number)
    assert np.array_equal(got[number], expected.view(np.uint16)[number])


@pytest.mark.parametrize("name", PEERS)
def test_a_half_survives_the_way_through_float(kernels: Kernels, name: str) -> None:
    back = kernels(f"f32_to_{name}", kernels(f"{name}_to_f32", ALL))
    number = ~np.isnan(ALL.view(PEERS[name]).astype(np.float32))
    assert np.array_equal(back[number], ALL[number])


@pytest.mark.parametrize(("widen", "narrow"), [("load", "store"), ("read", "write")])
@pytest.mark.parametrize("name", PEERS)
def test_blocks_have_the_bits_of_single_elements(kernels: Kernels, name: str, widen: str, narrow: str) -> None:
    single = kernels(f"{name}_to_f32", ALL).view(np.uint32)
    assert np.array_equal(kernels.block(f"{widen}_{name}", ALL).view(np.uint32), single)
    x = float_patterns().view(np.float32)
    assert np.array_equal(kernels.block(f"{narrow}_{name}", x), kernels(f"f32_to_{name}", x))


@pytest.mark.parametrize(("widen", "narrow"), [("load", "store"), ("read", "write")])
@pytest.mark.parametrize("name", PEERS)
@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 15, 16, 17, 24, 31])
def test_blocks_of_any_length_are_whole(kernels: Kernels, count: int, name: str, widen: str, narrow: str) -> None:
    some = ALL[0x3C00 : 0x3C00 + count]
    wide = some.view(PEERS[name]).astype(np.float32)
    assert np.array_equal(kernels.block(f"{widen}_{name}", some), wide)
    assert np.array_equal(kernels.block(f"{narrow}_{name}", wide), some)


BOUNDS = {"tanh": ops.OPS["tanh"].half_ulps, "sigmoid": ops.OPS["sig"].half_ulps}
SHORT = [f for f in FUNCTIONS if f.name in BOUNDS]


def patterns(function: Function) -> np.ndarray:
    """Arguments of every kind, in a multiple of 32."""
    x = np.concatenate([float_patterns().view(np.float32), sample(function, "f32", 1 << 16)[0], specials("f32")])
    return x[: x.size // 32 * 32]


@pytest.mark.parametrize("function", SHORT, ids=str)
def test_short_forms_are_within_their_bounds(kernels: Kernels, references: References, function: Function) -> None:
    x = patterns(function)
    got = kernels(f"{function}_half", x, out="f32")
    errors = references.errors(function.name, got, x, x)
    assert errors.max() <= BOUNDS[function.name], (x[np.argmax(errors)], errors.max())
    assert np.nanmax(got) <= 1
    zero = got == 0
    assert np.array_equal(np.signbit(got[zero]), np.signbit(references.exact(function.name, x, x)[zero]))


@pytest.mark.long
@pytest.mark.parametrize("function", SHORT, ids=str)
def test_short_forms_are_within_their_bounds_everywhere(
    kernels: Kernels, references: References, function: Function
) -> None:
    found = references.search(function.name, kernels, len(os.sched_getaffinity(0)), form="half")
    worst, mismatch = np.array([found.worst, found.mismatch], np.uint32).view(np.float32)
    assert found.mismatches == 0, f"{function}({mismatch!r}) is NaN or ought to be"
    assert found.error <= BOUNDS[function.name], f"{function}({worst!r}) is off by {found.error:.2f} ulp"


def pairs(count: int = 1 << 15) -> tuple[np.ndarray, np.ndarray]:
    """Special numbers with each other, and `count` ordinary and far ones, in a multiple of 32."""
    rng = np.random.default_rng(8)
    far = rng.integers(0, 1 << 32, count, np.uint32).view(np.float32)
    near = rng.uniform(-9, 9, count).astype(np.float32)
    a, b = pairs_of_specials("f32")
    a, b = np.concatenate([a, near, far, near, far]), np.concatenate([b, near[::-1], far[::-1], far, near])
    return a[: a.size // 32 * 32], b[: b.size // 32 * 32]


@pytest.mark.parametrize(("form", "bound"), [("half", ops.GATE.half_ulps), ("f32", ops.GATE.ulps)])
def test_the_product_of_both_is_within_its_bound(kernels: Kernels, form: str, bound: float) -> None:
    a, b = pairs(1 << 20)
    with np.errstate(all="ignore"):
        exact = np.tanh(b.astype(np.float64)) / (1 + np.exp(-a.astype(np.float64)))
        exact = np.where(np.isnan(a), np.nan, exact)
    got = kernels(f"gate_{form}", a, b, out="f32")
    np.testing.assert_array_equal(np.isnan(got), np.isnan(exact))
    assert np.nanmax(np.abs(got)) <= 1
    errors = np.abs(got - exact) / np.spacing(np.abs(exact).astype(np.float32))
    worst = np.nanargmax(errors)
    assert errors[worst] <= bound, (a[worst], b[worst], got[worst], exact[worst])
    assert np.array_equal(np.signbit(got[exact == 0]), np.signbit(exact[exact == 0]))


@pytest.fixture
def wide(kernels: Kernels) -> Kernels:
    """The same library, if it was compiled for vectors of `wide.h`."""
    if not hasattr(kernels.library, "wide_has"):
        pytest.skip("wide.h is for AVX-512 and AVX2 with gcc")
    return kernels


@pytest.mark.parametrize("function", SHORT, ids=str)
def test_vectors_have_the_bits_of_single_elements(wide: Kernels, function: Function) -> None:
    x = patterns(function)
    name = f"{function}_half"
    assert_same_bits(wide(f"wide_{name}", x, out="f32"), wide(name, x, out="f32"), name)


def test_vectors_of_the_product_have_the_bits_of_single_elements(wide: Kernels) -> None:
    got, expected = wide("wide_gate_half", *pairs(), out="f32"), wide("gate_half", *pairs(), out="f32")
    assert_same_bits(got, expected, "gate_half")


@pytest.mark.long
@pytest.mark.parametrize("function", SHORT, ids=str)
def test_vectors_have_the_bits_of_single_elements_everywhere(wide: Kernels, function: Function) -> None:
    name = f"{function}_half"
    for first in range(0, 1 << 32, 1 << 26):
        x = np.arange(first, first + (1 << 26), dtype=np.uint32).view(np.float32)
        assert_same_bits(wide(f"wide_{name}", x, out="f32"), wide(name, x, out="f32"), name)


@pytest.mark.parametrize("name", PEERS)
def test_vectors_convert_as_single_elements_do(wide: Kernels, name: str) -> None:
    assert_same_bits(wide(f"wide_{name}_to_f32", ALL), wide(f"{name}_to_f32", ALL), name)
    x = float_patterns().view(np.float32)
    with np.errstate(invalid="ignore"):
        x = x[: x.size // 32 * 32] * np.float32(1)  # no signalling NaN, as after any operation
    back = wide(f"wide_f32_to_{name}", x, out=name), wide(f"f32_to_{name}", x)
    assert_same_bits(*(words.view(PEERS[name]) for words in back), name)
