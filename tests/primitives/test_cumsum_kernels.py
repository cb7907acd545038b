# SPDX-License-Identifier: Apache-2.0
"""Running sums and products in C: lines alone and side by side, segments of long ones, elements at any distance."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tensorbackend import Backend
from tests.threads import same_bits

pytestmark = pytest.mark.rehearsed

INTEGERS = ("int8", "int32", "uint64")
LENGTHS = [1, 2, 3, 5, 8, 9, 15, 16, 17, 31, 33, 47, 48, 63, 64, 65, 100, 129]
COUNTS = st.lists(st.sampled_from(LENGTHS), min_size=1, max_size=3).filter(lambda shape: np.prod(shape) < 60_000)
STEPS = st.lists(st.sampled_from([1, 1, 2, -1]), min_size=3, max_size=3)


def part(memory, shape: tuple[int, ...], steps: list[int]):
    """The elements of memory, two wider than needed along each axis, that a view of `shape` by these steps has."""
    return memory[tuple(slice(1, 1 + n * s, s) if s > 0 else slice(n, 0, -1) for n, s in zip(shape, steps))]


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(shape=COUNTS.map(tuple), steps=st.tuples(STEPS, STEPS), views=st.tuples(st.booleans(), st.booleans()),
       dtype=st.sampled_from(["float32", "float64", "float16", "bfloat16", "int8", "int32", "uint64"]),
       data=st.data())  # fmt: skip
def test_running_sums_of_views(backend: Backend, shape, steps, views, dtype, data) -> None:
    """Whole numbers, whose sums are exact or wrap; nothing is written beside the target."""
    axis = data.draw(st.integers(0, len(shape) - 1))
    numbers = np.random.default_rng(sum(shape)).integers(0 if dtype == "uint64" else -3, 4, shape)

    def memory(of: list[int]):
        room = tuple(n * abs(s) + 2 for n, s in zip(shape, of))
        return backend.full(room, 77, dtype=dtype, min_dims=0)

    x = part(memory(steps[0]), shape, steps[0]) if views[0] else backend.empty(shape, dtype=dtype, min_dims=0)
    x[:] = backend.array(numbers, dtype=dtype, min_dims=0)
    around = memory(steps[1]) if views[1] else backend.empty(shape, dtype=dtype, min_dims=0)
    target = part(around, shape, steps[1]) if views[1] else around
    target[:] = backend.cumsum(x, axis)
    expected = np.full(around.shape, 77.0)
    (part(expected, shape, steps[1]) if views[1] else expected)[...] = np.cumsum(numbers, axis)
    wanted = backend.array(expected, dtype=dtype, min_dims=0).get() if dtype not in INTEGERS else expected
    np.testing.assert_array_equal(around.get(), wanted.astype(np.int64).astype(dtype) if dtype in INTEGERS else wanted)


@pytest.mark.slow
@pytest.mark.parametrize(("given", "wanted"), [("int8", "int64"), ("int64", "int8"), ("bool", "uint16"),
                                               ("float16", "float32"), ("float32", "float32")])  # fmt: skip
@pytest.mark.parametrize("shape", [(300,), (9, 70), (70, 9), (40, 300)])
def test_running_results_of_other_types(backend: Backend, given: str, wanted: str, shape: tuple[int, ...]) -> None:
    """Signs and powers of two, whose products are exact or wrap, and sums that do; of part of a wider array."""
    memory = np.random.default_rng(3).choice([1, 1, 1, -1, 2, 0.5], (*shape[:-1], shape[-1] + 3))
    x = backend.array(memory, dtype=given, min_dims=0)[..., 1:-2]
    host = x.get().astype(np.float64 if given.startswith("float") else np.int64)
    for axis in range(len(shape)):
        for name in ("cumsum", "cumprod"):
            target = backend.empty(shape, dtype=wanted, min_dims=0)
            target[:] = getattr(backend, name)(x, axis)
            expected = getattr(np, name)(host, axis)
            np.testing.assert_array_equal(target.get(), expected.astype(wanted), err_msg=f"{name} {axis}")


@pytest.mark.parametrize("shape", [(2000,), (5, 2000), (2000, 5), (2000, 300)])
def test_products_are_taken_in_order(backend: Backend, shape: tuple[int, ...]) -> None:
    """What is 0 stays 0, though the factors behind it would leave the range of float64 by themselves."""
    axis = int(shape[0] == 5)
    x = np.full(shape, 1e300)
    np.moveaxis(x, axis, 0)[1] = 0
    products = backend.evaluate(backend.cumprod(backend.array(x, dtype=np.float64, min_dims=0), axis)).get()
    expected = np.zeros(shape)
    np.moveaxis(expected, axis, 0)[0] = 1e300
    np.testing.assert_array_equal(products, expected)


LONG = [((70_001,), 0), ((3, 70_001), 1), ((70_001, 3), 0), ((40_000, 12), 0), ((9_001, 40), 0), ((2, 9_000, 9), 1),
        ((700, 513), 0), ((50_000, 1), 1), ((1, 50_000), 0)]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "axis"), LONG, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sums_of_long_lines_add_up_in_float64(backend: Backend, shape: tuple[int, ...], axis: int, dtype: str) -> None:
    """A float64 sum of n numbers is off by n ulps of the sum of magnitudes at most, a float32 by half an ulp more."""
    x = backend.array(np.random.default_rng(1).standard_normal(shape), dtype=dtype, min_dims=0)
    sums = backend.evaluate(backend.cumsum(x, axis)).get().astype(np.longdouble)
    wide = x.get().astype(np.longdouble)
    exact, sizes = np.cumsum(wide, axis), np.cumsum(np.abs(wide), axis)
    count = np.arange(1, shape[axis] + 1).reshape([-1 if a == axis else 1 for a in range(len(shape))])
    bound = count * 2.0**-53 * sizes
    assert (np.abs(sums - exact) <= bound + np.abs(exact) * (2.0**-24 if dtype == "float32" else 0)).all()


@pytest.mark.parametrize("shape", [(5,), (100,), (70_000,), (5, 3), (70_000, 3), (100, 300)])
def test_special_numbers(backend: Backend, shape: tuple[int, ...]) -> None:
    """A NaN or an infinity is in all sums from its place on; the sum of zeros that are negative is."""
    x = np.ones(shape, np.float32)
    x[2], x[-1] = np.inf, np.nan
    x[3:4, ...] = -np.inf if len(shape) > 1 else 1
    sums = backend.evaluate(backend.cumsum(backend.array(x, min_dims=0), 0)).get()
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(sums, np.cumsum(x, 0))
    zeros = backend.evaluate(backend.cumsum(backend.full(shape, -0.0, min_dims=0), 0)).get()
    assert (zeros == 0).all()
    assert np.signbit(zeros).all()


@pytest.mark.parametrize(("shape", "axis"), [((3, 100_000), 1), ((100_000, 5), 0), ((200, 300), 0), ((200, 300), 1)])
def test_threads_change_no_bit(jit: Backend, shape: tuple[int, ...], axis: int) -> None:
    x = jit.array(np.random.default_rng(2).standard_normal(shape))
    same_bits(lambda: [jit.evaluate(jit.cumsum(x, axis)).get()])
