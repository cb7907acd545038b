# SPDX-License-Identifier: Apache-2.0
"""Which views have memory in common: never missed, and not claimed of columns of one matrix or steps of one buffer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tensorbackend as tb
from tensorbackend import Backend, testing
from tensorbackend.graph.tensor import share_memory
from tensorbackend.primitives.operands import check_output

ENDS = st.none() | st.integers(-7, 7)
STEPS = st.none() | st.integers(-3, 3).filter(bool)
PARTS = st.integers(-2, 1) | st.builds(slice, ENDS, ENDS, STEPS)
KEYS = st.lists(PARTS, max_size=3).map(tuple)
SHAPES = st.lists(st.integers(2, 6), min_size=3, max_size=3).map(tuple)
APART = [  # (shape, first view, second view)
    ((6, 4), np.s_[:, 0:1], np.s_[:, 1:2]),
    ((6, 4), np.s_[:, :2], np.s_[:, 2:]),
    ((6, 4), np.s_[::2], np.s_[1::2]),
    ((6, 4), np.s_[::-2, ::2], np.s_[:, 1::2]),
    ((3, 5, 4), np.s_[:, 2], np.s_[:, 3]),
    ((3, 5, 4), np.s_[:, :2], np.s_[:, 2]),
    ((3, 5, 4), np.s_[:, 1, :], np.s_[::-1, 0, ::-1]),
    ((3, 5, 4), np.s_[1:, 4], np.s_[:2, 0]),
]


@pytest.fixture(scope="module", params=("jit", "jit-python", "reference"))
def be(request: Any) -> Any:
    """A backend with native types, one without, one that compiles nothing."""
    made = testing.make_backend(request.param, rng_seed=0)
    yield made
    made.cleanup_backend()


@given(SHAPES, KEYS, KEYS)
def test_what_shares_memory_is_never_missed(be: Backend, shape: tuple, first: tuple, second: tuple) -> None:
    values, held = np.zeros(shape, np.float32), be.zeros(shape)
    if np.shares_memory(values[first], values[second]):
        assert share_memory(held[first], held[second])
        assert share_memory(held[second], held[first])


@given(SHAPES, KEYS, KEYS, st.booleans())
def test_statements_on_parts_of_one_array_are_those_of_numpy(be: Backend, shape, first, second, fused) -> None:
    values = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    held = be.array(values, min_dims=0)
    to, read = values[(*first, ...)], values[(*second, ...)]
    try:
        whole = np.broadcast_shapes(to.shape, read.shape) == to.shape and to.ndim > 0
    except ValueError:
        whole = False
    if not whole:
        return
    for _ in range(3):
        if fused:
            with be.fuse():
                held[first] = held[second] * 2 + 1
                held[second] = held[second] - 3
        else:
            held[first] = held[second] * 2 + 1
            held[second] = held[second] - 3
        to[...] = read.copy() * 2 + 1
        read -= 3
        np.testing.assert_array_equal(held.get(), values)


@pytest.mark.parametrize(("shape", "first", "second"), APART)
def test_interleaved_views_are_apart(be: Backend, shape: tuple, first: Any, second: Any) -> None:
    held = be.zeros(shape)
    for x, y in ((first, second), (second, first)):
        assert not share_memory(held[x], held[y])
        assert share_memory(held[x], held[x])
        assert share_memory(held[x], held)
        check_output("test", held[x], held[y])


def test_a_step_of_a_buffer_is_computed_from_another_in_one_kernel() -> None:
    be = testing.make_backend("jit")
    buffer, x = be.zeros((4, 6, 3), min_dims=0), be.ones((4, 3), min_dims=0)
    for t in range(1, 6):
        explained = be.explain(buffer[:, t], be.tanh(buffer[:, t - 1] + x))
        assert len(explained.steps) == 1
    over = be.explain(buffer[:, 1:3], buffer[:, 0:2] + 1)
    assert len(over.steps) == 2
    be.cleanup_backend()


def test_a_product_may_write_a_step_beside_the_one_that_it_reads(be: Backend) -> None:
    weights, buffer = np.eye(3, dtype=np.float32)[::-1] * 2, np.arange(24, dtype=np.float32).reshape(3, 8)
    w, held = be.array(weights), be.array(buffer)
    be.compound_dot(w, held[:, :4], held[:, 4:])
    np.testing.assert_array_equal(held.get()[:, 4:], weights @ buffer[:, :4])
    with pytest.raises(ValueError, match="overlaps"):
        be.compound_dot(w, held[:, :4], held[:, 3:7])


def test_interleaved_views_have_gradients_of_their_own(be: Backend) -> None:
    held = be.array(np.arange(1.0, 13.0).reshape(3, 4))
    x, y = held[:, :2], held[:, 2:]
    gradients = be.zeros((3, 4))
    tb.Autodiff(x * y * y, be).back_prop_grad([x, y], [gradients[:, :2], gradients[:, 2:]])
    a, b = x.get(), y.get()
    np.testing.assert_allclose(gradients.get(), np.hstack([b * b, 2 * a * b]))
