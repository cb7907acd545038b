# SPDX-License-Identifier: Apache-2.0
"""Short rows that are reduced side by side are turned in cache, and longer ones end with a vector over the one before:
values, views, what lies around them, specials."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tensorbackend import Backend
from tensorbackend.backends import compiler, jit
from tensorbackend.codegen.nest import SHORT

pytestmark = pytest.mark.rehearsed

EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
SHARED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # a backend serves all examples
LONGER = [79, 80, 81, 100, 127, 129, 200, 1023, 1030, 1041, 2049]
LENGTHS = [*range(19), 23, 24, 25, 31, 32, 33, 40, 48, 63, 64]


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_tiles_are_turned_whatever_their_sides(size: int, absent: Callable[..., None]) -> None:
    if compiler.find_compiler() is None:
        absent("cc", compiler.compiler_status())
    call = f"tb_turn{size}(from, step, lines, rows, to, pitch)"
    parameters = "const void *from, tb_i64 step, int lines, int rows, void *to, tb_i64 pitch"
    turn = jit.compile_text(f'#include "kernel.h"\nvoid turn({parameters}) {{ {call}; }}\n').function("turn")
    turn.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_int64]
    turn.restype = None
    rng = np.random.default_rng(size)
    for lines in LENGTHS:
        for rows in LENGTHS:
            given_rows = rng.integers(0, 200, (lines, rows + 3)).astype(f"u{size}")
            got = np.full((rows + 1, lines + 5), 7, given_rows.dtype)
            expected = got.copy()
            expected[:rows, :lines] = given_rows[:, :rows].T
            turn(given_rows.ctypes.data, rows + 3, lines, rows, got.ctypes.data, lines + 5)
            np.testing.assert_array_equal(got, expected, err_msg=f"{lines} x {rows}")


@st.composite
def short_rows(draw: st.DrawFn) -> tuple[np.ndarray, tuple[slice, ...]]:
    """A tensor, and where in it the rows lie: all of it, inside, or in the opposite order."""
    name = draw(st.sampled_from(sorted(EPSILON)))
    dtype = np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)
    planes, length = draw(st.sampled_from([1, 3])), draw(st.integers(1, SHORT + 1) | st.sampled_from(LONGER))
    rows = draw(st.sampled_from([1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 300]))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 16)))
    form = draw(st.sampled_from(["whole", "inside", "backwards"]))
    whole = (3 * rng.standard_normal((planes, rows + 2, length + 3))).astype(dtype)
    if form == "whole":
        return np.ascontiguousarray(whole[:, :rows, :length]), (slice(None),) * 3
    if form == "inside":
        return whole, (slice(None), slice(1, rows + 1), slice(2, length + 2))
    return whole, (slice(None), slice(rows, 0, -1), slice(0, length))


def assert_same_around(after: np.ndarray, before: np.ndarray, where: tuple[slice, ...]) -> None:
    """What lies beside the rows has stayed as it was."""
    around = np.ones(before.shape, bool)
    around[where] = False
    np.testing.assert_array_equal(after[around], before[around])


@pytest.mark.slow
@SHARED
@given(given_rows=short_rows())
def test_reductions_of_views_and_what_follows_from_them(
    backend: Backend, given_rows: tuple[np.ndarray, tuple[slice, ...]]
) -> None:
    whole, where = given_rows
    x = backend.array(whole, dtype=whole.dtype, min_dims=0)[where]
    values = whole[where].astype("f8")
    epsilon = EPSILON[whole.dtype.name]
    total = np.abs(values).sum(-1, keepdims=True)
    sums = backend.evaluate(backend.sum(x, axis=-1)).get().astype("f8")
    assert (np.abs(sums - values.sum(-1, keepdims=True)) <= max(epsilon, 16 * 2.0**-24) * total).all()
    largest = backend.evaluate(backend.max(x, axis=-1)).get().astype("f8")
    np.testing.assert_array_equal(largest, values.max(-1, keepdims=True))
    places = backend.evaluate(backend.argmin(x, axis=-1)).get()
    np.testing.assert_array_equal(places, values.argmin(-1)[..., None])
    rng = np.random.default_rng(1)  # a factor for each element of a plane, one for each column, one for each row
    shapes = (1, *values.shape[1:]), (1, 1, values.shape[2]), (*values.shape[:2], 1)
    w, b, c = (rng.standard_normal(shape).astype(whole.dtype if whole.dtype == "f8" else "f4") for shape in shapes)
    factor, column, row = (backend.array(values, dtype=values.dtype, min_dims=0) for values in (w, b, c))
    tree = (x - backend.mean(x, axis=-1)) * factor + column * row
    got = backend.evaluate(tree).get().astype("f8")
    expected = (values - values.mean(-1, keepdims=True)) * w + b.astype("f8") * c
    bound = np.abs(values * w) + np.abs(w) * np.abs(values).mean(-1, keepdims=True) + np.abs(b.astype("f8") * c)
    assert (np.abs(got - expected) <= 8 * epsilon * bound + 2 * epsilon * total * np.abs(w)).all()


@pytest.mark.slow
@SHARED
@given(given_rows=short_rows())
def test_rows_are_replaced_in_place_and_nothing_around_them(
    backend: Backend, given_rows: tuple[np.ndarray, tuple[slice, ...]]
) -> None:
    whole, where = given_rows
    memory = backend.array(whole, dtype=whole.dtype, min_dims=0)
    x, values = memory[where], whole[where].astype("f8")
    x[:] = backend.softmax(x, axis=-1)
    after = memory.get()
    powers = np.exp(values - values.max(-1, keepdims=True))
    expected, epsilon = powers / powers.sum(-1, keepdims=True), EPSILON[whole.dtype.name]
    # A difference up to 30 is rounded before its exponential is taken; then come a sum, a division and a rounding.
    bound = (34 * max(epsilon, 2.0**-23) if epsilon < 2.0**-20 else 2 * epsilon) * expected + 2.0**-24
    assert (np.abs(after[where].astype("f8") - expected) <= bound).all()
    assert_same_around(after, whole, where)


@SHARED
@given(given_rows=short_rows(), chosen=st.booleans())
def test_rows_are_centred_in_place_and_nothing_around_them(
    backend: Backend, given_rows: tuple[np.ndarray, tuple[slice, ...]], chosen: bool
) -> None:
    """Where results are operands, each is computed from what was there before."""
    whole, where = given_rows
    memory = backend.array(whole, dtype=whole.dtype, min_dims=0)
    x, values, epsilon = memory[where], whole[where].astype("f8"), EPSILON[whole.dtype.name]
    if chosen:  # a comparison's result is a byte, of which a vector has more
        x[:] = backend.where(x > 0.5, x, 0.0) - backend.mean(x, axis=-1)
        expected = np.where(values > 0.5, values, 0) - values.mean(-1, keepdims=True)
    else:
        x[:] = (x - backend.mean(x, axis=-1)) * 2.0
        expected = 2 * (values - values.mean(-1, keepdims=True))
    after = memory.get()
    bound = 4 * epsilon * (np.abs(values) + np.abs(values).mean(-1, keepdims=True)) + 2.0**-24
    assert (np.abs(after[where].astype("f8") - expected) <= bound).all()
    assert_same_around(after, whole, where)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_specials_stay_in_their_rows(backend: Backend, dtype: str) -> None:
    values = np.random.default_rng(0).standard_normal((130, 21))
    values[3, 20], values[64, 0], values[129, 7] = np.nan, np.inf, -np.inf
    x = backend.array(values, dtype=dtype, min_dims=0)
    for name in ("sum", "max", "min"):
        got = backend.evaluate(getattr(backend, name)(x, axis=1)).get().astype("f8").ravel()
        expected = getattr(values, name)(1)
        np.testing.assert_array_equal(np.isnan(got), np.isnan(expected), err_msg=name)
        np.testing.assert_array_equal(got[np.isinf(expected)], expected[np.isinf(expected)], err_msg=name)
        assert np.isfinite(got[np.isfinite(expected)]).all(), name
    weights = backend.evaluate(backend.softmax(x, axis=1)).get().astype("f8")
    assert np.isnan(weights[[3, 64]]).any(axis=1).all() and np.isfinite(np.delete(weights, [3, 64], 0)).all()


@SHARED
@given(given_rows=short_rows())
def test_running_sums_of_views_and_in_place(
    backend: Backend, given_rows: tuple[np.ndarray, tuple[slice, ...]]
) -> None:
    """Sums are of float64, rounded once to what is smaller."""
    whole, where = given_rows
    memory = backend.array(whole, dtype=whole.dtype, min_dims=0)
    x, values, epsilon = memory[where], whole[where].astype("f8"), EPSILON[whole.dtype.name]
    expected = np.cumsum(values, -1)
    bound = epsilon / 2 * np.abs(expected) + values.shape[-1] * 2.0**-53 * np.cumsum(np.abs(values), -1) + 2.0**-25
    assert (np.abs(backend.evaluate(backend.cumsum(x, axis=-1)).get().astype("f8") - expected) <= bound).all()
    x[:] = backend.cumsum(x, axis=-1)
    after = memory.get()
    assert (np.abs(after[where].astype("f8") - expected) <= bound).all()
    assert_same_around(after, whole, where)
