# SPDX-License-Identifier: Apache-2.0
"""Maps over rows that stay in the caches: whole vectors, the last one over the end, and rows of less than one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tensorbackend import Backend
from tensorbackend.backends import caches
from tensorbackend.codegen.joined import join_rows
from tensorbackend.codegen.nest import nest
from tests.engine.test_joined_rows import OPERANDS
from tests.engine.test_reduction_loops import kernels_of

pytestmark = pytest.mark.rehearsed

WIDTHS = [1, 2, 3, 7, 8, 9, 15, 16, 17, 24, 31, 33, 64, 65, 100, 128, 255, 300, 2049]
BESIDE = ["whole", "alike rows", "one row", "a number a row", "a number", "part of wider rows", "part of one wider row",
          "rows backwards"]  # fmt: skip
SPECIALS = [np.nan, np.inf, -np.inf, -0.0]


@st.composite
def rows(draw: st.DrawFn) -> tuple:
    width = draw(st.sampled_from(WIDTHS))
    count = draw(st.integers(1, max(2, min(40, 9000 // width))))
    shape = (*draw(st.sampled_from([(), (), (3,), (2, 2)])), count, width)
    kinds = [draw(st.sampled_from(BESIDE)) for _ in range(3)]
    into = draw(st.sampled_from(["whole", "part of wider rows", "part of wider rows", "rows backwards"]))
    return shape, kinds, into, draw(st.sampled_from(["float32", "float32", "float64", "int32", "int64"]))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=rows(), seed=st.integers(0, 2**16))
def test_rows_of_one_type_have_numpys_values(backend: Backend, case: tuple, seed: int) -> None:
    shape, kinds, into, dtype = case
    rng = np.random.default_rng(seed)
    tensors, arrays = [], []
    for kind in kinds:
        memory, part = OPERANDS[kind]
        numbers = rng.integers(-4, 4, memory(shape)).astype(dtype)
        if dtype.startswith("float"):
            numbers[rng.random(numbers.shape) < 0.05] = rng.choice(SPECIALS)
        x = backend.array(numbers, dtype=dtype, min_dims=0)
        tensors.append(part(x))
        arrays.append(part(numbers))
    memory, part = OPERANDS[into]
    target = backend.full(memory(shape), 77, dtype=dtype, min_dims=0)
    expected = target.get()
    a, b, c = arrays
    with np.errstate(all="ignore"):
        part(expected)[...] = np.where(a < b, a * b + c, c - b)
    x, y, z = tensors
    part(target)[:] = backend.where(x < y, x * y + z, z - y)
    np.testing.assert_array_equal(target.get(), expected)


def test_which_rows_are_near(backend: Backend) -> None:
    """Those of a map of one type of 4 or 8 bytes, which are not joined: a row's number is spread if a row is short, or
    if there is much to compute."""

    def near(shape: tuple[int, ...], *others: Any, near: bool = True, of: Any = lambda x: x) -> bool:
        tree = backend.zeros(shape, min_dims=0) + 0
        for other in others:
            tree = tree * (backend.ones(other, min_dims=0) if isinstance(other, tuple) else other)
        return join_rows(nest(kernels_of(of(tree))[0]), False, near).near

    assert near((50, 64), (50, 1)) and near((50, 100), (50, 1)) and near((50, 17), (50, 1)) and near((50, 64), (1, 64))
    assert near((50, 300), (1, 300)) and near((7, 50, 100), (1, 50, 1))
    assert not near((50, 15), (50, 1)) and not near((50, 100), (1, 100))
    assert near((50, 64), (50, 1), of=backend.tanh) and not near((50, 100), (50, 1), of=backend.tanh)
    assert not near((50, 64)) and not near((50, 64), (50, 1), near=False)
    assert not near((50, 64), (50, 1), backend.rand())
    assert not near((50, 64), backend.ones((50, 1), "float64", min_dims=0))
    assert not near((50, 64), backend.ones((50, 128), min_dims=0)[:, ::2])


@pytest.mark.parametrize("labels", ["int8", "int32", "int64"])
@pytest.mark.parametrize("width", [2, 7, 16, 29, 120])
def test_places_and_truths_of_rows(backend: Backend, width: int, labels: str) -> None:
    """Positions along rows are those of the row, in the last vector and in a padded one, too; truths stay wide."""
    rng = np.random.default_rng(width)
    places, known = rng.integers(-1, width, (30, 1)), rng.random((30, 1)) < 0.8
    x = rng.normal(size=(30, width)).astype("f")
    t, k, given = backend.array(places, dtype=labels), backend.array(known, dtype=bool), backend.array(x)
    found = backend.where((backend.onehot(t, 1) & k) | (given > 1), given, -1)
    picked = ((places == np.arange(width)) & known) | (x > 1)
    np.testing.assert_array_equal(backend.evaluate(found).get(), np.where(picked, x, -1).astype("f"))


@pytest.mark.parametrize("width", [5, 16, 40, 63, 64, 129])
def test_operands_may_be_results(backend: Backend, width: int) -> None:
    numbers = np.arange(30.0 * (width + 3)).reshape(30, -1).astype("f")
    wider = backend.array(numbers)
    inside = wider[:, 1:-2]
    inside[:] = inside * 2 + backend.array(np.arange(30.0)[:, None])
    numbers[:, 1:-2] = numbers[:, 1:-2] * 2 + np.arange(30)[:, None]
    np.testing.assert_array_equal(wider.get(), numbers)
    inside[:] = wider[:, 2:-1] + inside
    numbers[:, 1:-2] += numbers[:, 2:-1]
    np.testing.assert_array_equal(wider.get(), numbers)


@pytest.mark.parametrize("width", [9, 48, 77])
def test_several_results_are_of_one_loop(backend: Backend, width: int) -> None:
    x, b = backend.array(np.arange(20.0 * width).reshape(20, width)), backend.array(np.arange(20.0)[:, None])
    wider = [backend.full((20, width + 4), 5) for _ in range(2)]
    with backend.fuse():
        wider[0][:, 2:-2] = x + b
        wider[1][:, :-4] = (x + b) * 2
    expected = x.get() + b.get()
    for found, inner, edges, value in ((wider[0], np.s_[2:-2], [0, 1, -2, -1], expected),
                                       (wider[1], np.s_[:-4], [-4, -3, -2, -1], expected * 2)):  # fmt: skip
        np.testing.assert_array_equal(found.get()[:, inner], value)
        assert (found.get()[:, edges] == 5).all()


def test_rows_near_and_far_have_the_same_bits(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    for width in (64, 100, 333):
        x, b = backend.array(rng.normal(size=(50, width))), backend.array(rng.normal(size=(50, 1)))
        with monkeypatch.context() as patch:
            near = backend.evaluate(backend.tanh(x * b) + b).get()
            patch.setattr(caches, "go_past", lambda *_: True)
            x, b = backend.array(x.get()[:49]), backend.array(b.get()[:49])
            np.testing.assert_array_equal(backend.evaluate(backend.tanh(x * b) + b).get(), near[:49])
