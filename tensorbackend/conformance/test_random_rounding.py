# SPDX-License-Identifier: Apache-2.0
"""Stochastic rounding: which values can occur, how often, and which tensors round."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tensorbackend import Backend, testing

pytestmark = pytest.mark.rehearsed

SHAPE = (400, 250)
SIGMAS = 6.2  # a right generator misses such a bound with a probability below 1e-9


def neighbours(value: float, bits: int) -> tuple[float, float]:
    """The numbers with `bits` mantissa bits below and above a value, by size."""
    step = 2.0 ** (math.floor(math.log2(abs(value))) - bits)
    low = math.floor(value / step) * step
    return low, low + step


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_one_and_a_tenth_with_one_bit_is_one_or_one_and_a_half(backend, dtype) -> None:
    t = backend.empty(SHAPE, dtype=dtype)
    t.rounding = 1
    t.fill(1.1)
    values, counts = np.unique(t.get().astype(np.float64), return_counts=True)
    assert values.tolist() == [1.0, 1.5]
    assert counts[0] > counts[1]


@pytest.mark.parametrize("value", [1.1e300, -1.1e-300, 1 + 2.0**-40])
@pytest.mark.parametrize("form", [float, np.float64, np.array])
def test_float64_is_rounded_as_it_is(backend, value, form) -> None:
    t = backend.empty(SHAPE, dtype=np.float64)
    t.rounding = 10
    given = form(value)
    t[:] = backend.full(SHAPE, value, dtype=np.float64) if form is np.array else given
    stored, (low, high) = t.get(), neighbours(value, 10)
    assert set(np.unique(stored)) <= {low, high}
    share = (value - low) / (high - low)
    error = math.sqrt(share * (1 - share) / stored.size)
    assert abs((stored == high).mean() - share) <= SIGMAS * error + 2.0**-32


@pytest.mark.parametrize("value", [1.1, -1.1, 2.6, 0.3, -5e-3, 1000.7])
@pytest.mark.parametrize("bits", [1, 3, 10])
def test_rounding_is_unbiased(backend, value, bits) -> None:
    t = backend.empty(SHAPE)
    t.rounding = bits
    t[:] = backend.full(SHAPE, value)
    stored = t.get().astype(np.float64)
    exact = float(np.float32(value))
    low, high = neighbours(exact, bits)
    assert set(np.unique(stored)) <= {low, high}
    share = (exact - low) / (high - low)
    error = (high - low) * math.sqrt(share * (1 - share) / stored.size)
    assert abs(stored.mean() - exact) <= SIGMAS * error + (high - low) * 2.0 ** (bits - 23)


@pytest.mark.parametrize("value", [0.0, 1.0, 1.5, -3.0, 2.0**-20, math.inf, -math.inf, math.nan])
def test_numbers_that_fit_are_kept(backend, value) -> None:
    t = backend.empty((20, 20))
    t.rounding = 1
    t.fill(value)
    np.testing.assert_array_equal(t.get(), np.full((20, 20), value, np.float32))


@pytest.mark.parametrize("form", ["number", "array", "list", "tensor", "tree", "set", "copy", "slice", "pick"])
def test_every_kind_of_assignment_rounds(backend, form) -> None:
    t = backend.empty((50, 40))
    t.rounding = 1
    host = np.full((50, 40), 1.1, np.float32)
    if form == "set":
        t.set(host)
    elif form == "copy":
        t.copy(backend.array(host))
    elif form == "slice":
        t[:25] = backend.array(host[:25])
        t[25:] = host[25:]
    elif form == "pick":
        t[list(range(20))] = host[:20]
        t[list(range(20, 40))].fill(1.1)
        t[np.arange(50) >= 40] = host[0]
    else:
        values = {"number": 1.1, "array": host, "list": host.tolist(), "tensor": backend.array(host)}
        t[:] = values[form] if form in values else backend.array(host) * 1.0
    assert set(np.unique(t.get())) == {1.0, 1.5}


def test_each_element_and_each_assignment_rounds_for_itself(backend) -> None:
    t = backend.empty((100, 100))
    t.rounding = 1
    first, second = t.fill(1.25).get(), t.fill(1.25).get()
    assert 0.4 < (first == second).mean() < 0.6


def test_the_seed_decides_the_rounding(backend) -> None:
    t = backend.empty((100, 100))
    t.rounding = 2
    found = []
    for _ in range(2):
        backend.gen_rng(8)
        found.append(t.fill(1.1).get())
    np.testing.assert_array_equal(*found)


def test_views_inherit_it(backend) -> None:
    t = backend.empty((40, 40))
    t.rounding = 3
    assert [v.rounding for v in (t[1:], t.T, t.reshape(1600, 1), t[::2].T[:, :3], t.share((2, 2)))] == [3] * 5
    t.T[:] = backend.full((40, 40), 1.1)
    assert set(np.unique(t.get())) == {1.0, 1.125}


def test_it_may_be_set_and_taken_back(backend) -> None:
    t = backend.empty((10, 10))
    assert t.rounding == 0
    t.rounding = 1
    t.fill(1.1)
    t.rounding = 0
    assert set(np.unique(t.fill(1.1).get())) == {np.float32(1.1)}


def test_integers_are_not_rounded(backend) -> None:
    t = backend.empty((20, 20), dtype=np.int32)
    t.rounding = 1
    assert set(np.unique(t.fill(7).get())) == {7}


@pytest.mark.parametrize(("asked", "bits"), [(True, 10), (4, 4), (False, 0), (None, 0), (0, 0)])
@pytest.mark.parametrize("kind", testing.backend_kinds())
def test_backend_gives_it_to_new_tensors(kind, asked, bits) -> None:
    be = testing.make_backend(kind, rng_seed=0, stochastic_round=asked)
    assert be.round_mode == bits
    assert [t.rounding for t in (be.empty((2, 2)), be.zeros(3), be.array([1.0]))] == [bits] * 3
    values = set(np.unique(be.full((100, 100), 1 + 2.0**-11 + 2.0**-20).get()))
    if bits == 10:
        assert values == {1.0, np.float32(1 + 2.0**-10)}
    else:
        assert len(values) == (2 if bits else 1)
    be.cleanup_backend()


@pytest.mark.parametrize("asked", [-1, 24, 100])
def test_bits_that_float32_does_not_have_are_refused(asked) -> None:
    with pytest.raises(ValueError, match=str(asked)):
        Backend.allocate_backend("cpu", jit=False, stochastic_round=asked)
    be = Backend.allocate_backend("cpu", jit=False)
    t = be.zeros((2, 2))
    t.rounding = asked
    with pytest.raises(ValueError, match=str(asked)):
        t.fill(1.1)
    assert not t.get().any()
